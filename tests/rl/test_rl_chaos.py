"""A real run, with its engine, worker, learner and sandboxes: killed, resumed, and killed where it hurts again."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.chaos import SETTINGS, Attempt, audit, in_flight
from rl import runfiles
from rollout.store import TrajectoryReader

SMALL = (
    *SETTINGS,
    "steps=2",
    "evaluation.every=0",
    "evaluation.calibration_tasks=6",
    "evaluation.tasks=6",
    "evaluation.greedy=false",
    "engine.replicas=1",
    "rollout.workers=1",
    "learner.ranks=1",
    "learner.expert_parallel=1",
)
LIMIT_S = 200.0
"""What takes longer hangs."""


def test_a_killed_driver_and_a_killed_worker_cost_nothing_but_time(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    first = Attempt(run_dir, settled(SMALL))
    try:
        first.wait_for("ledger.jsonl", '"dispatched"', LIMIT_S)
        assert runfiles.status(run_dir) is runfiles.Status.RUNNING
        first.end(signal.SIGKILL)  # it raises if a process of the run is left
    finally:
        first.process.kill()
    assert runfiles.status(run_dir) is runfiles.Status.STOPPED
    second = Attempt(run_dir)
    try:
        began = time.time()
        second.wait_for("attempts.jsonl", '"attempt": 2', LIMIT_S)
        patience = time.monotonic() + LIMIT_S
        while not (turns := in_flight(run_dir, began)):
            assert second.process.poll() is None and time.monotonic() < patience, second.tail()
            time.sleep(0.005)
        (worker,) = second.titled("ray::RolloutWorker")
        worker.kill()
        second.finish(LIMIT_S)
        second.gone()
    finally:
        second.process.kill()
    assert turns and audit(run_dir) == []

    events = runfiles.read(run_dir / "events.jsonl")
    (lost,) = [e for e in events if e["event"] == "worker_lost"]
    again = Counter(e["group"] for e in events if e["event"] == "redispatched")
    assert lost["groups"] and again == Counter(lost["groups"]), "each of its groups once more"
    orders: dict[str, list] = {}
    for line in (run_dir / "ledger.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["event"] == "planned":
            orders.setdefault(row["group"], []).append(row["order"])
    assert all(o == some[0] for some in orders.values() for o in some), "planned again, a group is the same"
    rows = TrajectoryReader(run_dir).rows(["environment", "group", "error"])
    assert {r["error"] for r in rows} == {None}
    assert any(r["environment"].startswith("workshop/") for r in rows if r["group"] in again)


def test_a_request_to_end_ends_everything_and_can_be_resumed(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "run", settled(SMALL))
    try:
        attempt.wait_for("events.jsonl", '"started"', LIMIT_S)
        while not attempt.titled("ray::"):
            assert attempt.process.poll() is None, attempt.tail()
            time.sleep(0.1)
        attempt.end(signal.SIGTERM)
    finally:
        attempt.process.kill()
    assert attempt.process.returncode == 130, attempt.tail()
    assert runfiles.status(tmp_path / "run") is runfiles.Status.STOPPED
    assert runfiles.read(tmp_path / "run" / "events.jsonl")[-1]["event"] == "interrupted"


def settled(settings: tuple[str, ...]) -> tuple[str, ...]:
    """The last value of every key: a repeated key is an error."""
    return tuple({word.partition("=")[0]: word for word in settings}.values())


pytestmark = pytest.mark.timeout(600)
