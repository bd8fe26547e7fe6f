"""10,000 episodes on one scheduler: all of a run's driver that has to do with rollout, over Ray workers that only wait.

Draws, books, dispatch, answers, assessment, admission and batches are the real code on real tasks of the default run.
Workers return groups of the size that they would have: the columns of all tokens, through Ray's object store.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from environments.catalogue import resolve, select
from rewards.grade import Grade
from rl.assess import assess
from rl.collect import Collector
from rl.config import Config
from rl.ledger import Ledger
from rl.state import RunState
from rollout.scheduler import Scheduler
from rollout.trajectory import Group, GroupOrder, Node, Sampling, StopReason, Trajectory

EPISODES, SIZE, WORKERS = 10_240, 4, 4
TOKENS_PER_S = 50.0
"""Of one sequence: what a large model decodes in a full batch. Faster ones mean more events for the scheduler."""
MEDIAN, SPREAD, LONGEST = 3000.0, 1.0, 28_672
"""Lengths in tokens, lognormal, as `benchmarks.simulated` has them on the whole."""
STEP, STALENESS = 500, 7
"""Groups of a step, and versions: together more than are in flight, so that some always wait."""


class Waiting:
    """A worker that waits as long as its episodes would take. The first groups are found in the middle of theirs, as
    in a run that has long been going on."""

    def __init__(self) -> None:
        self._rng = random.Random(os.getpid())
        self._first = EPISODES // SIZE // WORKERS

    async def ping(self) -> dict[str, Any]:
        """See `RolloutWorker.ping`."""
        return {"pid": os.getpid(), "down": []}

    async def abort(self, group_id: str) -> bool:
        """See `RolloutWorker.abort`."""
        return False

    async def run_group(self, order: GroupOrder, dispatch: int) -> Group:
        """See `RolloutWorker.run_group`."""
        rng, done = self._rng, []
        lengths = [min(LONGEST, math.ceil(MEDIAN * math.exp(rng.gauss(0.0, SPREAD)))) for _ in order.seeds]
        self._first -= 1
        await asyncio.sleep(max(lengths) / TOKENS_PER_S * (rng.random() if self._first >= 0 else 1.0))
        for i, n in enumerate(lengths):
            ids = np.zeros(n, np.int32)
            node = Node("assistant", ids, np.zeros(n, np.float32), np.ones(n, np.uint8), ids, Sampling())
            t = Trajectory(f"{order.id}/{i}", order.task, order.effort, [node], stop=StopReason.DONE)
            t.grade = Grade.outcome(rng.random() < 0.5)
            done.append(t)
        return Group(order, done, "waiting", dispatch)


class Over(Exception):
    """The time of measuring is over."""


def drive(seconds: float, settle_s: float = 20.0) -> dict[str, float]:
    """Start all episodes, and measure for `seconds` once they run: shares of a core, rates per second."""
    import ray

    root = str(Path(__file__).resolve().parent.parent)
    ray.init(
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=2 << 30,
        runtime_env={"env_vars": {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}},
    )
    config = Config()
    config.algorithm.groups_per_step, config.algorithm.group_size = STEP, SIZE
    config.algorithm.max_staleness, config.algorithm.max_sampling_rounds = STALENESS, 4
    config.rollout.workers, config.rollout.episodes_per_worker = WORKERS, EPISODES // WORKERS
    config.rollout.group_timeout_s, config.rollout.engine_tokens = 3600.0, 1 << 40
    config.engine.max_context = LONGEST
    waiting: Any = ray.remote(Waiting)

    def spawn(name: str, index: int) -> Any:
        return waiting.options(num_cpus=0, max_concurrency=EPISODES).remote()

    specs, _ = select(config.envs.names)
    state = RunState(config, [resolve(s.id) for s in specs if not s.needs_sandbox])
    marks: list[tuple[float, float, float, float]] = []
    arrived = 0.0

    def judge(group: Group, step: int) -> Any:
        nonlocal arrived
        found = assess(group, state.effort, MEDIAN, step, config)
        arrived += float(found.lengths.sum())
        return found

    def mark() -> None:
        now = time.monotonic()
        marks.append((now, time.process_time(), scheduler.counts["finished"], arrived))
        if now > began + settle_s + seconds:
            raise Over

    with tempfile.TemporaryDirectory() as folder:
        scheduler = Scheduler(config, {"engine0": None}, spawn=spawn)
        try:
            while not all(w.life for w in scheduler._workers):
                scheduler.tend(0.5)
            began, cpu = time.monotonic(), time.process_time()
            ledger = Ledger(Path(folder) / "ledger.jsonl")
            collector = Collector(config, state.mixture, ledger, scheduler, judge, check=mark)
            step = 0
            try:
                while True:
                    batch = collector.batch()
                    ledger.train([x.group.order.id for x in batch], step)
                    step += 1
                    collector.advance(step)
            except Over:
                episodes = scheduler.stats()["rollout/running_episodes"]
            ledger.close()
        finally:
            scheduler.close()
            ray.shutdown()
    first = next(m for m in marks if m[0] > began + settle_s)
    last = marks[-1]
    took = last[0] - first[0]
    return {
        "cpu": (last[1] - first[1]) / took,
        "groups_per_s": (last[2] - first[2]) / took,
        "tokens_per_s": (last[3] - first[3]) / took,
        "start_s": first[1] - cpu,
        "episodes": episodes,
    }
