"""Laws of the scheduler on a real cluster: a killed worker is noticed, no group is lost, doubled, or waits for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from worlds import Deadly, Echo, Files, Looking, ScriptedEngine, order, right

from rl.config import Config
from rollout import scheduler as module
from rollout.scheduler import RolloutError, Scheduler
from rollout.trajectory import Group, GroupOrder, StopReason

Make = Callable[..., Scheduler]

# What a helper process would need 60 s for is a failure here.
LIMIT_S = 60.0


def actor(cls: type, *args: Any) -> Any:
    return ray.remote(cls).options(num_cpus=0, max_concurrency=1000).remote(*args)


class Stuck(ScriptedEngine):
    """Never answers, and cannot be told to stop."""

    async def generate(self, request: Any) -> Any:
        await asyncio.sleep(3600)

    async def abort(self, request_id: str) -> bool:
        return False


@pytest.fixture(scope="module")
def engines(ray_cluster: None) -> Iterator[dict[str, Any]]:
    """Scripted engines by temper, shared by the tests: starting a process is what costs time here."""
    made = {
        "quick": actor(ScriptedEngine, right),
        "slow": actor(ScriptedEngine, right, None, 1.5),
        "stuck": actor(Stuck, right),
    }
    yield made
    for engine in made.values():
        ray.kill(engine)


@pytest.fixture
def make(engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes schedulers whose workers are up; closes them."""
    monkeypatch.setattr(module, "_PING_S", 0.5)
    started: list[Scheduler] = []

    def build(workers: int = 2, engine: str = "quick", **how: Any) -> Scheduler:
        config = Config()
        config.rollout.workers = workers
        config.rollout.group_timeout_s = how.pop("group_timeout_s", 30.0)
        config.rollout.episodes_per_worker = how.pop("episodes_per_worker", 512)
        config.engine.max_context = 4096
        told: list[dict[str, Any]] = []
        s = Scheduler(config, {"engine0": engines[engine]}, tell=told.append, **how)
        s.told = told  # type: ignore[attr-defined]
        started.append(s)
        s.submit([order(id="first")] if engine == "quick" else [])
        end = time.monotonic() + LIMIT_S
        while not all(w.life for w in s._workers) and time.monotonic() < end:
            s._collect(0.1)
            s._attend()
        if engine == "quick":
            settle(s)
        s.counts.clear()
        return s

    yield build
    for s in started:
        s.close()


def settle(s: Scheduler) -> tuple[list[Group], list[tuple[GroupOrder, str]]]:
    """Everything that was submitted, finished or lost."""
    groups, lost, end = [], [], time.monotonic() + LIMIT_S
    while s.outstanding and time.monotonic() < end:
        groups += s.completed(1.0)
        lost += s.lost()
    assert not s.outstanding, s.who_holds_what()
    return groups, lost


def kinds(s: Scheduler) -> list[str]:
    return [e["event"] for e in s.told]  # type: ignore[attr-defined]


def test_every_group_comes_back_once_and_as_it_would_elsewhere(make: Make) -> None:
    orders = [order(Looking if i % 2 else Echo, id=f"g{i}", n=3, index=i) for i in range(12)]
    rows = []
    for workers in (2, 1):
        s = make(workers)
        s.submit(orders)
        with pytest.raises(ValueError, match="already"):
            s.submit(orders[:1])
        groups, lost = settle(s)
        assert not lost and sorted(g.order.id for g in groups) == sorted(o.id for o in orders)
        if workers == 2:
            assert {g.worker for g in groups} == {"worker0", "worker1"}
        rows.append({g.order.id: [strip(t.to_json()) for t in g.trajectories] for g in groups})
    assert rows[0] == rows[1]
    assert s.stats()["rollout/finished"] == 12 and s.stats()["rollout/running_groups"] == 0


def strip(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k != "seconds"}


def test_a_worker_holds_no_more_episodes_than_it_may(make: Make) -> None:
    s = make(1, "slow", episodes_per_worker=4)
    s.submit([order(id=f"g{i}", n=2) for i in range(7)] + [order(id="large", n=9)])
    now = s.stats()
    assert now["rollout/running_episodes"] == 4 and now["rollout/queued"] == 6
    groups, lost = settle(s)
    assert len(groups) == 8 and not lost  # the large one too: it got a worker of its own


def test_a_killed_worker_is_noticed_and_its_groups_run_elsewhere(make: Make, tmp_path: Path) -> None:
    s = make(2, "slow")
    orders = [order(id=f"g{i}", n=2) for i in range(6)]
    s.submit(orders)
    victim = s._workers[0]
    assert len(victim.groups) == 3
    os.kill(victim.life["pid"], signal.SIGKILL)
    killed = time.monotonic()
    while not s.counts["worker_lost"]:
        s.completed(0.2)
        assert time.monotonic() - killed < LIMIT_S, "a dead worker was not noticed"
    groups, lost = settle(s)
    assert not lost and s.counts["redispatched"] == 3
    assert s.counts["finished"] == 6 and [w.name for w in s._workers] == ["worker0.1", "worker1"]
    done = {g.order.id: g for g in groups}
    for g in done.values():
        assert [t.stop for t in g.trajectories] == [StopReason.DONE] * 2
    assert sum(g.dispatches == 2 for g in done.values()) == 3
    events = s.told
    assert [e["event"] for e in events].count("redispatched") == 3
    assert next(e for e in events if e["event"] == "worker_lost")["groups"] == ["g0", "g2", "g4"]


def test_the_death_of_an_idle_worker_is_noticed_too(make: Make) -> None:
    s = make(2, "stuck")
    s.submit([order(id="held")])
    idle = next(w for w in s._workers if not w.groups)
    os.kill(idle.life["pid"], signal.SIGKILL)
    killed = time.monotonic()
    while not s.counts["worker_lost"]:
        assert not s.completed(0.2)
        assert time.monotonic() - killed < LIMIT_S, "a dead worker was not noticed"
    assert s.counts["redispatched"] == 0


def test_a_group_that_kills_its_workers_is_quarantined(make: Make, tmp_path: Path) -> None:
    s = make(1)
    s.submit([order(Deadly, id="bad", n=1, answer=str(tmp_path), info={"kills": 99})])
    groups, lost = settle(s)
    assert not groups and lost[0][0].id == "bad" and lost[0][1].startswith("quarantined: it lost 3 workers")
    assert len(list(tmp_path.iterdir())) == 3 and s.counts["worker_lost"] == 3
    s.submit([order(id="good")])
    assert len(settle(s)[0]) == 1  # the run goes on


def test_a_group_that_was_lost_once_is_whole_afterwards(make: Make, tmp_path: Path) -> None:
    s = make(2)
    s.submit([order(Deadly, id="once", n=1, answer=str(tmp_path), info={"kills": 1}), order(id="other")])
    groups, lost = settle(s)
    assert not lost and sorted(g.order.id for g in groups) == ["once", "other"]
    (once,) = [g for g in groups if g.order.id == "once"]
    assert once.trajectories[0].grade is not None and once.trajectories[0].grade.solved


def test_a_group_beyond_its_deadline_is_dispatched_once_more_and_then_retired(make: Make) -> None:
    # Workers keep a softer deadline themselves; one that does not is what the scheduler's is for.
    s = make(1, "stuck", group_timeout_s=1.0, spawn=lambda name, index: actor(Deaf))
    s.submit([order(id="late"), order(id="later")])
    groups, lost = settle(s)
    assert not groups and {o.id for o, _ in lost} == {"late", "later"}
    assert all(r.startswith("deadline: 2 dispatches of 1 s") for _, r in lost)
    assert s.counts["dispatched"] == 4 and s.counts["redispatched"] == 2 and s.counts["retired"] == 2
    assert kinds(s).count("retired") == 2 and not s.lost()


class Deaf:
    """A worker that answers pings and nothing else."""

    async def run_group(self, order: GroupOrder, dispatch: int) -> None:
        await asyncio.sleep(3600)

    async def abort(self, group_id: str) -> bool:
        return False

    async def ping(self) -> dict[str, Any]:
        return {"pid": os.getpid()}


def test_a_frozen_worker_is_replaced(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = make(1)
    pid = s._workers[0].life["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        s.submit([order(id="b")])
        monkeypatch.setattr(module, "_SILENT_S", 1.0)
        while not s.counts["worker_lost"]:
            s.completed(0.5)
        monkeypatch.setattr(module, "_SILENT_S", 60.0)
        groups, lost = settle(s)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [g.order.id for g in groups] == ["b"] and not lost and "no answer for" in s.told[0]["reason"]


def test_a_worker_that_does_not_answer_gets_no_further_groups(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    s = make(1)
    pid = s._workers[0].life["pid"]
    monkeypatch.setattr(module, "_LATE_S", 0.5)
    os.kill(pid, signal.SIGSTOP)
    try:
        end = time.monotonic() + module._PING_S + 2
        s.submit([order(id="first")])
        while time.monotonic() < end:
            s.completed(0.5)
        before = s.counts["dispatched"]
        s.submit([order(id="second")])
        s.completed(0.5)
        assert s.counts["dispatched"] == before
    finally:
        os.kill(pid, signal.SIGCONT)
    groups, lost = settle(s)
    assert {g.order.id for g in groups} == {"first", "second"} and not lost


def test_when_nothing_moves_the_watchdog_says_who_holds_what(make: Make) -> None:
    s = make(1, "stuck", group_timeout_s=3.0)
    s.submit([order(id="held", n=2)])
    groups, lost = settle(s)
    text = next(e["text"] for e in s.told if e["event"] == "stalled")
    assert "worker0" in text and "held (worlds:Echo)" in text and "1 running" in text
    # The worker cut its episodes itself, before the scheduler's deadline, and gave back what there was.
    assert [t.stop for t in groups[0].trajectories] == [StopReason.ABORTED] * 2 and not lost


def test_errors_of_the_configuration_are_raised(make: Make) -> None:
    s = make(1)
    bad = order(id="bad")
    object.__setattr__(bad.task, "environment", "worlds/nothing")
    with pytest.raises(ValueError, match="unknown environment"):
        s.submit([bad])
    s.submit([order(Files, id="no store")])
    with pytest.raises(ValueError, match="needs a sandbox, and this worker has no folder"):
        settle(s)


def test_workers_that_keep_dying_end_the_run(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_REPLACEMENTS", 1)
    s = make(1)
    s.submit([order(Deadly, id="bad", n=1, answer=str(tmp_path), info={"kills": 99})])
    with pytest.raises(RolloutError, match=r"2 workers were lost \(environments that all .*: worlds:Deadly\)"):
        settle(s)


def test_engines_without_the_version_are_named(make: Make) -> None:
    s = make(1)
    assert list(s.stale_engines(4)) == ["engine0"] and not s.stale_engines(3)
