"""Engines, workers and time for the real scheduler, collector, buffer and ledger: a simulation of nothing else.

An engine runs so many sequences at once, each at the same speed (decoding is bound by memory, so a step takes as long
for few rows as for many); a worker gives a group to the engine with the least to do and is done when the group is.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from environments.base import Draft, Environment
from environments.catalogue import CATALOGUE
from rewards.grade import Grade
from rl.assess import Assessed, Retired
from rl.collect import Collector
from rl.config import Config
from rl.ledger import Ledger
from rl.mixture import Mixture
from rollout.buffer import RolloutBuffer
from rollout.calls import Answer
from rollout.scheduler import Scheduler
from rollout.trajectory import Group, GroupOrder, Node, Sampling, StopReason, Trajectory

LONGEST = 28_672
"""Tokens at which an answer is cut: the 28k of the published runs."""
_ONES = np.ones(LONGEST, np.uint8)
_IDS = np.zeros(LONGEST, np.int32)
_LOGPROBS = np.zeros(LONGEST, np.float32)


class Time:
    """`rollout.calls.Calls` on a simulated clock: waiting is moving on to what happens next."""

    def __init__(self) -> None:
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._number = itertools.count()
        self._heard: deque[Answer] = deque()

    def now(self) -> float:
        """Simulated seconds."""
        return self._now

    def at(self, delay: float, what: Callable[[], object]) -> None:
        """Something happens after so many seconds."""
        heapq.heappush(self._events, (self._now + delay, next(self._number), what))

    def ask(self, method: Any, *args: Any, about: Any) -> Future[Any]:
        """See `Calls.ask`: the method is given the future that it is to fulfil."""
        future: Future[Any] = Future()
        future.add_done_callback(lambda f: self._heard.append((about, f)))
        method(future, *args)
        return future

    def tell(self, method: Any, *args: Any) -> None:
        """See `Calls.tell`."""
        method(Future(), *args)

    def answers(self, timeout: float) -> list[Answer]:
        """See `Calls.answers`."""
        self._move(self._now + timeout, lambda: bool(self._heard))
        out = list(self._heard)
        self._heard.clear()
        return out

    def sleep(self, seconds: float, meanwhile: Callable[[], object] = lambda: None, every: float = 1.0) -> None:
        """The caller is busy; engines and workers are not. `meanwhile` is called `every` so many seconds."""
        end = self._now + seconds
        while self._now < end:
            self._move(min(end, self._now + every), lambda: False)
            meanwhile()

    def kill(self, handle: Any) -> None:
        """See `Calls.kill`."""

    def _move(self, end: float, enough: Callable[[], bool]) -> None:
        while not enough() and self._events and self._events[0][0] <= end:
            self._now, _, what = heapq.heappop(self._events)
            what()
        if not enough():
            self._now = max(self._now, end)


@dataclass(eq=False)
class Sample:
    """One sequence in an engine."""

    tokens: int
    over: Callable[[Sample], object]
    begun: float = math.nan
    version: int = -1
    """The version that was served when it began."""
    dropped: bool = False


class Engine:
    """`slots` sequences at once at `rate` tokens per second each; more wait in order of arrival."""

    def __init__(self, time: Time, slots: int, rate: float) -> None:
        self.time, self.slots, self.rate = time, slots, rate
        self.version = 0
        self.running: set[Sample] = set()
        self.waiting: deque[Sample] = deque()
        self.busy_s = 0.0
        """Seconds of slots in which a sequence ran to its end."""

    @property
    def load(self) -> int:
        return len(self.running) + len(self.waiting)

    def put(self, sample: Sample) -> None:
        """A sequence arrives."""
        self.waiting.append(sample)
        self._fill()

    def drop(self, sample: Sample) -> None:
        """A sequence is aborted."""
        sample.dropped = True
        self.running.discard(sample)
        self._fill()

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            sample = self.waiting.popleft()
            if not sample.dropped:
                sample.begun, sample.version = self.time.now(), self.version
                self.running.add(sample)
                self.time.at(sample.tokens / self.rate, lambda s=sample: self._end(s))  # type: ignore[misc]

    def _end(self, sample: Sample) -> None:
        if not sample.dropped:
            self.running.discard(sample)
            self.busy_s += sample.tokens / self.rate
            self._fill()
            sample.over(sample)


class Worker:
    """Stands where the handle of a `RolloutWorker` stands; its methods are called by `Time`."""

    def __init__(self, house: House) -> None:
        self.house = house

    def ping(self, future: Future[Any]) -> None:
        """See `RolloutWorker.ping`."""
        future.set_result({"pid": 0, "down": []})

    def abort(self, future: Future[Any], group_id: str) -> None:
        """Never needed: no deadline is missed here."""
        raise AssertionError(f"group {group_id} was aborted")

    def run_group(self, future: Future[Any], order: GroupOrder, dispatch: int) -> None:
        """See `RolloutWorker.run_group`."""
        engine = min(self.house.engines, key=lambda e: e.load)
        n = len(order.seeds)
        enough = self.house.config.rollout.enough or n
        over: list[Sample] = []

        def one(sample: Sample) -> None:
            over.append(sample)
            if len(over) == enough:
                for s in samples:
                    if s not in over:
                        engine.drop(s)
                done = [self.house.trajectory(order, i, s, s in over) for i, s in enumerate(samples)]
                future.set_result(Group(order, done, "worker", dispatch))

        samples = [Sample(self.house.tokens(order, i), one) for i in range(n)]
        for s in samples:
            engine.put(s)


class Kind(Environment):
    """Tasks of one kind; it bears the name of an environment, and nothing else of it."""

    levels = (1,)

    def __init__(self, id: str) -> None:
        self.id = id

    def draw(self, rng: random.Random, level: int) -> Draft:
        """A prompt that no other task has."""
        return Draft(f"{self.id}: {rng.randrange(1 << 40)}", "")


@dataclass
class Load:
    """What a run asks of its house. Lengths are lognormal, cut at LONGEST: `median` tokens, of spread `between` the
    kinds of tasks and `within` them (of the logarithm)."""

    groups: int = 128
    """Groups of a step."""
    size: int = 16
    """Samples of a group."""
    median: float = 3000.0
    between: float = 0.6
    within: float = 0.8
    kinds: int = 12
    engines: int = 16
    slots: int = 128
    """Sequences that one engine runs at once."""
    rate: float = 160.0
    """Tokens per second of each."""
    train_s: float = 178.0
    """Seconds of an optimizer step."""
    sync_s: float = 1.0
    """Seconds until the engines serve what it gave."""
    silent: float = 0.0
    """Share of the groups without a signal, which are retired."""
    rounds: int = 1
    """Groups drawn for a step at most, in multiples of `groups`: more than 1 replaces the retired."""
    enough: int = 0
    """Samples with which a group is complete; 0: all."""
    engine_tokens: int = 0
    """As `rollout.engine_tokens`; 0: more than any load here needs."""
    episodes: int = 0
    """Samples that all workers run at once; 0: any number."""
    seed: int = 0
    scales: list[float] = field(default_factory=list)
    """Of the kinds' lengths; drawn with `between` by default."""


class House:
    """A run of the real code over simulated engines. buffer: another class than the real one, as a planted fault."""

    def __init__(self, load: Load, staleness: int, folder: Path, buffer: type[RolloutBuffer] = RolloutBuffer) -> None:
        self.load, self.staleness = load, staleness
        self.config = c = Config(seed=load.seed)
        c.algorithm.groups_per_step, c.algorithm.group_size = load.groups, load.size
        c.algorithm.max_staleness, c.algorithm.max_sampling_rounds = staleness, load.rounds
        c.envs.adaptive = False
        c.rollout.workers, c.rollout.episodes_per_worker = 1, load.episodes or 1 << 30
        c.rollout.group_timeout_s, c.rollout.enough = 1e9, load.enough
        c.engine.max_context, c.engine.max_batch = LONGEST, load.slots
        c.rollout.engine_tokens = load.engine_tokens or 1 << 40
        self.time = Time()
        self.engines = [Engine(self.time, load.slots, load.rate) for _ in range(load.engines)]
        rng = random.Random(load.seed)
        names = [spec.id for spec in CATALOGUE.values() if not spec.needs_sandbox][: load.kinds]
        kinds = [Kind(name) for name in names]
        scales = load.scales or [math.exp(rng.gauss(0.0, load.between)) for _ in kinds]
        self.scale = {k.id: s for k, s in zip(kinds, scales, strict=True)}
        engines = {f"engine{i}": e for i, e in enumerate(self.engines)}
        self.scheduler = Scheduler(c, engines, spawn=lambda name, index: Worker(self), calls=self.time)
        self.ledger = Ledger(folder / "ledger.jsonl")
        mixture = Mixture(c, list(kinds))
        self.collector = Collector(c, mixture, self.ledger, self.scheduler, self.assess, now=self.time.now)
        self.collector.buffer = buffer(load.groups, staleness, c.rollout.min_group)
        self._versions: dict[int, np.ndarray] = {}

    def tokens(self, order: GroupOrder, sample: int) -> int:
        """Length of a sample: a function of its seed."""
        rng = random.Random(order.seeds[sample])
        drawn = self.load.median * self.scale[order.task.environment] * math.exp(rng.gauss(0.0, self.load.within))
        return max(16, min(LONGEST, round(drawn)))

    def trajectory(self, order: GroupOrder, i: int, sample: Sample, whole: bool) -> Trajectory:
        """What a worker brings back of a sample."""
        t = Trajectory(f"{order.id}/{i}", order.task, order.effort, stop=StopReason.SPARE)
        if whole:
            n, v = sample.tokens, sample.version
            versions = self._versions.setdefault(v, np.full(LONGEST, v, np.int32))
            t.append(Node("assistant", _IDS[:n], _LOGPROBS[:n], _ONES[:n], versions[:n], Sampling()))
            t.stop, t.grade = StopReason.DONE, Grade.outcome(i % 2 == 0)
        return t

    def assess(self, group: Group, step: int) -> Assessed:
        """Numbers of a group; `load.silent` of them have no signal, by their ids."""
        n = len(group.trajectories)
        valid = np.array([t.grade is not None for t in group.trajectories])
        zeros = np.zeros(n)
        silent = random.Random(f"{self.load.seed}/{group.order.id}").random() < self.load.silent
        retired = Retired.ALL_SOLVED if silent else None
        return Assessed(group, zeros, valid, zeros, zeros, zeros, zeros, retired, step)

    def train(self, steps: int) -> list[tuple[float, list[Assessed]]]:
        """So many steps as `rl.loop` does them: when each was over, and what it trained on."""
        out = []
        for step in range(self.collector.buffer.version, self.collector.buffer.version + steps):
            batch = self.collector.batch()
            self.time.sleep(self.load.train_s, self.scheduler.tend)
            self.ledger.train([x.group.order.id for x in batch], step)
            self.time.sleep(self.load.sync_s)
            for engine in self.engines:
                engine.version = step + 1
            self.collector.advance(step + 1)
            out.append((self.time.now(), batch))
        return out

    def close(self) -> None:
        """Close the books."""
        self.ledger.close()
