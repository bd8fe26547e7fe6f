"""Which engine serves a request: the one that holds its beginning, else the least busy; another one, once, if it dies.

Engines come and go (`update`). An episode's state goes with it where it was carried out of its engine (`carry`): then
the next engine goes on from it, and reads nothing again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollout.engine.base import Carried, EngineNotReady, GenerateRequest, Generation, StateMissing

if TYPE_CHECKING:
    from rl.config import Config

_DOWN_S = 5.0
"""An engine that was lost or has no weights is asked again after this time (it restarts and is given weights)."""

_POLL_S = 0.1
"""Pause between two looks for a usable engine while none is."""

_CROWDED = 2
_MORE = 16
"""The engine that holds a request's beginning is preferred as long as it generates at most `_CROWDED` times as many
sequences as the least busy one, and `_MORE`: up to there its steps take about as long, and nothing is read again."""


class EngineError(RuntimeError):
    """No engine served a request; the message names the engine. The sample is masked, never scored 0."""


class EngineRouter:
    """Spreads requests of one worker over engine handles (`handle.generate.remote(request)` gives an awaitable).

    timeout_s: seconds until a request, or the search for a usable engine, is an error. `offset` decides ties, so that
    several workers do not all begin with the same engine. carry_tokens: a state is carried out of its engine when so
    many tokens would have to be read again without it; 0: never. readers: engines that only read prompts of so many
    tokens, for others to decode; they do all if no others are left.
    """

    def __init__(
        self,
        engines: Mapping[str, Any],
        timeout_s: float,
        offset: int = 0,
        carry_tokens: int = 0,
        readers: frozenset[str] = frozenset(),
    ) -> None:
        self._offset, self._timeout_s, self._carry_tokens, self._readers = offset, timeout_s, carry_tokens, readers
        self._engines: dict[str, Any] = {}
        self._known: dict[str, Any] = {}
        """All that there ever were: one that leaves may be finishing a request, and holds its state."""
        self._outstanding: Counter[str] = Counter()
        self._down: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        self.update(engines)

    def update(self, engines: Mapping[str, Any]) -> None:
        """Send requests to these engines alone from now on; what is at others is waited for.

        Raises ValueError if there are none.
        """
        if not engines:
            raise ValueError("a router needs at least one engine")
        names = sorted(engines)
        at = self._offset % len(names)
        self._engines = {name: engines[name] for name in names[at:] + names[:at]}
        self._known |= self._engines

    async def generate(
        self, request: GenerateRequest, prefer: str | None = None, carried: Carried | None = None
    ) -> tuple[str, list[Generation]]:
        """The engine that served the request, and what it sampled.

        `prefer` names the engine that holds the sequence's state from an earlier turn; `carried` is that state outside
        of it. Raises EngineError if the engine does not answer in time, or a second engine is lost on the same request;
        ValueError if the prompt does not fit.
        """
        if prefer is None and carried is None and self._carry_tokens:
            carried = await self._read(request)
        asked = request if carried is None else replace(request, carried=carried.named())
        lost: str | None = None
        deadline = time.monotonic() + self._timeout_s
        while True:
            name = await self._choose(prefer, request.id, deadline)
            engine = self._engines[name]
            self._outstanding[name] += len(request.sampling)
            try:
                async with asyncio.timeout(self._timeout_s):  # wait_for may lose a cancellation until Python 3.12
                    out = await _call(engine.generate, asked)
            except TimeoutError:
                self.counts["engine_timeout"] += 1
                engine.abort.remote(request.id)
                raise EngineError(
                    f"engine {name} did not answer request {request.id} in {self._timeout_s:.0f} s"
                ) from None
            except StateMissing:
                self.counts["carried"] += 1
                asked, prefer = replace(request, carried=carried), name
            except EngineNotReady:
                self.counts["engine_not_ready"] += 1
                self._down[name] = time.monotonic() + _DOWN_S
            except Exception as e:
                if not _is_loss(e):
                    raise
                self.counts["engine_lost"] += 1
                self._down[name] = time.monotonic() + _DOWN_S
                if lost is not None:
                    raise EngineError(f"request {request.id} lost engine {lost} and then engine {name}") from e
                lost = name
            else:
                self._check(name, request, out)
                if prefer is not None and name != prefer:
                    self.counts["moved"] += 1
                return name, out
            finally:
                self._outstanding[name] -= len(request.sampling)

    async def carry(self, engine: str, generation: Generation, length: int, before: Carried | None) -> Carried | None:
        """The state at the end of a generation, where it is worth carrying, else what was carried before it.

        engine: that which sampled it; length: tokens of the state. Nothing is waited for but the engine's answer that
        it has the state: its parts stay where they are. That an engine is lost meanwhile is no error: so is its state.
        """
        kept = generation.kept
        have = before.length if before is not None and kept is not None and before.key[0] == kept[0] else 0
        if kept is None or not self._carry_tokens or length - have < self._carry_tokens or engine not in self._known:
            return before
        method = self._known[engine].export_state.options(num_returns=3)
        n, fixed, grown = method.remote(kept, have)
        try:
            async with asyncio.timeout(self._timeout_s):
                tokens = await _value(n)
        except Exception as e:
            if not isinstance(e, TimeoutError) and not _is_loss(e):
                raise
            tokens = 0
        if not tokens:
            self.counts["carry_failed"] += 1
            return before
        older = before.grown if before is not None and have else ()
        return Carried(kept, tokens, fixed, (*older, (have, tokens, grown)))

    async def _read(self, request: GenerateRequest) -> Carried | None:
        """A long prompt read by an engine that only reads; None if there is none, or the prompt is short."""
        up = self._up() & self._readers
        if not up or up == self._up() or len(request.prompt_ids) < self._carry_tokens:
            return None
        name = min(up, key=self._outstanding.__getitem__)
        one = (replace(request.sampling[0], max_tokens=1),)
        ask = replace(request, id=f"{request.id}/read", sampling=one, keep=False, hand_over=True)
        self._outstanding[name] += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                (read,) = await _call(self._engines[name].generate, ask)
            self.counts["read_apart"] += 1
            return await self.carry(name, read, len(request.prompt_ids), None)
        except Exception as e:  # then whoever decodes it reads it too
            if not isinstance(e, (TimeoutError, EngineNotReady)) and not _is_loss(e):
                raise
            self._down[name] = time.monotonic() + _DOWN_S
            self.counts["read_failed"] += 1
            return None
        finally:
            self._outstanding[name] -= 1

    async def abort(self, request_id: str) -> None:
        """Tell every engine to stop this request; the caller gets what was sampled with FinishReason.ABORT."""
        names = {*self._engines, *(name for name, n in self._outstanding.items() if n)}
        calls = [_call(self._known[name].abort, request_id) for name in names]
        async with asyncio.timeout(self._timeout_s):
            await asyncio.gather(*calls, return_exceptions=True)

    def outstanding(self) -> dict[str, int]:
        """Sequences that each engine is generating for this worker."""
        return dict.fromkeys(self._engines, 0) | {name: n for name, n in self._outstanding.items() if n}

    def _up(self) -> set[str]:
        now = time.monotonic()
        return {name for name in self._engines if self._down.get(name, 0.0) <= now}

    def _serving(self) -> set[str]:
        """The usable engines that decode: those that only read are among them where no others are left."""
        up = self._up()
        return (up - self._readers) or up

    def down(self) -> list[str]:
        """Engines that were lost or have no weights, and are left alone for the moment."""
        up = self._up()
        return [name for name in self._engines if name not in up]

    def lightest(self) -> str | None:
        """The usable engine with the least outstanding sequences; None if none is usable."""
        serving = self._serving()
        return min((n for n in self._engines if n in serving), key=self._outstanding.__getitem__, default=None)

    async def _choose(self, prefer: str | None, request_id: str, deadline: float) -> str:
        while True:
            least = self.lightest()
            if least is not None:
                crowd = _CROWDED * self._outstanding[least] + _MORE
                if prefer in self._serving() and self._outstanding[prefer] <= crowd:
                    return prefer
                return least
            if time.monotonic() >= deadline:
                names = ", ".join(sorted(self._engines))
                raise EngineError(f"request {request_id}: no engine of {names} usable for {self._timeout_s:.0f} s")
            await asyncio.sleep(_POLL_S)

    @staticmethod
    def _check(name: str, request: GenerateRequest, out: list[Generation]) -> None:
        if len(out) != len(request.sampling):
            raise EngineError(
                f"engine {name} gave {len(out)} continuations of {request.id}, not {len(request.sampling)}"
            )
        for i, g in enumerate(out):
            lengths = {len(g.token_ids), len(g.logprobs), len(g.versions)}
            lengths |= {len(column) for column in (g.routes, g.picks) if column is not None}
            if len(lengths) != 1:
                raise EngineError(
                    f"engine {name}, sample {i} of {request.id}: token columns of lengths {sorted(lengths)}"
                )


def readers(config: Config) -> frozenset[str]:
    """Names of the engines that only read long prompts: the first `engine.readers` ones."""
    return frozenset(f"engine{i}" for i in range(config.engine.readers))


async def _call(method: Any, *args: Any) -> Any:
    return await method.remote(*args)


async def _value(reference: Any) -> Any:
    return await reference


def _is_loss(error: BaseException) -> bool:
    from ray.exceptions import RayActorError, WorkerCrashedError

    return isinstance(error, (RayActorError, WorkerCrashedError))
