"""Law: a real run leaves out what the controls name, says so, and evaluates it apart before and after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forbidden import Locks, Mixed

from rl import runfiles
from rollout.store import TrajectoryReader

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
KEPT = {"primer/reverse", "forbidden:Mixed"}
APART = 12
KEYS = [
    "steps=2",
    "seed=3",
    "run.name=controlled",
    "evaluation=quick",
    "learner=one_rank",
    "rollout.workers=1",
    "envs.names=[primer/reverse,forbidden:Locks,forbidden:Mixed]",
    "envs.levels=[1]",
    "envs.refuse_failing=false",  # of the check; what a run does with what it found is tried elsewhere
    "algorithm.group_size=4",
    "algorithm.groups_per_step=8",
    "controls.exclude_tags=[cyber]",
    f"controls.evaluate_excluded={APART}",
    "logging.wandb.mode=disabled",
    "logging.progress=false",
    *(f"evaluation.{key}=12" for key in ("tasks", "during_tasks", "calibration_tasks")),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "rl.cli", "train", f"run.root={root}", *KEYS]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    here = Path(__file__).parent  # where `forbidden` is, as an environment of one's own is where one stands
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "evaluated only, left out by controls.exclude_tags" in done.stdout
    return root / "controlled"


def rows(run: Path, label: str) -> list[dict[str, Any]]:
    return runfiles.evaluation(run, label)


def tagged(task_id: str) -> bool:
    """Whether a task of ours has the tag, found again from its id."""
    name, split, level, index, seed = task_id.rsplit("/", 4)
    env = {"forbidden:Locks": Locks(), "forbidden:Mixed": Mixed()}.get(name)
    if env is None:
        return False
    env.id = name
    return "cyber" in env.task(split, int(index), int(level), int(seed)).tags


def test_the_audit_says_what_was_left_out_and_why(run: Path) -> None:
    whole, part = json.loads((run / "controls.json").read_text())
    assert whole == {"id": "forbidden:Locks", "reason": "has the excluded tag 'cyber'"}
    assert part["id"] == "forbidden:Mixed" and "'cyber'" in part["reason"] and part["tasks"] >= 1


def test_no_rollout_and_no_ledger_line_is_of_what_is_excluded(run: Path) -> None:
    rolled = TrajectoryReader(run).rows(["environment", "task_id"])
    assert len(rolled) == 2 * 8 * 4 and {row["environment"] for row in rolled} == KEPT
    assert not any(tagged(row["task_id"]) for row in rolled)
    planned = [line["order"]["task"] for line in runfiles.read(run / "ledger.jsonl") if "order" in line]
    assert {task["environment"] for task in planned} == KEPT and not any("cyber" in t["tags"] for t in planned)
    assert all(not key.endswith("Locks") for step in runfiles.metrics(run) for key in step)


def test_the_excluded_family_is_evaluated_apart_before_and_after(run: Path) -> None:
    before, after = rows(run, "excluded_before"), rows(run, "excluded_after")
    for found in (before, after):
        assert {r["environment"] for r in found} == {"forbidden:Locks"} and len(found) == APART
        assert {r["split"] for r in found} == {"test"} and all(tagged(r["task_id"]) for r in found)
        assert all(r["reward"] in (0.0, 1.0) for r in found)
    assert [r["task_id"] for r in before] == [r["task_id"] for r in after]
    assert {r["environment"] for r in rows(run, "before")} == KEPT
    mean = [sum(r["reward"] for r in found) / APART for found in (before, after)]
    summary = json.loads((run / "summary.json").read_text())
    effect = summary["excluded"]["sampled"]["forbidden:Locks"]
    assert effect["gain"] == pytest.approx(mean[1] - mean[0])
    assert effect["low"] <= effect["gain"] <= effect["high"]
    assert not any("Locks" in scope for scope in summary["change"]["sampled"])
    told = [e for e in runfiles.read(run / "events.jsonl") if e["event"] == "excluded"]
    assert [e["label"] for e in told] == ["excluded_before", "excluded_after"]
    assert [e["excluded/sampled/solve/forbidden:Locks"] for e in told] == pytest.approx(mean)
