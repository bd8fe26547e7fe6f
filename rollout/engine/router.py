"""Which engine serves a request: the one with the least outstanding sequences; another one, once, if it is lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rollout.engine.base import EngineNotReady, GenerateRequest, Generation

_DOWN_S = 5.0
"""An engine that was lost or has no weights is asked again after this time (it restarts and is given weights)."""

_POLL_S = 0.1
"""Pause between two looks for a usable engine while none is."""


class EngineError(RuntimeError):
    """No engine served a request; the message names the engine. The sample is masked, never scored 0."""


class EngineRouter:
    """Spreads requests of one worker over engine handles (`handle.generate.remote(request)` gives an awaitable).

    timeout_s: seconds until a request, or the search for a usable engine, is an error. `offset` decides ties, so that
    several workers do not all begin with the same engine.
    """

    def __init__(self, engines: Mapping[str, Any], timeout_s: float, offset: int = 0) -> None:
        if not engines:
            raise ValueError("a router needs at least one engine")
        names = sorted(engines)
        offset %= len(names)
        self._engines = {name: engines[name] for name in names[offset:] + names[:offset]}
        self._timeout_s = timeout_s
        self._outstanding = dict.fromkeys(self._engines, 0)
        self._down: dict[str, float] = {}
        self.counts: Counter[str] = Counter()

    async def generate(self, request: GenerateRequest, prefer: str | None = None) -> tuple[str, list[Generation]]:
        """The engine that served the request, and what it sampled.

        `prefer` names the engine that holds the sequence's state from an earlier turn. Raises EngineError if the engine
        does not answer in time, or a second engine is lost on the same request; ValueError if the prompt does not fit.
        """
        lost: str | None = None
        deadline = time.monotonic() + self._timeout_s
        while True:
            name = await self._choose(prefer, request.id, deadline)
            self._outstanding[name] += len(request.sampling)
            try:
                out = await asyncio.wait_for(_call(self._engines[name].generate, request), self._timeout_s)
            except TimeoutError:
                self.counts["engine_timeout"] += 1
                self._engines[name].abort.remote(request.id)
                raise EngineError(
                    f"engine {name} did not answer request {request.id} in {self._timeout_s:.0f} s"
                ) from None
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
                return name, out
            finally:
                self._outstanding[name] -= len(request.sampling)

    async def abort(self, request_id: str) -> None:
        """Tell every engine to stop this request; the caller gets what was sampled with FinishReason.ABORT."""
        calls = [_call(engine.abort, request_id) for engine in self._engines.values()]
        await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), self._timeout_s)

    def outstanding(self) -> dict[str, int]:
        """Sequences that each engine is generating for this worker."""
        return dict(self._outstanding)

    def down(self) -> list[str]:
        """Engines that were lost or have no weights, and are left alone for the moment."""
        now = time.monotonic()
        return [name for name, until in self._down.items() if until > now]

    def lightest(self) -> str | None:
        """The usable engine with the least outstanding sequences; None if none is usable."""
        down = self.down()
        up = [name for name in self._engines if name not in down]
        return min(up, key=self._outstanding.__getitem__) if up else None

    async def _choose(self, prefer: str | None, request_id: str, deadline: float) -> str:
        while True:
            if prefer in self._engines and prefer not in self.down():
                return prefer
            if lightest := self.lightest():
                return lightest
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


async def _call(method: Any, *args: Any) -> Any:
    return await method.remote(*args)


def _is_loss(error: BaseException) -> bool:
    from ray.exceptions import RayActorError, WorkerCrashedError

    return isinstance(error, (RayActorError, WorkerCrashedError))
