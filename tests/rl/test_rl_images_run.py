"""`experiment=sight`: images through the whole loop, on two learner ranks that share the experts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from model.checkpoint_config import architecture
from rl.learner.masters import Masters
from rollout.store import TrajectoryReader

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "steps=2",
    "envs.names=[sights:Guess,primer/count]",
    "model.quant.expert_activations=none",
    "algorithm.groups_per_step=8",
    "logging.wandb.mode=disabled",
    "logging.progress=false",
    "envs.refuse_failing=false",  # half of all replies are right
]
SMALL += [f"evaluation.{key}=6" for key in ("tasks", "during_tasks", "calibration_tasks")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "rl.cli", "train", "+experiment=sight", f"run.root={root}", *SMALL]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    here = Path(__file__).parent  # where `sights` is, as an environment of one's own is where one stands
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return root / "sight"


def test_the_learner_scores_images_as_the_engine_sampled_behind_them(run: Path) -> None:
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [s["sync/version"] for s in steps] == [1, 2]
    for s in steps:
        assert s["learner/tokens/sights:Guess"] > 50 and s["learner/grad_norm"] > 0
        # Rounding of sums, as for the text beside it. Inputs of experts are not rounded here: a last bit may cross a
        # step of MXFP8, which is 0.01 in a log-prob, for text and images alike.
        for env in ("sights:Guess", "primer/count"):
            assert s[f"learner/logp_diff_mean/{env}"] < 2e-6 and s[f"learner/logp_diff_max/{env}"] < 5e-5, s


def test_images_are_in_the_log_once_and_by_hash(run: Path) -> None:
    rows = TrajectoryReader(run).rows(["conversation"])
    shown = {m["content"][0]["image"] for r in rows for m in r["conversation"] if not isinstance(m["content"], str)}
    assert shown and shown == {f.stem for f in (run / "images").iterdir()}
    assert max(t for _, ids, _ in TrajectoryReader(run).sampled() for t in ids) < 512, "no mark of an image was sampled"


def test_what_sees_was_trained(run: Path) -> None:
    first, last = (Masters(run / "checkpoints" / f"step_{n:06d}") for n in (0, 2))
    names = ("vision_tower.patch_embed.proj.weight", "mm_projector.proj.0.weight")
    for name in names:
        assert (first.read(name) - last.read(name)).abs().max() > 1e-6, name
    assert architecture("tiny", vision="tiny").vision is not None
