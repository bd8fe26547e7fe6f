"""Laws of the router: a request is served once, where its beginning is kept, and nobody idles beside a crowd."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError
from worlds import Handle, ScriptedEngine, right

from rollout.engine import router as module
from rollout.engine.base import Carried, GenerateRequest, Generation, StateMissing
from rollout.engine.router import EngineError, EngineRouter
from rollout.trajectory import Sampling

STATE = Carried((3, b"key"), 40, "fixed", ((0, 40, "grown"),))


class Keeper(ScriptedEngine):
    """Holds no state but what a request brings; its states can be carried out of it."""

    def __init__(self, holds: bool = False, **how: Any) -> None:
        super().__init__(right, **how)
        self.holds = holds
        self.given: list[Carried | None] = []
        self.exports: list[tuple[Any, int]] = []
        self.export_state = _Split(self)

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        self.given.append(request.carried)
        if request.carried is not None and not request.carried.grown and not self.holds:
            raise StateMissing("none is kept")
        return [replace(g, kept=(3, request.id.encode())) for g in await super().generate(request)]


class _Split:
    """An actor's method with three results."""

    def __init__(self, engine: Keeper) -> None:
        self.engine, self.length = engine, 0

    def options(self, num_returns: int) -> _Split:
        assert num_returns == 3
        return self

    def remote(self, key: Any, have: int) -> tuple[Awaitable[int], str, str]:
        self.engine.exports.append((key, have))

        async def n() -> int:
            return self.length

        return n(), f"fixed of {key}", f"grown from {have}"


class Keeping(Handle):
    """A handle of a Keeper."""

    def __getattr__(self, name: str) -> Any:
        return self.target.export_state if name == "export_state" else super().__getattr__(name)


def ask(id: str, n: int = 1) -> GenerateRequest:
    return GenerateRequest(id, np.arange(5, dtype=np.int32), tuple(Sampling(1.0, 50, i) for i in range(n)))


def dead(request: GenerateRequest) -> None:
    raise ActorDiedError()


def run(go: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(go(), 60.0)

    return asyncio.run(bounded())


def router(*engines: ScriptedEngine, **how: Any) -> EngineRouter:
    return EngineRouter({f"engine{i}": Keeping(e) for i, e in enumerate(engines)}, 20.0, **how)


def test_a_lost_request_is_served_by_another_engine_exactly_once() -> None:
    async def go() -> None:
        a, b = ScriptedEngine(right, fault=dead), ScriptedEngine(right)
        r = router(a, b)
        name, (g,) = await r.generate(ask("x"), prefer="engine0")
        assert name == "engine1" and len(g.token_ids) and r.counts["engine_lost"] == 1
        assert [q.id for q in b.asked] == ["x"] and len(a.asked) == 1
        # Lost twice it is an error, not a third try.
        both = router(ScriptedEngine(right, fault=dead), ScriptedEngine(right, fault=dead), ScriptedEngine(right))
        both._outstanding["engine2"] = 1
        with pytest.raises(EngineError, match="lost engine engine0 and then engine engine1"):
            await both.generate(ask("y"))

    run(go)


def test_turns_stay_where_their_beginning_is_kept_until_it_is_crowded_there() -> None:
    async def go() -> None:
        engines = [ScriptedEngine(right, delay_s=0.5) for _ in range(2)]
        r = router(*engines)
        few = [r.generate(ask(f"a{i}"), prefer="engine1") for i in range(module._MORE)]
        assert {name for name, _ in await asyncio.gather(*few)} == {"engine1"} and not engines[0].asked
        # A hundred that all prefer one engine: the other one has work as well, and neither has all but a few.
        many = [r.generate(ask(f"b{i}"), prefer="engine1") for i in range(100)]
        names = [name for name, _ in await asyncio.gather(*many)]
        here, there = names.count("engine1"), names.count("engine0")
        assert here <= module._CROWDED * there + module._MORE + 1 and here > there > 0
        assert r.counts["moved"] == there and r.outstanding() == {"engine0": 0, "engine1": 0}

    run(go)


def test_an_engine_that_left_gets_nothing_new_and_finishes_what_it_has() -> None:
    async def go() -> None:
        a, b = ScriptedEngine(right, delay_s=1.0), ScriptedEngine(right)
        r = router(a, b)
        flying = asyncio.ensure_future(r.generate(ask("old"), prefer="engine0"))
        await asyncio.sleep(0.05)
        r.update({"engine1": Keeping(b)})
        assert (await r.generate(ask("new"), prefer="engine0"))[0] == "engine1"
        assert r.outstanding() == {"engine1": 0, "engine0": 1}
        await r.abort("old")  # reaches it there
        assert (await flying)[0] == "engine0" and "old" in a.aborted and r.outstanding() == {"engine1": 0}
        assert [q.id for q in a.asked] == ["old"] and [q.id for q in b.asked] == ["new"]
        c = ScriptedEngine(right)
        r.update({"engine1": Keeping(b), "engine2": Keeping(c)})
        r._outstanding["engine1"] = 1
        assert (await r.generate(ask("third")))[0] == "engine2" and [q.id for q in c.asked] == ["third"]
        with pytest.raises(ValueError, match="at least one"):
            r.update({})

    run(go)


def test_a_state_is_named_first_and_sent_only_where_it_is_missing() -> None:
    async def go() -> None:
        a, b = Keeper(holds=True), Keeper()
        r = router(a, b)
        await r.generate(ask("x"), "engine0", STATE)
        assert [(c.key, c.grown) for c in a.given if c] == [(STATE.key, ())] and not r.counts["carried"]
        name, _ = await r.generate(ask("y"), "engine1", STATE)
        assert name == "engine1" and not a.asked[1:] and r.counts["carried"] == 1
        assert [c is STATE for c in b.given] == [False, True]
        assert r.outstanding() == {"engine0": 0, "engine1": 0}
        # The engine that held it dies: another one is told the same.
        a.fault, b.holds = dead, True
        assert (await r.generate(ask("z"), "engine0", STATE))[0] == "engine1" and r.counts["carried"] == 1

    run(go)


def test_a_state_is_carried_when_enough_was_added_and_each_token_once() -> None:
    async def go() -> None:
        a = Keeper()
        r = router(a, carry_tokens=10)
        (g,) = (await r.generate(ask("x")))[1]
        assert await r.carry("engine0", g, 9, None) is None and not a.exports
        a.export_state.length = 25
        first = await r.carry("engine0", g, 25, None)
        assert first is not None and first.length == 25 and first.grown == ((0, 25, "grown from 0"),)
        assert await r.carry("engine0", g, 34, first) is first  # nine more are not worth it
        a.export_state.length = 40
        more = await r.carry("engine0", g, 40, first)
        assert more is not None and more.grown == (*first.grown, (25, 40, "grown from 25"))
        # New weights: nothing of what was carried counts.
        a.export_state.length = 50
        other = await r.carry("engine0", replace(g, kept=(4, b"new")), 50, more)
        assert other is not None and other.grown == ((0, 50, "grown from 0"),)
        # It is not kept any more, or nothing is kept at all: what was carried before stays.
        a.export_state.length = 0
        assert await r.carry("engine0", replace(g, kept=(4, b"gone")), 70, other) is other
        assert await r.carry("engine0", replace(g, kept=None), 90, other) is other
        assert r.counts["carry_failed"] == 1 and [have for _, have in a.exports] == [0, 25, 0, 50]
        assert await router(a).carry("engine0", g, 10**6, None) is None  # carry_tokens 0: never

    run(go)


def test_long_prompts_are_read_apart_and_short_ones_are_not() -> None:
    async def go() -> None:
        reader, decoder = Keeper(), Keeper()
        reader.export_state.length = 5
        r = router(reader, decoder, carry_tokens=5, readers=frozenset({"engine0"}))
        name, _ = await r.generate(ask("long", n=2))
        assert name == "engine1" and r.counts["read_apart"] == 1
        assert [(q.id, q.hand_over, [s.max_tokens for s in q.sampling]) for q in reader.asked] == [
            ("long/read", True, [1])
        ]
        assert decoder.given[-1] is not None and decoder.given[-1].key == (3, b"long/read")
        short = GenerateRequest("short", np.arange(4, dtype=np.int32), (Sampling(1.0, 50, 1),))
        assert (await r.generate(short))[0] == "engine1" and len(reader.asked) == 1
        # A reader that dies costs the reading alone; and readers do all when nobody else is left.
        reader.fault = dead
        assert (await r.generate(ask("again")))[0] == "engine1" and r.counts["read_failed"] == 1
        reader.fault, r._down = None, {}
        r.update({"engine0": Keeping(reader)})
        assert (await r.generate(ask("alone")))[0] == "engine0"

    run(go)
