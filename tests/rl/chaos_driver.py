"""The real loop, ledger, collector, mixture, log and checkpoints in a process to kill; only the actors are played.

python tests/rl/chaos_driver.py RUN_DIR STEPS STALENESS     starts the run, or resumes it where the folder holds one
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from rewards.grade import Grade
from rl import loop
from rl.config import Config
from rollout.trajectory import Group, GroupOrder, Node, Sampling, StopReason, Trajectory


class PlayedLearners:
    """Weights are one hash: of everything that was ever trained, in order."""

    def __init__(self) -> None:
        self.weights = "start"

    def train(self, batch: Any, step: int) -> dict[str, float]:
        time.sleep(0.01)
        names = [f"{r.id}:{r.advantage:.9f}" for r in batch.rows]
        self.weights = hashlib.sha256(f"{self.weights}|{step}|{names}".encode()).hexdigest()
        return {"learner/step_kl": 0.0}

    def check(self) -> None: ...

    def save(self, folder: Path) -> None:
        for i in range(4):  # several files, so that a kill can fall between them
            (folder / f"rank{i}.json").write_text(json.dumps(self.weights))
            time.sleep(0.003)

    def load(self, folder: Path) -> None:
        self.weights = json.loads((folder / "rank3.json").read_text())


class PlayedScheduler:
    """Finishes orders in an order of its own; outcomes depend on the sample's seed alone."""

    def __init__(self) -> None:
        self.queue: list[GroupOrder] = []
        self.version = 0
        self.rng = random.Random()
        self.orderly = False

    def submit(self, orders: list[GroupOrder], due: int = 0) -> None:
        self.queue += orders

    def completed(self, timeout: float) -> list[Group]:
        time.sleep(0.004)
        if self.orderly:
            self.queue.sort(key=lambda order: random.Random(order.id).random())
        else:
            self.rng.shuffle(self.queue)
        done = [self.queue.pop() for _ in range(min(3 if self.orderly else 5, len(self.queue)))]
        return [Group(o, [self.play(o, i) for i in range(len(o.seeds))]) for o in done]

    def play(self, order: GroupOrder, i: int) -> Trajectory:
        rng = random.Random(order.seeds[i])
        n = rng.randrange(3, 9)
        ids = np.array([rng.randrange(9) for _ in range(n)], np.int32)
        minus_one, one, version = np.full(n, -1, np.float32), np.ones(n, np.uint8), np.full(n, self.version, np.int32)
        node = Node("assistant", ids, minus_one, one, version, Sampling(seed=order.seeds[i]))
        nodes = [Node.given("user", [1, 2]), node]
        return Trajectory(f"{order.id}/{i}", order.task, order.effort, nodes, stop=StopReason.DONE,
                          grade=Grade.outcome(rng.random() < 0.5))  # fmt: skip

    def lost(self) -> list[tuple[GroupOrder, str]]:
        return []

    def stats(self) -> dict[str, float]:
        return {}


class PlayedCluster:
    """Stands where `rl.cluster.Cluster` stands."""

    def __init__(self, *_: Any) -> None:
        self.learners, self.scheduler = PlayedLearners(), PlayedScheduler()
        self.ranks: list[dict[str, Any]] = []

    def __enter__(self) -> PlayedCluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def heal(self) -> list[str]:
        return []

    def tend(self) -> None: ...

    def sync(self, version: int) -> dict[str, float]:
        self.scheduler.version = version
        return {}


def main(run_dir: Path, steps: int, staleness: int, orderly: bool = False) -> int:
    """Start or resume; the final weights are written beside the run. `orderly` groups finish in a fixed order."""
    house = PlayedCluster()
    house.scheduler.orderly = orderly
    loop.Cluster = lambda *_: house  # type: ignore[assignment,misc]
    config = Config(steps=steps)
    config.envs.names = ["primer/copy", "primer/reverse", "primer/count"]
    config.algorithm.groups_per_step, config.algorithm.group_size = 6, 4
    config.algorithm.max_staleness = staleness
    config.evaluation.tasks, config.evaluation.during_tasks, config.evaluation.every = 18, 9, 4
    config.evaluation.calibration_tasks = 18
    config.logging.wandb.mode, config.logging.checkpoint_every, config.logging.progress = "disabled", 3, False
    code = loop.resume(run_dir) if (run_dir / "config.yaml").exists() else loop.train(config, run_dir)
    (run_dir / "weights.json").write_text(json.dumps(house.learners.weights))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
