"""The driver's side of the rollout: hands orders to workers, notices loss and delay, and loses no group silently."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

from environments.catalogue import spec_of
from rollout.admission import Lengths, Line
from rollout.calls import Calls, RayCalls
from rollout.store import EpisodeJournal
from rollout.trajectory import Group, GroupOrder, StopReason

if TYPE_CHECKING:
    from rl.config import Config

_log = logging.getLogger(__name__)

_GONE = (RayActorError, WorkerCrashedError, OutOfMemoryError, NodeDiedError, ObjectLostError)
"""What Ray raises when a process or its result is no more, whatever the reason."""

_PING_S = 2.0
"""Pause between two signs of life of a worker; a dead process answers the next one with an error, so within 5 s."""

_SILENT_S = 60.0
"""A worker that has not answered for this long is stuck (a grader that never yields, say): it is replaced."""

_LATE_S = 6.0
"""A worker whose sign of life is overdue by this gets no further groups until it answers."""

_MAX_LOSSES = 3
"""A group that has lost this many workers is the likely cause: it is quarantined."""

_MAX_DISPATCHES_LATE = 2
"""Dispatches that may miss the group's deadline; then it is retired."""

_MAX_REPLACEMENTS = 20
"""Workers replaced in one run before the run is given up: then not a group is at fault, but the machine or the code."""


class RolloutError(RuntimeError):
    """The rollout cannot go on; the message says which worker or group, and why."""


@dataclass(eq=False)
class _Worker:
    """One worker actor and what it holds."""

    name: str
    handle: Any
    groups: dict[str, _Held] = field(default_factory=dict)
    """In the order of their dispatches."""
    episodes: int = 0
    boxes: int = 0
    """Episodes that may have a sandbox each."""
    ping: Any = None
    heard: float = 0.0
    """When it last answered."""
    asked: float = 0.0
    life: dict[str, Any] = field(default_factory=dict)
    """Its last answer."""


@dataclass(eq=False)
class _Held:
    """One order on its way."""

    order: GroupOrder
    due: int
    boxed: bool
    """Whether its episodes need sandboxes."""
    tokens: float = 0.0
    """Expected context of its samples, while it is with a worker."""
    dispatches: int = 0
    losses: int = 0
    late: int = 0
    answer: Future[Any] | None = None
    since: float = 0.0
    avoid: str = ""
    """The worker that lost it or was late with it; another one is preferred."""


class Scheduler:
    """Workers on one side, orders on the other.

    engines: name -> actor handle. store: folder for sandbox snapshots and episode journals. run: whose journals they
    are, where runs share a store. version: the weight version at which this driver starts; turns that a lost future
    left in the run's journal are dropped. spawn(name, index): makes a worker actor (default: a `RolloutWorker` on this
    cluster). tell(event): hears of worker_lost, redispatched, retired and stalled as they happen. calls: how workers
    are asked (default: by Ray). Use from one thread; `close` kills the workers.

    Orders wait in a `Line` until there is room for all that they need: context in the engines that are up, episodes
    and sandboxes of one worker that answers.
    """

    def __init__(
        self,
        config: Config,
        engines: Mapping[str, Any],
        store: Path | str | None = None,
        version: int = 0,
        run: str = "run",
        spawn: Callable[[str, int], Any] | None = None,
        tell: Callable[[dict[str, Any]], object] = lambda event: None,
        calls: Calls | None = None,
    ) -> None:
        self.config, self.engines, self._tell = config, dict(engines), tell
        self._store, self._run = None if store is None else str(store), run
        if self._store is not None:
            EpisodeJournal(self._store, run).prune(version)
        self._spawn = spawn or self._default_spawn
        self._calls: Calls = calls or RayCalls()
        engine = config.engine
        self._engine_tokens = config.rollout.engine_tokens or engine.max_batch * engine.max_context
        self._tokens = 0.0
        """Expected context of all groups that are with workers."""
        self._lengths = Lengths(engine.max_context)
        self._line = Line()
        self._blocked: set[str] = set()
        """What the first in line found no room in."""
        self._looked = self._calls.now()
        self._workers = [self._start(f"worker{i}", i) for i in range(config.rollout.workers)]
        self._done: list[Group] = []
        self._lost: list[tuple[GroupOrder, str]] = []
        self._suspects: set[str] | None = None
        """Environments that every lost worker was running; None before the first loss."""
        self._known: set[str] = set()
        self._progress = self._calls.now()
        self._warned = self._progress
        self.counts: Counter[str] = Counter()

    def submit(self, orders: Iterable[GroupOrder], due: int = 0) -> None:
        """Queue orders; they are dispatched as there is room: smaller `due` first, then the longest.

        Raises ValueError for an order that is already in, or whose environment is unknown.
        """
        for order in orders:
            if order.id in self._known:
                raise ValueError(f"group {order.id} is already queued or running")
            held = _Held(order, due, spec_of(order.task.environment).needs_sandbox)
            self._known.add(order.id)
            self._line.put(held, held.boxed, due, self._lengths.expect(order))
            self.counts["submitted"] += 1
        self._dispatch()

    def completed(self, timeout: float) -> list[Group]:
        """Groups that finished, in the order in which they did; waits up to `timeout` seconds for the first.

        Deadlines, deaths and the watchdog are attended to here. Raises RolloutError if workers keep dying, and whatever
        a worker raised that is not its own loss: such an error is in the configuration or in the code.
        """
        end = self._calls.now() + timeout
        while True:
            self.tend(0.0 if self._done else max(0.0, min(0.5, end - self._calls.now())))
            if self._done or self._lost or not self._known or self._calls.now() >= end:
                done, self._done = self._done, []
                return done

    def tend(self, timeout: float = 0.0) -> None:
        """Dispatch, hear, attend: what `completed` does, for a caller that waits for something else meanwhile. What
        finishes is kept for `completed`; raises as it does."""
        self._dispatch()
        self._done += self._collect(timeout)
        self._attend()

    def lost(self) -> list[tuple[GroupOrder, str]]:
        """Orders that were given up since the last call, with the reason."""
        lost, self._lost = self._lost, []
        return lost

    @property
    def outstanding(self) -> int:
        """Groups that are queued or running."""
        return len(self._known)

    def stats(self) -> dict[str, float]:
        """Counters since the start and the present load, as metrics `rollout/<name>`.

        blocked_<what>_s: seconds in which orders waited for want of it; samples_spare, samples_cut: samples that were
        ended because enough of their group were graded, or at its deadline; tokens: the expected context in flight.
        """
        now = {
            "queued": len(self._line),
            "running_groups": sum(len(w.groups) for w in self._workers),
            "running_episodes": sum(w.episodes for w in self._workers),
            "running_sandboxed": sum(w.boxes for w in self._workers),
            "tokens": self._tokens,
            "workers": len(self._workers),
        }
        counts = dict.fromkeys(("submitted", "dispatched", "finished", "redispatched", "retired", "worker_lost"), 0)
        return {f"rollout/{k}": float(v) for k, v in (counts | self.counts | now).items()}

    def set_engines(self, engines: Mapping[str, Any], timeout: float = 10.0) -> None:
        """Send requests to these engines alone from now on; returns when every worker that answers in time knows it."""
        self.engines = dict(engines)
        calls = [w.handle.set_engines.remote(self.engines) for w in self._workers]
        ray.wait(calls, num_returns=len(calls), timeout=timeout)

    def stale_engines(self, version: int, timeout: float = 10.0) -> dict[str, Any]:
        """Engines that serve another version than this one: a restarted engine has none until it is given weights."""
        calls = {name: engine.stats.remote() for name, engine in self.engines.items()}
        out = {}
        for name, call in calls.items():
            try:
                if ray.get(call, timeout=timeout)["version"] != version:
                    out[name] = self.engines[name]
            except (*_GONE, GetTimeoutError):
                out[name] = self.engines[name]
        return out

    def pids(self) -> list[int]:
        """Process ids of the workers that have answered."""
        return [w.life["pid"] for w in self._workers if w.life]

    def worker_counts(self, timeout: float = 10.0) -> Counter[str]:
        """What the present workers and their routers have counted by now."""
        lives = ray.get([w.handle.ping.remote() for w in self._workers], timeout=timeout)
        return sum((Counter(life["counts"]) for life in lives), Counter())

    def who_holds_what(self) -> str:
        """Text for a person: which worker holds which groups for how long, and what waits."""
        now = self._calls.now()
        lines = [f"{len(self._line)} groups queued, {len(self._known) - len(self._line)} running"]
        if self._blocked:
            lines[0] += f"; no room in {', '.join(sorted(self._blocked))}"
        for w in self._workers:
            ago = max(0.0, now - w.heard)
            lines.append(f"{w.name}: heard {ago:.0f} s ago, {w.episodes} episodes, at engines {w.life.get('engines')}")
            held = sorted(w.groups.values(), key=lambda h: h.since)
            lines += [f"  {h.order.id} ({h.order.task.environment}) for {now - h.since:.0f} s" for h in held[:8]]
            if len(held) > 8:
                lines.append(f"  and {len(held) - 8} more")
        return "\n".join(lines)

    def close(self) -> None:
        """Kill the workers. What they held is not reported any more."""
        for w in self._workers:
            self._calls.kill(w.handle)
        self._workers = []

    def _default_spawn(self, name: str, index: int) -> Any:
        from rollout.worker import RolloutWorker

        cls: Any = ray.remote(RolloutWorker)
        # num_cpus 0: an actor that cannot be placed would wait for ever without a word. No restart: a lost worker is
        # replaced here, where its groups are known.
        options = cls.options(num_cpus=0, max_restarts=0, max_concurrency=10_000)
        return options.remote(self.config, self.engines, name, index, self._store, self._run)

    def _start(self, name: str, index: int) -> _Worker:
        now = self._calls.now()
        # A new process imports first: its time until it counts as silent begins later.
        return _Worker(name, self._spawn(name, index), heard=now + _SILENT_S, asked=now - _PING_S)

    def _dispatch(self) -> None:
        now = self._calls.now()
        for what in self._blocked:
            self.counts[f"blocked_{what}_s"] += now - self._looked  # type: ignore[assignment]
        self._looked, self._blocked = now, set()
        while (held := self._line.first()) is not None:
            place = self._place(held, now)
            if place == "sandboxes":
                self._blocked.add(place)
                if (held := self._line.first(boxed=False)) is None:
                    return
                place = self._place(held, now)
            if isinstance(place, str):
                self._blocked.add(place)
                return
            self._line.pop(held.boxed)
            self._hold(place, held)

    def _place(self, held: _Held, now: float) -> _Worker | str:
        """The worker with most room for a group, or what there is no room in.

        A worker that has not answered yet is still starting, and a group's deadline runs from its dispatch. A group
        larger than all room gets it to itself.
        """
        need, c = len(held.order.seeds), self.config
        free = [w for w in self._workers if w.life and (w.ping is None or now - w.asked < _LATE_S)]
        if not free:
            return "workers"
        down = {name for w in free for name in w.life.get("down", ())}
        held.tokens = need * self._lengths.expect(held.order)
        if self._tokens and self._tokens + held.tokens > self._engine_tokens * (len(self.engines) - len(down)):
            return "tokens"
        free = [w for w in free if w.episodes + need <= c.rollout.episodes_per_worker or not w.groups]
        if not free:
            return "episodes"
        if held.boxed:
            free = [w for w in free if w.boxes + need <= c.sandbox.max_live or not w.boxes]
            if not free:
                return "sandboxes"
        return min(free, key=lambda w: (w.name == held.avoid, w.episodes))

    def _hold(self, worker: _Worker, held: _Held) -> None:
        held.dispatches += 1
        held.since = self._calls.now()
        held.answer = self._calls.ask(worker.handle.run_group, held.order, held.dispatches, about=(worker, held))
        worker.groups[held.order.id] = held
        n = len(held.order.seeds)
        worker.episodes, worker.boxes = worker.episodes + n, worker.boxes + n * held.boxed
        self._tokens += held.tokens
        self.counts["dispatched"] += 1

    def _release(self, worker: _Worker, held: _Held) -> None:
        """The group is not with the worker any more, and what it held is free."""
        del worker.groups[held.order.id]
        n = len(held.order.seeds)
        worker.episodes, worker.boxes = worker.episodes - n, worker.boxes - n * held.boxed
        self._tokens = self._tokens - held.tokens if any(w.groups for w in self._workers) else 0.0
        held.answer = None

    def _collect(self, timeout: float) -> list[Group]:
        done: list[Group] = []
        for (worker, held), answer in self._calls.answers(timeout):
            if held is None:
                self._hear(worker, answer)
                continue
            if held.answer is not answer:
                continue  # its worker was found dead, or its deadline had passed: the group is queued again
            try:
                group: Group = answer.result()
            except _GONE as e:
                self._replace(worker, str(e))
                continue
            self._release(worker, held)
            self._known.discard(held.order.id)
            self._lengths.observe(group)
            self.counts["finished"] += 1
            stops = Counter(t.stop for t in group.trajectories)
            self.counts["samples_spare"] += stops[StopReason.SPARE]
            self.counts["samples_cut"] += stops[StopReason.ABORTED]
            self._progress = self._calls.now()
            done.append(group)
        return done

    def _hear(self, worker: _Worker, answer: Future[Any]) -> None:
        worker.ping = None
        if worker not in self._workers:
            return
        try:
            worker.life = answer.result()
            worker.heard = self._calls.now()
        except _GONE as e:
            self._replace(worker, str(e))

    def _attend(self) -> None:
        """Ask for signs of life, replace the silent, look at deadlines, and speak up when nothing moves."""
        now = self._calls.now()
        for w in list(self._workers):
            if now - w.heard > _SILENT_S and w.ping is not None and now - w.asked > _SILENT_S:
                self._replace(w, f"no answer for {now - w.heard:.0f} s")
            elif w.ping is None and now - w.asked >= _PING_S:
                w.asked, w.ping = now, self._calls.ask(w.handle.ping, about=(w, None))
        limit = self.config.rollout.group_timeout_s
        for w in self._workers:
            for held in list(takewhile(lambda h: now - h.since > limit, w.groups.values())):
                self._release(w, held)
                self._calls.tell(w.handle.abort, held.order.id)
                held.late += 1
                if held.late >= _MAX_DISPATCHES_LATE:
                    self._retire(held, f"deadline: {held.late} dispatches of {limit:.0f} s, last on {w.name}")
                else:
                    self._again(held, w, f"deadline of {limit:.0f} s")
        if self._known and now - max(self._progress, self._warned) > limit / 2:
            self._warned = now
            text = self.who_holds_what()
            _log.warning("no group finished for %.0f s\n%s", now - self._progress, text)
            self._event("stalled", text=text)

    def _replace(self, worker: _Worker, reason: str) -> None:
        """A worker is gone: put its groups back into the queue and start another worker in its place."""
        self._calls.kill(worker.handle)
        self.counts["worker_lost"] += 1
        self._event("worker_lost", worker=worker.name, groups=sorted(worker.groups), reason=reason)
        held_here = {held.order.task.environment for held in worker.groups.values()}
        self._suspects = held_here if self._suspects is None else self._suspects & held_here
        if self.counts["worker_lost"] > _MAX_REPLACEMENTS:
            who = f"environments that all of them were running: {', '.join(sorted(self._suspects)) or 'none'}"
            text = f"{self.counts['worker_lost']} workers were lost ({who}), the last one {worker.name}: {reason}"
            raise RolloutError(text)
        at = self._workers.index(worker)
        base, _, life = worker.name.partition(".")
        self._workers[at] = self._start(f"{base}.{int(life or 0) + 1}", at)
        for held in list(worker.groups.values()):
            self._release(worker, held)
            held.losses += 1
            if held.losses >= _MAX_LOSSES:
                self._retire(held, f"quarantined: it lost {held.losses} workers, the last one {worker.name}")
            else:
                self._again(held, worker, f"worker lost: {reason}")

    def _again(self, held: _Held, worker: _Worker, reason: str) -> None:
        held.avoid = worker.name
        self._line.put(held, held.boxed, -math.inf, self._lengths.expect(held.order))
        self.counts["redispatched"] += 1
        self._event("redispatched", group=held.order.id, worker=worker.name, reason=reason)

    def _retire(self, held: _Held, reason: str) -> None:
        self._known.discard(held.order.id)
        self._lost.append((held.order, reason))
        self.counts["retired"] += 1
        self.counts[f"retired_{reason.split(':')[0]}"] += 1
        self._progress = self._calls.now()
        self._event("retired", group=held.order.id, reason=reason)

    def _event(self, kind: str, **fields: Any) -> None:
        self._tell({"event": kind, **fields})
