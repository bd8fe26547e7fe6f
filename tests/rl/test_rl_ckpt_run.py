"""A run of two learner ranks that starts from an exported MXFP4 folder: what it trains is what is stored there, and
after kill -9 it goes on without that folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.chaos import Attempt
from model.checkpoint import Checkpoint, verify
from model.stored import is_expert, layout
from rl import checkpoint, cli, runfiles
from rl.learner.masters import Masters

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "assets" / "tiny.safetensors"
SETTINGS = (
    "+experiment=smoke",
    "steps=2",
    "envs.names=[primer/addition]",
    "algorithm.groups_per_step=12",
    "algorithm.max_sampling_rounds=1",
    "algorithm.dynamic_sampling=false",
    "learner.lr=1e-6",  # so little that the weights are known by sight afterwards
    *(f"evaluation.{key}=6" for key in ("calibration_tasks", "tasks", "during_tasks")),
    "logging.checkpoint_every=1",
    "logging.progress=false",
    "logging.wandb.mode=disabled",
)


def apart(folder: Path, want: Checkpoint) -> float:
    """Largest |difference| of the experts in a run's checkpoint from those of an exported folder."""
    masters, names = Masters(folder), [n for n in layout(want.config, "fp32") if is_expert(n)]
    return max(float((masters.read(n) - want.read(n)).abs().max()) for n in names)


def test_a_run_starts_from_an_exported_folder_and_resumes_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, exact, run = tmp_path / "the start ä", tmp_path / "exact", tmp_path / "runs" / "from_export"
    assert cli.main(["ckpt", "export", str(START), str(start)]) == 0
    assert cli.main(["ckpt", "export", str(START), str(exact), "--format", "fp32"]) == 0
    stored, original = Checkpoint(start), Checkpoint(exact)

    attempt = Attempt(run, (*SETTINGS, f'policy.init="{start}"'))
    attempt.wait_for("metrics.jsonl", "learner/grad_norm", 300)
    attempt.end()
    said = next(e for e in runfiles.read(run / "events.jsonl") if e["event"] == "processes")
    experts = [rank["experts"] for rank in said["learners"]]
    assert experts == [[0, 4], [4, 8]]
    folder, _ = checkpoint.latest(run / "checkpoints")
    assert folder is not None and apart(folder, stored) < 1e-4
    assert apart(folder, original) > 1e-2, "rounding to MXFP4 moves a weight by more than this run does"

    shutil.rmtree(start)  # what a run goes on from is its own checkpoint
    Attempt(run).finish(300)
    steps = runfiles.metrics(run)
    assert [s["step"] for s in steps] == [0, 1]
    for s in steps:
        assert s["learner/tokens"] > 0 and s["learner/grad_norm"] > 0, "the step trained nothing"
        # A mean: an input on the border of two MXFP8 codes may part one token's log-probs by more.
        assert s["learner/logp_diff_mean"] <= 1e-3, "the engine samples from other weights than the learner trains"

    assert cli.main(["ckpt", "export", str(run), str(tmp_path / "again")]) == 0
    assert verify(tmp_path / "again").format == "mxfp4"
    assert "Traceback" not in capsys.readouterr().err
