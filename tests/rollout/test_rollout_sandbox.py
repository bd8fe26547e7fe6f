"""Laws of episodes in real sandboxes: state over turns and deaths, a verdict in a fresh place, nothing left behind."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from worlds import Files, Handle, ScriptedEngine, call, files_script, order, say

from environments.sandbox.api import SandboxUnavailable
from environments.sandbox.local import LocalSandboxes
from environments.task import Limits, Message
from rewards.grade import GradeStatus
from rl.config import Config
from rollout.episode import turn_seed
from rollout.scheduler import Scheduler
from rollout.store import EpisodeJournal
from rollout.trajectory import Group, GroupOrder, StopReason
from rollout.worker import RolloutWorker


def config() -> Config:
    c = Config()
    c.engine.max_context = 8192
    c.rollout.group_timeout_s = 120.0
    return c


def run(o: GroupOrder, engine: ScriptedEngine, store: Path, name: str = "run") -> Group:
    async def go() -> Group:
        worker = RolloutWorker(config(), {"e": Handle(engine)}, "w0", store=str(store), run=name)
        try:
            return await worker.run_group(o)
        finally:
            sandboxes = worker._sandboxes
            assert isinstance(sandboxes, LocalSandboxes)
            assert sandboxes.slots._value == config().sandbox.max_live, "a sandbox was not given back"
            await sandboxes.close()

    return asyncio.run(go())


def test_a_dropped_sample_gives_its_sandbox_back_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(turn: int, seed: int) -> Message:
        return say("", call("sh", {"cmd": "sleep 100"})) if seed == turn_seed(102, 1) else files_script(turn, seed)

    two = config()
    two.rollout.enough = 2
    monkeypatch.setattr(f"{__name__}.config", lambda: two)
    group = run(order(Files, n=3, answer="0"), ScriptedEngine(script), tmp_path)
    assert [t.stop for t in group.trajectories] == [StopReason.DONE] * 2 + [StopReason.SPARE]
    assert not list((tmp_path / "episodes").rglob("*.*"))


def test_files_persist_over_turns_and_the_verdict_sees_the_frozen_ones(tmp_path: Path) -> None:
    group = run(order(Files, n=2, answer="0"), ScriptedEngine(files_script), tmp_path)  # seeds 100 and 101
    assert [t.grade.reward for t in group.trajectories if t.grade] == [1.0, 0.0]
    for t in group.trajectories:
        assert t.stop is StopReason.DONE and t.turns == 4
        assert t.grade is not None and t.grade.evidence["files"].startswith("started\n1\naside\nlog\nout\n")
        snapshots = [n.snapshot for n in t.nodes if n.sampling]
        assert snapshots[0] == snapshots[1] != snapshots[2] == snapshots[3]  # half of the turns changed nothing
        assert all((tmp_path / "snapshots" / f"{s}.tar").exists() for s in snapshots)
        assert all(n.snapshot is None for n in t.nodes if not n.sampling)
    assert not list((tmp_path / "episodes").rglob("*.*"))


def test_the_sandbox_opens_while_the_first_turn_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = asyncio.Event()
    create = LocalSandboxes.create

    async def counted(*args: Any) -> Any:
        sandbox = await create(*args)
        opened.set()
        return sandbox

    class Waiting(ScriptedEngine):
        async def generate(self, request: Any) -> Any:
            await asyncio.wait_for(opened.wait(), 20)  # no turn is sampled before
            return await super().generate(request)

    monkeypatch.setattr(LocalSandboxes, "create", counted)
    (t,) = run(order(Files, n=1, answer="0"), Waiting(files_script), tmp_path).trajectories
    assert t.stop is StopReason.DONE and t.grade is not None and t.grade.reward == 1.0


def test_an_episode_that_is_cut_in_its_first_turn_gives_its_sandbox_back(tmp_path: Path) -> None:
    tokens = Limits(6, 1, 30.0)
    (t,) = run(order(Files, n=1, limits=tokens), ScriptedEngine(files_script), tmp_path).trajectories
    assert t.stop is StopReason.TOKENS and t.turns == 1 and all(n.snapshot is None for n in t.nodes)


def test_processes_of_the_agent_do_not_reach_the_verdict(tmp_path: Path) -> None:
    def script(turn: int, seed: int) -> Any:
        # A process that would write the answer while the verdict is given.
        return (
            say("", call("sh", {"cmd": "(sleep 0.3; printf 0 > out) >/dev/null 2>&1 &"})) if turn == 0 else say("done")
        )

    (t,) = run(order(Files, n=1, answer="0"), ScriptedEngine(script), tmp_path).trajectories
    assert t.grade is not None and t.grade.reward == 0.0


def test_an_episode_that_never_acted_is_judged_on_the_prepared_files(tmp_path: Path) -> None:
    (t,) = run(order(Files, n=1, answer="0"), ScriptedEngine(lambda turn, seed: say("done")), tmp_path).trajectories
    assert t.grade is not None and t.grade.reward == 0.0 and t.grade.evidence["files"] == "started\nlog\n"
    (t,) = run(
        order(Files, n=1, answer="0", limits=Limits(6, 3, 30.0)), ScriptedEngine(files_script), tmp_path
    ).trajectories
    assert t.stop is StopReason.TOKENS and t.grade is not None and t.grade.reward == 0.0


def test_a_command_beyond_the_wall_time_ends_the_episode_and_is_judged(tmp_path: Path) -> None:
    def script(turn: int, seed: int) -> Any:
        return say("", call("sh", {"cmd": "printf 0 > out; sleep 20.0417"}))

    (t,) = run(order(Files, n=1, answer="0", limits=Limits(6, 900, 1.5)), ScriptedEngine(script), tmp_path).trajectories
    assert t.stop is StopReason.SECONDS and t.grade is not None and t.grade.reward == 1.0


def test_no_sandbox_means_a_masked_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*args: Any) -> None:
        raise SandboxUnavailable("no user namespaces here: run the doctor")

    monkeypatch.setattr(LocalSandboxes, "create", refuse)
    (t,) = run(order(Files, n=1), ScriptedEngine(files_script), tmp_path).trajectories
    assert t.stop is StopReason.ERROR and t.grade is not None and t.grade.status is GradeStatus.INFRA_ERROR
    assert "run the doctor" in str(t.error) and t.output_tokens > 0
    (t,) = run(order(Files, n=1), ScriptedEngine(lambda turn, seed: say("done")), tmp_path).trajectories
    assert t.grade is not None and t.grade.status is GradeStatus.INFRA_ERROR


def test_an_episode_of_another_run_in_the_same_store_is_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs number their groups alike, and with one seed they have the same tasks."""

    def opened(name: str) -> int:
        engine = ScriptedEngine(files_script)
        run(order(Files, n=2, answer="0"), engine, tmp_path, name)
        return sum(len(r.sampling) for r in engine.asked if "/open" in r.id)

    monkeypatch.setattr(EpisodeJournal, "forget", lambda *_: None)  # as if the worker had died
    assert (opened("one"), opened("other"), opened("one")) == (2, 2, 0)


@pytest.fixture
def engine(ray_cluster: None) -> Iterator[Any]:
    handle = ray.remote(ScriptedEngine).options(num_cpus=0, max_concurrency=100).remote(files_script)
    yield handle
    ray.kill(handle)


def test_a_killed_workers_episode_goes_on_where_it_was(engine: Any, tmp_path: Path) -> None:
    c, die, restored = config(), tmp_path / "die", tmp_path / "restored"
    die.touch()
    c.rollout.workers = 2
    scheduler = Scheduler(c, {"e": engine}, store=tmp_path / "store", run="mine")
    done: list[Group] = []
    try:
        # The second turn of one episode kills the worker: both episodes are lost with it.
        scheduler.submit([order(Files, id="g", n=2, answer="0", info={"die": str(die), "restored": str(restored)})])
        end = time.monotonic() + 120
        while scheduler.outstanding and time.monotonic() < end:
            done += scheduler.completed(1.0)
        assert not scheduler.lost() and scheduler.counts["worker_lost"] == 1 and not die.exists()
    finally:
        scheduler.close()
    (group,) = done
    assert restored.read_bytes().startswith(b"started\n"), "an episode went on without its hook"
    assert group.dispatches == 2 and [t.grade.reward for t in group.trajectories if t.grade] == [1.0, 0.0]
    for t in group.trajectories:
        assert t.grade is not None and t.grade.evidence["files"].startswith("started\n1\naside\nlog\nout\n")
        assert t.stop is StopReason.DONE and t.turns == 4
    assert [p.name for p in (tmp_path / "store" / "episodes").iterdir()] == ["mine"]
    # Requests end in @worker.pid.attempt. The second dispatch began at most one episode from the start: the one that
    # killed its worker in its second turn had a whole turn behind it.
    asked = [(*id.split("@"), n) for id, n in ray.get(engine.requests.remote(), timeout=30)]
    first, second = asked[0][1], asked[-1][1]
    assert asked[0][0] == "g/open" and asked[0][2] == 2 and first != second
    assert sum(n for id, who, n in asked if who == second and id == "g/open") <= 1
    assert any(id.endswith(".1") for id, who, _ in asked if who == second)


def test_nothing_of_the_sandboxes_is_left_running() -> None:
    out = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, timeout=30).stdout
    assert "sleep 20.0417" not in out
