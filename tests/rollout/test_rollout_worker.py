"""Laws of one group: limits, masks, malformed calls, faults of engine, environment and grader; no Ray, no torch."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError
from worlds import Blocking, Broken, Echo, Handle, Looking, ScriptedEngine, call, not_ready, order, right, say

from environments.task import Limits
from rewards.efforts import Effort
from rewards.grade import GradeStatus
from rl.batch import trainable
from rl.config import Config
from rollout.engine import router
from rollout.episode import turn_seed
from rollout.trajectory import NO_ROUTE, Group, GroupOrder, StopReason, Trajectory
from rollout.worker import RolloutWorker


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are down are asked again soon."""
    monkeypatch.setattr(router, "_DOWN_S", 0.05)
    monkeypatch.setattr(router, "_POLL_S", 0.01)


def config(**rollout: Any) -> Config:
    c = Config()
    c.engine.request_timeout_s = rollout.pop("request_timeout_s", 5.0)
    c.engine.max_context = rollout.pop("max_context", 8192)
    c.rollout.group_timeout_s = rollout.pop("group_timeout_s", 20.0)
    c.rollout.enough = rollout.pop("enough", 0)
    return c


def run(o: GroupOrder, *engines: ScriptedEngine, **how: Any) -> Group:
    async def go() -> Group:
        handles = {f"engine{i}": Handle(e) for i, e in enumerate(engines)}
        worker = RolloutWorker(config(**how), handles, "w0")
        group = await worker.run_group(o)
        assert (await worker.ping())["groups"] == {}
        return group

    return asyncio.run(go())


def check(t: Trajectory, engine: ScriptedEngine) -> None:
    """What holds for every trajectory: masks, versions, and the ids that the engine was asked with."""
    for n in t.nodes:
        sampled = n.sampling is not None
        assert (n.loss_mask == sampled).all() and (n.versions == (engine.version if sampled else -1)).all()
        assert sampled or not n.logprobs.any()
    assert t.segments == [0]


def test_one_request_serves_the_first_turn_of_a_group() -> None:
    engine = ScriptedEngine(lambda turn, seed: say("a b" if seed % 2 else "b"))
    o = order(Echo, n=4, answer="b")
    group = run(o, engine)
    assert len(engine.asked) == 1 and len(engine.asked[0].sampling) == 4
    assert [t.id for t in group.trajectories] == ["g0/0", "g0/1", "g0/2", "g0/3"]
    assert [t.grade.reward for t in group.trajectories if t.grade] == [1.0, 0.0, 1.0, 0.0]
    for i, t in enumerate(group.trajectories):
        check(t, engine)
        assert t.stop is StopReason.DONE and t.conversation[-1]["content"] == ("b" if i % 2 == 0 else "a b")
        prompt = engine.chat.render_prompt(list(o.task.prompt), [], str(o.effort))
        assert t.nodes[0].token_ids.tolist() == prompt and t.nodes[1].sampling is not None
        assert t.nodes[1].sampling.seed == o.seeds[i] and t.nodes[1].sampling.stop_ids == engine.chat.stop_ids


def test_the_sampled_ids_are_the_trajectory_though_their_text_would_encode_otherwise() -> None:
    chat = ScriptedEngine(right).chat
    whole = chat.encode_assistant(say("a b", thinking="the letters"))
    apart = next(
        ([*whole[:i], *pieces, *whole[i + 1 :]] for i, t in enumerate(whole) if len(pieces := split(chat, t)) > 1), None
    )
    assert apart is not None and chat.decode(apart) == chat.decode(whole) and apart != whole
    (t,) = run(order(n=1), ScriptedEngine(lambda turn, seed: apart)).trajectories
    assert t.nodes[1].token_ids.tolist() == apart


def split(chat: Any, token: int) -> list[int]:
    """Other ids with the same text, or the token itself."""
    text = chat.decode([token])
    by_text = {chat.decode([i]): i for i in range(chat.vocab_size)}
    for cut in range(1, len(text)):
        if text[:cut] in by_text and text[cut:] in by_text:
            return [by_text[text[:cut]], by_text[text[cut:]]]
    return [token]


def test_a_conversation_only_grows_and_goes_back_to_its_engine() -> None:
    def script(turn: int, seed: int) -> Any:
        return say("", call("look", {"place": f"p{turn}"})) if turn < 2 else say("done")

    engines = [ScriptedEngine(script), ScriptedEngine(script)]
    group = run(order(Looking, n=2), *engines)
    for t in group.trajectories:
        check(t, engines[0])
        assert [n.role for n in t.nodes] == ["prompt", "assistant", "tool", "assistant", "tool", "assistant"]
        assert t.stop is StopReason.DONE and t.turns == 3
        assert [m["role"] for m in t.conversation[1:]] == ["assistant", "tool"] * 2 + ["assistant"]
        seeds = [n.sampling.seed for n in t.nodes if n.sampling]
        assert seeds == [turn_seed(seeds[0], k) for k in range(3)] and len(set(seeds)) == 3
    used = [e for e in engines if e.asked]
    assert len(used) == 1  # its state is kept there
    for r in used[0].asked[1:]:
        t = group.trajectories[int(r.id.split("/")[1][0])]
        turn = int(r.id.split(".")[1][0])
        assert r.prompt_ids.tolist() == np.concatenate([n.token_ids for n in t.nodes[: 2 * turn + 1]]).tolist()
        assert r.keep


@pytest.mark.parametrize("bad", ['{"cmd": "ls', "[1,2]", "null", '"ls"', "3"])
def test_malformed_arguments_are_answered_and_not_run(bad: str) -> None:
    calls_of = {
        0: [call("look", bad, 0), call("look", {"place": "x"}, 1), call("fly", {}, 2), call("look", {"depth": 1}, 3)],
        1: [call("look", bad)],
        2: [
            call("look", {"place": 3}),
            call("look", {"place": "y", "depth": True}, 1),
            call("look", {"q": 1, "place": "z"}, 2),
        ],
    }
    Looking.calls = []
    (t,) = run(
        order(Looking, n=1, limits=Limits(9, 900, 5.0)),
        ScriptedEngine(lambda turn, seed: say("", *calls_of[turn]) if turn < 3 else say("end")),
    ).trajectories
    assert Looking.calls == [{"place": "x"}]
    tools = [m for m in t.conversation if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in tools] == [
        "look:0",
        "look:1",
        "fly:2",
        "look:3",
        "look:0",
        "look:0",
        "look:1",
        "look:2",
    ]
    assert [m["content"].startswith("error: ") for m in tools] == [True, False, True, True, True, True, True, True]
    assert t.stop is StopReason.DONE and t.grade is not None and t.grade.valid
    assert t.conversation[1]["tool_calls"][1]["arguments"] == {"place": "x"}  # the message keeps its calls


def test_garbage_ends_in_a_grade_not_in_an_error() -> None:
    rng = np.random.default_rng(0)
    for env in (Echo, Looking):
        engine = ScriptedEngine(
            lambda turn, seed: [*rng.integers(0, 512, 9).tolist(), ScriptedEngine(right).chat.end_id]
        )
        for t in run(order(env, n=6), engine).trajectories:
            assert t.stop is not StopReason.ERROR and t.grade is not None and t.grade.reward == 0.0


@pytest.mark.parametrize("effort", list(Effort))
def test_the_task_limit_cuts_at_every_effort(effort: Effort) -> None:
    whole = order(n=1, limits=Limits(1, 7, 5.0))
    (t,) = run(replace(whole, effort=effort), ScriptedEngine(right)).trajectories
    assert t.stop is StopReason.TOKENS and t.stop.truncated and t.output_tokens == 7
    assert t.grade is not None and t.grade.reward == 0.0


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_an_answer_that_was_cut_off_failed_even_if_it_can_be_read(missing: int) -> None:
    engine = ScriptedEngine(right)
    (whole_one,) = run(order(n=1, answer="a b"), engine).trajectories
    assert whole_one.grade is not None and whole_one.grade.solved
    whole = len(whole_one.nodes[-1])
    (t,) = run(order(n=1, answer="a b", limits=Limits(1, whole - missing, 5.0)), engine).trajectories
    assert t.stop is StopReason.TOKENS and t.grade is not None
    assert t.grade.reward == 0.0 and t.grade.evidence == {"truncated": "tokens"}


def test_two_dispatches_of_one_group_may_meet_on_one_worker() -> None:
    """A late group is dispatched again; where only its first worker has room, that one runs both."""

    async def go() -> tuple[list[Group], dict]:
        worker = RolloutWorker(config(), {"engine0": Handle(ScriptedEngine(right))}, "w0")
        groups = await asyncio.gather(worker.run_group(order()), worker.run_group(order(), 2))
        return groups, (await worker.ping())["groups"]

    groups, left = asyncio.run(go())
    assert [g.dispatches for g in groups] == [1, 2] and left == {}
    assert all(t.stop is StopReason.DONE for g in groups for t in g.trajectories)


def test_tokens_are_counted_over_the_turns() -> None:
    engine = ScriptedEngine(lambda turn, seed: say("", call("look", {"place": "a"})))
    turn = len(engine.chat.encode_assistant(say("", call("look", {"place": "a"}))))
    (t,) = run(order(Looking, n=1, limits=Limits(9, 2 * turn, 5.0)), engine).trajectories
    assert t.stop is StopReason.TOKENS and t.output_tokens == 2 * turn and t.turns == 2
    (t,) = run(order(Looking, n=1, limits=Limits(9, 2 * turn + 1, 5.0)), engine).trajectories
    assert t.stop is StopReason.TOKENS and t.output_tokens == 2 * turn + 1 and t.turns == 3
    assert engine.asked[-1].sampling[0].max_tokens == 1


def test_turn_limit() -> None:
    engine = ScriptedEngine(lambda turn, seed: say("", call("look", {"place": "a"})))
    (t,) = run(order(Looking, n=1, limits=Limits(3, 900, 5.0)), engine).trajectories
    assert t.stop is StopReason.TURNS and not t.stop.truncated and t.turns == 3
    assert t.nodes[-1].role == "assistant"  # nothing is rendered that no one will answer


@pytest.mark.parametrize("extra", range(0, 60, 7))
def test_an_assembled_sequence_never_exceeds_the_context(extra: int) -> None:
    engine = ScriptedEngine(lambda turn, seed: say("", call("look", {"place": "a"})))
    o = order(Looking, n=1, limits=Limits(50, 5000, 5.0))
    first = len(engine.chat.render_prompt(list(o.task.prompt), Looking().tools(o.task), "high"))
    limit = first + 60 + extra
    engine.max_context = limit
    (t,) = run(o, engine, max_context=limit).trajectories
    assert t.stop is StopReason.CONTEXT and len(t.column("token_ids")) <= limit
    assert all(len(r.prompt_ids) < limit for r in engine.asked)


@pytest.mark.parametrize(
    "fault,stop,status",
    [
        ("step", StopReason.ERROR, GradeStatus.INFRA_ERROR),
        ("hang_step", StopReason.SECONDS, GradeStatus.CORRECT),
        ("grade", StopReason.DONE, GradeStatus.GRADER_ERROR),
        ("hang_grade", StopReason.DONE, GradeStatus.GRADER_TIMEOUT),
        ("type", StopReason.DONE, GradeStatus.GRADER_ERROR),
    ],
)
def test_faults_of_environment_and_grader_mask_the_sample(fault: str, stop: StopReason, status: GradeStatus) -> None:
    for t in run(order(Broken, answer=fault), ScriptedEngine(right)).trajectories:
        assert t.stop is stop and t.grade is not None and t.grade.status is status
        assert t.grade.valid == (status is GradeStatus.CORRECT)
        assert t.output_tokens > 0  # what was sampled is still there to read


@pytest.mark.parametrize("where", ["grade", "step"])
def test_code_that_blocks_takes_its_own_environment_down_and_no_other(where: str) -> None:
    async def go() -> tuple[Group, Group]:
        worker = RolloutWorker(config(), {"engine0": Handle(ScriptedEngine(lambda turn, seed: say("b")))}, "w0")
        blocked = asyncio.ensure_future(worker.run_group(order(Blocking, n=3, answer=where)))
        await asyncio.sleep(0.1)
        other = await worker.run_group(replace(order(n=3, answer="b"), id="g1"))
        assert not blocked.done(), "the other group waited for the one that blocks"
        return await blocked, other

    blocked, other = asyncio.run(go())
    assert [t.grade.solved for t in other.trajectories if t.grade] == [True] * 3
    for t in blocked.trajectories:
        assert t.grade is not None and t.grade.status is GradeStatus.BLOCKED and not t.grade.valid
        assert t.error is not None and "worlds:Blocking: its code did not yield for 3 s" in t.error
    again = run(order(Blocking, n=2, answer="no"), ScriptedEngine(right))
    assert all(t.grade and t.grade.solved for t in again.trajectories), "a new thread serves the environment"


def test_a_lost_engine_is_replaced_by_another_once() -> None:
    def die(request: Any) -> None:
        raise ActorDiedError()

    dead, alive = ScriptedEngine(right, die), ScriptedEngine(right)
    group = run(order(n=3), dead, alive)
    assert all(t.grade is not None and t.grade.valid for t in group.trajectories) and len(alive.asked) == 1
    group = run(order(n=3), ScriptedEngine(right, die), ScriptedEngine(right, die))
    for t in group.trajectories:
        assert t.stop is StopReason.ERROR and t.grade is not None and t.grade.status is GradeStatus.INFRA_ERROR
        assert "engine0" in str(t.error) and "engine1" in str(t.error)


def test_an_engine_without_weights_is_left_alone_until_it_has_some() -> None:
    waiting = ScriptedEngine(right, not_ready)
    group = run(order(n=2), waiting, ScriptedEngine(right))
    assert all(t.grade is not None and t.grade.valid for t in group.trajectories)
    waiting.fault = lambda r: not_ready(r) if len(waiting.asked) < 4 else None
    assert all(t.grade is not None and t.grade.valid for t in run(order(n=2), waiting).trajectories)
    group = run(order(n=2), ScriptedEngine(right, not_ready), request_timeout_s=0.3)
    assert {t.stop for t in group.trajectories} == {StopReason.ERROR}
    assert "no engine of engine0 usable" in str(group.trajectories[0].error)


def test_a_late_engine_is_named_and_told_to_stop() -> None:
    engine = ScriptedEngine(right, delay_s=30.0)
    group = run(order(n=2), engine, request_timeout_s=0.2)
    assert {t.stop for t in group.trajectories} == {StopReason.ERROR}
    assert "engine0 did not answer" in str(group.trajectories[0].error)
    assert engine.aborted == {engine.asked[0].id}


def test_answers_with_columns_of_different_length_are_refused() -> None:
    class Short(ScriptedEngine):
        async def generate(self, request: Any) -> Any:
            out = await super().generate(request)
            object.__setattr__(out[0], "logprobs", out[0].logprobs[:-1])
            return out

    (t,) = run(order(n=1), Short(right)).trajectories
    assert t.stop is StopReason.ERROR and "lengths" in str(t.error) and t.output_tokens == 0


def test_a_straggler_is_cut_and_its_siblings_are_kept() -> None:
    engine = ScriptedEngine(right, delay_s=60.0)  # gives back finished samples of even seed when it is aborted
    group = run(order(Echo, n=4, answer="a b"), engine, group_timeout_s=4.0)
    assert [t.stop for t in group.trajectories] == [StopReason.DONE, StopReason.ABORTED] * 2
    assert [t.grade is not None and t.grade.valid for t in group.trajectories] == [True, False] * 2


def with_straggler(request: Any) -> Any:
    """A fault: the sample of seed 103 takes for ever."""
    return asyncio.sleep(60) if any(s.seed == 103 for s in request.sampling) else None


@pytest.mark.parametrize("env", [Echo, Looking])
def test_a_group_is_complete_when_enough_are_graded_and_says_what_it_dropped(env: type[Echo]) -> None:
    engine = ScriptedEngine(right, with_straggler)
    group = run(order(env, n=4), engine, enough=3, group_timeout_s=40.0)
    assert [t.stop for t in group.trajectories] == [StopReason.DONE] * 3 + [StopReason.SPARE]
    assert [t.grade is not None and t.grade.valid for t in group.trajectories] == [True] * 3 + [False]
    assert not trainable(group.trajectories[3]) and engine.aborted, "the engine was told to stop"
    assert len(engine.asked) == 4 and {len(r.sampling) for r in engine.asked} == {1}


def test_a_sample_without_a_valid_grade_does_not_count_towards_enough() -> None:
    group = run(order(Broken, n=4, answer="grade"), ScriptedEngine(right), enough=2)
    assert [t.stop for t in group.trajectories] == [StopReason.DONE] * 4
    assert {t.grade.status for t in group.trajectories if t.grade} == {GradeStatus.GRADER_ERROR}


def test_evaluation_waits_for_all_samples_and_by_default_training_does() -> None:
    slow = lambda r: asyncio.sleep(0.5) if any(s.seed == 101 for s in r.sampling) else None
    for purpose, enough, asked in (("eval", 1, 1), ("train", 0, 1), ("train", 4, 1), ("train", 2, 4)):
        engine = ScriptedEngine(right, slow)
        group = run(order(n=4, purpose=purpose), engine, enough=enough)
        spare = sum(t.stop is StopReason.SPARE for t in group.trajectories)
        assert len(engine.asked) == asked and (spare >= 1) == (asked == 4), (purpose, enough)


def test_samples_that_ask_by_themselves_ask_one_engine() -> None:
    engines = [ScriptedEngine(right, with_straggler) for _ in range(3)]
    run(order(n=4), *engines, enough=3)
    assert sorted(len(e.asked) for e in engines) == [0, 0, 4], "its states of their prompt are there"


def test_an_aborted_group_comes_back_ungraded() -> None:
    async def go() -> Group:
        engine = ScriptedEngine(right, fault=lambda r: asyncio.sleep(60))
        worker = RolloutWorker(config(group_timeout_s=2.0, request_timeout_s=1.0), {"e": Handle(engine)}, "w0")
        task = asyncio.ensure_future(worker.run_group(order(n=2)))
        await asyncio.sleep(0.1)
        assert list((await worker.ping())["groups"]) == ["g0"]
        assert await worker.abort("g0") and not await worker.abort("other")
        return await task

    for t in asyncio.run(go()).trajectories:
        assert t.stop is StopReason.ABORTED and t.grade is None


def test_requests_go_to_the_engine_with_the_least_outstanding() -> None:
    async def go() -> list[int]:
        engines = [ScriptedEngine(right, delay_s=0.2) for _ in range(3)]
        worker = RolloutWorker(config(), {f"e{i}": Handle(e) for i, e in enumerate(engines)}, "w0")
        await asyncio.gather(*(worker.run_group(order(id=f"g{i}", n=2)) for i in range(9)))
        return [len(e.asked) for e in engines]

    assert asyncio.run(go()) == [3, 3, 3]


def test_the_same_order_gives_the_same_trajectory_on_every_worker() -> None:
    def script(turn: int, seed: int) -> Any:
        return say("", call("look", {"place": f"p{seed % 7}"})) if (seed + turn) % 3 else say(f"end {seed % 5}")

    rows = []
    for name, offset in (("w0", 0), ("w7.3", 1)):

        async def go(name: str = name, offset: int = offset) -> Group:
            handles = {f"e{i}": Handle(ScriptedEngine(script, delay_s=0.05 * i)) for i in range(2)}
            return await RolloutWorker(config(), handles, name, offset).run_group(order(Looking, n=4))

        group = asyncio.run(go())
        rows.append([{k: v for k, v in t.to_json().items() if k != "seconds"} for t in group.trajectories])
    assert rows[0] == rows[1]


def test_routes_and_picks_align_with_all_tokens() -> None:
    def script(turn: int, seed: int) -> Any:
        return say("", call("look", {"place": "a"})) if turn < 2 else say("done")

    (t,) = run(order(Looking, n=1), ScriptedEngine(script, routes=True)).trajectories
    at = 0
    for i, n in enumerate(t.nodes):
        assert n.routes is not None and len(n.routes) == len(n)
        want = 1000 * ((i + 1) // 2 - (n.role == "assistant")) + np.arange(at, at + len(n))
        if n.role == "assistant":
            want[-1] += 1000  # the last token of a turn is run in the next one
        if i == len(t.nodes) - 1:
            want[-1] = NO_ROUTE
        np.testing.assert_array_equal(n.routes[:, 0, 0], want)  # as they were when the tokens were sampled
        assert n.picks is not None
        np.testing.assert_array_equal(n.picks[:, 0, 0], np.where(np.arange(at, at + len(n)) < 3, NO_ROUTE, want))
        at += len(n)


def test_an_unknown_environment_is_an_error_not_a_sample() -> None:
    o = order()
    bad = GroupOrder("g", type(o.task)(**{**o.task.__dict__, "environment": "worlds/nothing"}), o.effort, (1,))
    with pytest.raises(ValueError, match="unknown environment"):
        run(bad, ScriptedEngine(right))


def test_a_worker_imports_no_torch() -> None:
    code = "import sys, rollout.worker, rollout.scheduler, model.chat; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
