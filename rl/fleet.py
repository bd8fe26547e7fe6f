"""The engines of a run, which come and go: started, given the present weights, then asked; drained, then ended.

Nothing here waits for long: the loop goes on while an engine starts or finishes what it has, and calls `tend` now and
then. An engine that was killed is restarted by Ray under its handle and is given weights by the next push.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from rl.config import Config
from rl.errors import UserError
from rl.sync import Push, SyncError, push
from rollout.engine.actor import start_engine, start_engines

_START_S = 180.0
"""Deadline of a new engine's first answer: it imports torch on a busy machine."""

_IDLE = 2
"""Looks in a row at which a leaving engine has nothing to do, and is ended: a request may be on its way."""


@dataclass(eq=False)
class _Passing:
    """An engine that comes or leaves."""

    handle: Any
    answer: Any
    """Reference to its answer: to the ping of one that comes, to the statistics of one that leaves."""
    deadline: float
    idle: int = 0


class Fleet:
    """Knows which engine serves, comes or leaves; `announce(engines)` tells the workers whom to ask from now on.

    Use from one thread, that of the pushes: so no engine is announced with other weights than the present ones.
    """

    def __init__(self, config: Config, tell: Callable[[dict[str, Any]], object] = lambda event: None) -> None:
        self.config, self._tell = config, tell
        self.serving: dict[str, Any] = {}
        self.coming: dict[str, _Passing] = {}
        self.leaving: dict[str, _Passing] = {}
        self.pushed: Push | None = None
        self.announce: Callable[[Mapping[str, Any]], object] = lambda engines: None
        self._started = 0

    def start(self) -> dict[str, Any]:
        """Start `engine.replicas` engines and wait until they answer; they have no weights yet."""
        self.serving = start_engines(self.config, _START_S)
        self._started = len(self.serving)
        return self.serving

    def close(self) -> None:
        """Kill every engine."""
        for handle in (
            *self.serving.values(),
            *(one.handle for one in (*self.coming.values(), *self.leaving.values())),
        ):
            ray.kill(handle)
        self.serving, self.coming, self.leaving = {}, {}, {}

    def push(self, weights: Push) -> None:
        """Have every engine serve these weights; from now on they are the present ones.

        An engine that stays lost is given up while others serve. Raises SyncError, see `rl.sync.push`.
        """
        self.pushed = weights
        for name in self._push(self.serving):
            if len(self.serving) == 1:
                raise SyncError(f"engine {name} is lost, and it was the last one")
            ray.kill(self.serving.pop(name))
            self._tell({"event": "engine_lost", "engine": name})
            self.announce(self.serving)
        for name in self._push({name: one.handle for name, one in self.leaving.items()}):
            self._end(name, False)

    def heal(self, empty: Mapping[str, Any]) -> list[str]:
        """Give the present weights to engines that lost them; returns the names of those that have them now."""
        lost = self._push(empty)
        return sorted(name for name in empty if name not in lost)

    def add(self) -> str:
        """Start one more engine; `tend` announces it when it serves the present weights. Returns its name."""
        name = f"engine{self._started}"
        handle = start_engine(self.config, self._started)
        self._started += 1
        self.coming[name] = _Passing(handle, handle.ping.remote(), time.monotonic() + _START_S)
        self._tell({"event": "engine_coming", "engine": name})
        return name

    def drain(self, name: str) -> None:
        """Send an engine nothing new; `tend` ends it when it has finished what it has, or at a request's deadline:
        what it has then is sampled elsewhere. Raises UserError for an engine that does not serve, or is the last one.
        """
        if name not in self.serving or len(self.serving) == 1:
            raise UserError(f"{name} does not serve, or no other engine does ({', '.join(sorted(self.serving))})")
        handle = self.serving.pop(name)
        self.announce(self.serving)
        deadline = time.monotonic() + self.config.engine.request_timeout_s
        self.leaving[name] = _Passing(handle, handle.stats.remote(), deadline)
        self._tell({"event": "engine_leaving", "engine": name})

    def resize(self, engines: int) -> None:
        """Add engines, or drain the newest ones, until so many serve or come. Raises UserError for fewer than one."""
        if engines < 1:
            raise UserError(f"a run needs an engine, not {engines}")
        for _ in range(engines - len(self.serving) - len(self.coming)):
            self.add()
        for name in sorted(self.coming, key=_number)[max(0, engines - len(self.serving)) :]:
            ray.kill(self.coming.pop(name).handle)
        for name in sorted(self.serving, key=_number)[engines:]:
            self.drain(name)

    def tend(self) -> None:
        """Announce engines that have come up, and end those that have finished; returns at once if there are none."""
        for name, one in list(self.coming.items()):
            if not self._answered(one):
                if time.monotonic() > one.deadline:
                    self._refuse(name, f"no answer within {_START_S:.0f} s")
                continue
            try:
                ray.get(one.answer)
            except RayError as error:
                self._refuse(name, str(error))
                continue
            if self.pushed is None or name in self._push({name: one.handle}):
                continue  # there are no weights yet; or it has died at once, and is restarted
            self.serving[name] = self.coming.pop(name).handle
            self.announce(self.serving)
            self._tell({"event": "engine_added", "engine": name, "version": self.pushed[0].version})
        for name, one in list(self.leaving.items()):
            if self._answered(one):
                try:
                    load = ray.get(one.answer)
                except RayError:
                    self._end(name, False)
                    continue
                one.idle = one.idle + 1 if load["running"] + load["waiting"] == 0 else 0
                one.answer = one.handle.stats.remote()
            if one.idle >= _IDLE or time.monotonic() > one.deadline:
                self._end(name, one.idle >= _IDLE)

    def _push(self, engines: Mapping[str, Any]) -> list[str]:
        if self.pushed is None:
            return []
        return push(self.pushed, dict(engines), self.config.engine.request_timeout_s)

    def _end(self, name: str, finished: bool) -> None:
        ray.kill(self.leaving.pop(name).handle)
        self._tell({"event": "engine_left", "engine": name, "finished": finished})

    def _refuse(self, name: str, reason: str) -> None:
        ray.kill(self.coming.pop(name).handle)
        self._tell({"event": "engine_refused", "engine": name, "reason": reason})

    @staticmethod
    def _answered(one: _Passing) -> bool:
        return bool(ray.wait([one.answer], timeout=0)[0])


def _number(name: str) -> int:
    return int(name.removeprefix("engine"))
