"""A run killed at random and resumed equals the straight one: groups, seeds, ids, weights; nothing lost or doubled."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import chaos_driver
import pytest

from rewards.grade import Grade, GradeStatus
from rl import loop, runfiles
from rl.errors import UserError
from rl.ledger import GroupState, Ledger
from rollout.store import TrajectoryReader

DRIVER = Path(__file__).with_name("chaos_driver.py")
ROOT = DRIVER.parents[2]
STEPS = 24


def start(run_dir: Path, staleness: int) -> subprocess.Popen:
    command = [sys.executable, str(DRIVER), str(run_dir), str(STEPS), str(staleness)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env.pop("COVERAGE_PROCESS_CONFIG", None)  # the same loop runs in this process too
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(run_dir: Path, staleness: int) -> None:
    process = start(run_dir, staleness)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out


def books(run_dir: Path) -> dict[str, tuple]:
    ledger = Ledger(run_dir / "ledger.jsonl")
    ledger.close()
    return {
        e.id: (str(e.state), e.step, e.reason, e.order["task"]["id"], e.order["effort"], tuple(e.order["seeds"]))
        for e in ledger.entries.values()
    }


def lines(run_dir: Path) -> int:
    """Of its ledger, so far."""
    ledger = run_dir / "ledger.jsonl"
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def kill_at_random(run_dir: Path, staleness: int, kills: int, rng: random.Random) -> Counter[str]:
    """Kill -9 the driver up to `kills` times, then let it finish.

    Returns the newest checkpoint at each kill, counted. One attempt in four lives less than a second, in its imports;
    the others until the ledger has grown by up to half of the straight run's lines, and a moment longer. A run that was
    quicker than its killer is over.
    """
    hit: Counter[str] = Counter()
    whole = lines(run_dir.parent / "straight")
    while hit.total() < kills:
        process = start(run_dir, staleness)
        if rng.random() < 0.25:
            time.sleep(rng.uniform(0.0, 1.0))
        else:
            enough = lines(run_dir) + rng.uniform(0.0, 0.5) * whole
            while process.poll() is None and lines(run_dir) < enough:
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 0.05))
        if process.poll() is not None:
            process.communicate()
            break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        folders = sorted(p.name for p in (run_dir / "checkpoints").glob("step_*"))
        hit[folders[-1] if folders else "before the first checkpoint"] += 1
    finish(run_dir, staleness)
    return hit


def last_rows(run_dir: Path, label: str) -> list[dict]:
    lines = (run_dir / f"evaluations/{label}.jsonl").read_text().splitlines()[-36:]
    return [{**json.loads(line), "attempt": 0} for line in lines]


def test_twenty_kills_change_nothing(tmp_path: Path) -> None:
    finish(tmp_path / "straight", 0)
    want = books(tmp_path / "straight")
    rng = random.Random(1)
    hit: Counter[str] = Counter()
    runs = 0
    while hit.total() < 20:
        run = tmp_path / f"killed{runs}"
        runs += 1
        hit += kill_at_random(run, 0, 20 - hit.total(), rng)
        assert books(run) == want
        assert (run / "weights.json").read_text() == (tmp_path / "straight" / "weights.json").read_text()
        for label in ("before", "after"):
            assert last_rows(run, label) == last_rows(tmp_path / "straight", label)
    assert len(hit) >= 3, f"the kills must fall into different parts of the run: {hit}"


def test_an_evaluation_that_was_killed_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "Cluster", loop.Cluster)  # the driver puts its own there
    whole = loop.Run.evaluate

    def killed(run: loop.Run, label: str, *how: Any, **more: Any) -> Any:
        if label == "step_12":  # where a checkpoint was just written, too
            raise KeyboardInterrupt
        return whole(run, label, *how, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Run, "evaluate", killed)
        chaos_driver.main(tmp_path, STEPS, 0)
    chaos_driver.main(tmp_path, STEPS, 0)
    labels = {path.stem for path in (tmp_path / "evaluations").iterdir()}
    assert labels == {"calibration", "before", "after", *(f"step_{step}" for step in range(4, STEPS, 4))}


def test_held_out_tasks_steer_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose held-out answers are all long and wrong draws and trains what any other does."""
    monkeypatch.setattr(loop, "Cluster", loop.Cluster)
    play = chaos_driver.PlayedScheduler.play

    def poor(self: Any, order: Any, i: int) -> Any:
        t = play(self, order, i)
        if "/test/" in order.task.id:
            t.nodes *= 20
            t.grade = Grade.outcome(False)
        return t

    chaos_driver.main(tmp_path / "any", 8, 0)
    monkeypatch.setattr(chaos_driver.PlayedScheduler, "play", poor)
    chaos_driver.main(tmp_path / "poor", 8, 0)
    assert books(tmp_path / "any") == books(tmp_path / "poor")
    assert (tmp_path / "any" / "weights.json").read_text() == (tmp_path / "poor" / "weights.json").read_text()
    for label, split in (("calibration", "train"), ("before", "test"), ("after", "test")):
        rows = runfiles.evaluation(tmp_path / "poor", label)
        assert {r["split"] for r in rows} == {split} and len(rows) == (18 if split == "train" else 36)
    assert max(r["tokens"] for r in runfiles.evaluation(tmp_path / "poor", "before")) > 50
    kinds = [e["event"] for e in runfiles.read(tmp_path / "poor" / "events.jsonl") if "label" in e]
    assert kinds == ["calibration", "evaluation", "evaluation", "evaluation"]


def test_a_step_that_moved_the_policy_too_far_is_an_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "Cluster", loop.Cluster)
    far = lambda self, batch, step: {"learner/kl": 0.0, "learner/step_kl": {3: 0.5, 4: math.nan}.get(step, 0.01)}
    monkeypatch.setattr(chaos_driver.PlayedLearners, "train", far)
    chaos_driver.main(tmp_path, 6, 0)
    alerts = [e["message"] for e in runfiles.read(tmp_path / "events.jsonl") if e["event"] == "alert"]
    assert alerts == [
        f"step {step} moved the policy by a KL of {kl} per token" for step, kl in ((3, "0.5"), (4, "nan"))
    ]


@pytest.mark.parametrize("staleness", [1, 2])
def test_a_resumed_asynchronous_run_draws_and_shapes_what_the_straight_one_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staleness: int
) -> None:
    """Where groups finish in a fixed order, the step at which a run is killed shows nowhere in its books or weights.

    The price ramps in over steps 2 to 7: a group that waited there is priced as when it finished.
    """
    monkeypatch.setattr(loop, "Cluster", loop.Cluster)
    whole, saved = chaos_driver.PlayedLearners.train, loop.checkpoint.save
    pending: list[tuple[int, int]] = []

    def save(root: Path, step: int, write: Any, state: dict, keep: int) -> Path:
        buffer = state["collector"]["buffer"]
        pending.append((len(buffer["waiting"]), len(buffer["started"])))
        return saved(root, step, write, state, keep)

    monkeypatch.setattr(loop.checkpoint, "save", save)
    chaos_driver.main(tmp_path / "straight", STEPS, staleness, orderly=True)
    assert all(map(any, zip(*pending, strict=True))), "at every checkpoint nothing waits, or nothing is in flight"
    for step in (4, 7, 19, 22):
        run = tmp_path / f"killed{step}"

        def killed(learners: Any, batch: Any, at: int, step: int = step) -> dict[str, float]:
            if at == step:
                raise KeyboardInterrupt
            return whole(learners, batch, at)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(chaos_driver.PlayedLearners, "train", killed)
            chaos_driver.main(run, STEPS, staleness, orderly=True)
        chaos_driver.main(run, STEPS, staleness, orderly=True)
        assert books(run) == books(tmp_path / "straight")
        assert (run / "weights.json").read_text() == (tmp_path / "straight" / "weights.json").read_text()


@pytest.mark.parametrize("staleness", [2])
def test_an_asynchronous_run_loses_and_doubles_nothing(tmp_path: Path, staleness: int) -> None:
    finish(tmp_path / "straight", staleness)
    kill_at_random(tmp_path / "killed", staleness, 6, random.Random(2))
    ledger = Ledger(tmp_path / "killed" / "ledger.jsonl")
    ledger.close()
    trained = [e for e in ledger.entries.values() if e.state is GroupState.TRAINED]
    assert Counter(e.step for e in trained) == {step: 6 for step in range(STEPS)}
    assert sum(ledger.counts().values()) == len(ledger.entries)
    numbers = sorted(int(id[1:]) for id in ledger.entries)
    assert numbers == list(range(len(numbers))), "no group of the mixture's stream is missing"


def test_a_ledger_that_lost_lines_is_continued_from_the_checkpoint_that_fits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "Cluster", loop.Cluster)
    chaos_driver.main(tmp_path / "straight", 8, 0)
    run = tmp_path / "cut"

    def killed(learners: Any, batch: Any, at: int) -> dict[str, float]:
        if at == 6:
            raise KeyboardInterrupt
        return {"learner/kl": 0.0, "learner/step_kl": 0.01} | whole(learners, batch, at)

    whole = chaos_driver.PlayedLearners.train
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(chaos_driver.PlayedLearners, "train", killed)
        chaos_driver.main(run, 8, 0)
    ledger, newest = run / "ledger.jsonl", sorted((run / "checkpoints").glob("step_*"))[-1]
    lines = ledger.read_bytes().splitlines(keepends=True)
    last = loop.checkpoint.load_state(newest)["ledger_seq"]
    ledger.write_bytes(b"".join(lines[: last - 1]))
    chaos_driver.main(run, 8, 0)
    skipped = [e["reason"] for e in runfiles.read(run / "events.jsonl") if e["event"] == "checkpoint_skipped"]
    assert skipped == [f"{newest} is at ledger line {last}, the ledger has only {last - 1}"]
    assert books(run) == books(tmp_path / "straight")
    ledger.write_bytes(b"no line\n" + b"".join(lines[:5]))
    with pytest.raises(UserError, match=r"line 1 is not readable.*put back a whole ledger"):
        chaos_driver.main(run, 8, 0)


def test_a_run_without_its_checkpoints_says_that_it_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "Cluster", loop.Cluster)
    chaos_driver.main(tmp_path, 6, 0)
    for folder in (tmp_path / "checkpoints").glob("step_*"):
        (folder / "manifest.json").unlink()
    chaos_driver.main(tmp_path, 6, 0)
    alerts = [e["message"] for e in runfiles.read(tmp_path / "events.jsonl") if e["event"] == "alert"]
    assert alerts == ["no checkpoint is left of the 6 steps that were done: the run begins again"]


def test_when_a_run_ends_every_group_is_trained_or_retired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "Cluster", loop.Cluster)
    chaos_driver.main(tmp_path, 8, 2, orderly=True)
    states = Counter((state, reason) for state, _, reason, *_ in books(tmp_path).values())
    assert {state for state, _ in states} == {"trained", "retired"}
    assert states["retired", "run_ended"] > 0


def test_an_environment_without_grades_is_an_alert_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "Cluster", loop.Cluster)
    play = chaos_driver.PlayedScheduler.play

    def broken(self: Any, order: Any, i: int) -> Any:
        t = play(self, order, i)
        if (
            order.task.environment == bad and "/train/" in order.task.id and "/-" not in order.task.id
        ):  # not calibration
            t.grade = Grade.failed(GradeStatus.GRADER_ERROR, "boom")
        return t

    chaos_driver.main(tmp_path / "fine", 2, 0)
    bad = TrajectoryReader(tmp_path / "fine").rows(["environment"])[0]["environment"]
    assert not [e for e in runfiles.read(tmp_path / "fine" / "events.jsonl") if e["event"] == "alert"]
    monkeypatch.setattr(chaos_driver.PlayedScheduler, "play", broken)
    chaos_driver.main(tmp_path / "bad", 8, 0)
    alerts = [e["message"] for e in runfiles.read(tmp_path / "bad" / "events.jsonl") if e["event"] == "alert"]
    assert len(alerts) == 1 and alerts[0].startswith(f"{bad}: none of ") and alerts[0].endswith("boom")
