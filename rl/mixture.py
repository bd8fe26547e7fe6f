"""Which environment, level, effort and task comes next: one stateful, resumable stream over all environments."""

from __future__ import annotations

import fnmatch
import hashlib
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from environments.base import Environment
from environments.task import Split, Task
from rewards.efforts import Effort
from rewards.grade import brief
from rl.config import Config
from rl.errors import UserError
from rollout.controls import excluded_tag
from rollout.trajectory import GroupOrder

_MAX_LEFT_OUT = 1000
"""Tasks in a row that the controls may leave out: then nothing of that environment is left to draw."""
_DECAY = 0.8
"""Memory of a cell per group: about the last five groups, since the policy moves."""


@dataclass
class Cell:
    """One (environment, level, effort): how often it was drawn, and what its recent groups were like."""

    draws: int = 0
    solve: float = 0.5
    contrast: float = 1.0
    """4 s(1-s) of ONE task's solve rate s, on average: what a group can teach. A cell of tasks that are always solved
    and tasks that never are has none, whatever its mean."""


def sample_seed(base: int, task: str, effort: str, sample: int) -> int:
    """The seed of one sample in 63 bits: a function of (base, task, effort, sample), never of a rank or a worker."""
    digest = hashlib.blake2b(f"{base}|{task}|{effort}|{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Mixture:
    """Draws groups; cells whose samples of one task differ are preferred, none is starved.

    The weight is contrast ** focus + floor. The n-th draw depends on (seed, n) and on the cells alone, so a restored
    mixture continues as if it had never stopped. Raises ValueError if no environment has an enabled effort and a
    configured level.
    """

    def __init__(self, config: Config, environments: list[Environment]) -> None:
        self.config = config
        self.environments = {e.id: e for e in environments}
        self.drawn = 0
        self.indices: dict[tuple[str, int], int] = {}
        self.left_out: Counter[tuple[str, str]] = Counter()
        """(environment, excluded tag) -> tasks that were drawn and left out."""
        self.cells: dict[tuple[str, int, Effort], Cell] = {}
        self.base_weight: dict[tuple[str, int, Effort], float] = {}
        for env in environments:
            levels = [lv for lv in config.envs.levels if lv in env.levels] or [min(env.levels)]
            efforts = [e for e in env.efforts if getattr(config.effort, str(e)).enabled]
            total = sum(getattr(config.effort, str(e)).share for e in efforts) * len(levels)
            for level in levels:
                for effort in efforts:
                    share = getattr(config.effort, str(effort)).share
                    if share > 0:
                        self.cells[env.id, level, effort] = Cell()
                        self.base_weight[env.id, level, effort] = _env_weight(config, env.id) * share / total
        if not self.cells:
            raise ValueError("no environment has an enabled effort with a positive share: check envs.* and effort.*")

    def order(self, group_size: int) -> GroupOrder:
        """The next group: one task, one effort, `group_size` seeds."""
        rng = random.Random(f"{self.config.seed}|mixture|{self.drawn}")
        keys = list(self.cells)
        envs = self.config.envs
        weights = [
            self.base_weight[k] * (max(0.0, c.contrast) ** envs.focus + envs.floor if envs.adaptive else 1.0)
            for k, c in self.cells.items()
        ]
        env_id, level, effort = rng.choices(keys, weights)[0]
        task = self._next(env_id, level)
        self.cells[env_id, level, effort].draws += 1
        id = f"g{self.drawn:06d}"
        self.drawn += 1
        seeds = tuple(sample_seed(self.config.seed, task.id, effort, i) for i in range(group_size))
        return GroupOrder(id, task, effort, seeds, temperature=self.config.algorithm.temperature)

    def _next(self, env_id: str, level: int) -> Task:
        """The next task of an environment that the controls allow; what they leave out is counted."""
        for _ in range(_MAX_LEFT_OUT):
            index = self.indices.get((env_id, level), 0)
            self.indices[env_id, level] = index + 1
            task = make(self.environments[env_id], "train", index, level, self.config.seed)
            tag = excluded_tag(task, self.config.controls.exclude_tags)
            if tag is None:
                return task
            self.left_out[env_id, tag] += 1
        raise UserError(
            f"{_MAX_LEFT_OUT} tasks of {env_id} level {level} in a row have the excluded tag {tag!r} "
            "(controls.exclude_tags): leave the environment out (envs.exclude)"
        )

    def audit(self) -> list[dict[str, Any]]:
        """The tasks that the controls left out so far: environment, reason, number."""
        return [
            {"id": env, "reason": f"tasks with the excluded tag {tag!r}", "tasks": n}
            for (env, tag), n in sorted(self.left_out.items())
        ]

    def calibration(self, n: int) -> list[tuple[Task, Effort]]:
        """n (task, effort) pairs to measure the policy on before training, spread evenly over environments, and within
        each over its cells. Always the same ones; of the train split, with indices below 0, which are never drawn."""
        own: dict[str, list[tuple[int, Effort]]] = {}
        for env_id, level, effort in self.cells:
            own.setdefault(env_id, []).append((level, effort))
        names, pairs = list(own), []
        for i in range(n):
            k, at = divmod(i, len(names))
            level, effort = own[names[at]][k % len(own[names[at]])]
            task = make(self.environments[names[at]], "train", -1 - k, level, self.config.seed)
            if excluded_tag(task, self.config.controls.exclude_tags) is None:
                pairs.append((task, effort))
        return pairs

    def observe(self, task: Task, effort: Effort, solved: float, samples: int) -> None:
        """Tell the mixture a finished group's solve rate, in [0, 1], over its valid samples."""
        cell = self.cells[task.environment, task.level, effort]
        cell.solve = _DECAY * cell.solve + (1 - _DECAY) * solved
        if samples > 1:  # the share of unequal pairs, twice: unbiased for any number of samples
            unequal = 4 * solved * (1 - solved) * samples / (samples - 1)
            cell.contrast = _DECAY * cell.contrast + (1 - _DECAY) * unequal

    def seed_solve_rates(self, rates: dict[tuple[str, int, Effort], float]) -> None:
        """Start cells from a calibration, so that the first steps already prefer what can be learned."""
        for key, rate in rates.items():
            if key in self.cells:
                self.cells[key].solve = rate
                self.cells[key].contrast = 4 * rate * (1 - rate)

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        return {
            "seed": self.config.seed,
            "drawn": self.drawn,
            "indices": [[*k, v] for k, v in self.indices.items()],
            "left_out": [[*k, v] for k, v in self.left_out.items()],
            "cells": [[e, lv, str(ef), c.draws, c.solve, c.contrast] for (e, lv, ef), c in self.cells.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore; raises ValueError if seed or cells differ from this configuration."""
        theirs = {(e, lv, Effort(ef)) for e, lv, ef, *_ in state["cells"]}
        if state["seed"] != self.config.seed or theirs != set(self.cells):
            odd = sorted(str(k) for k in theirs ^ set(self.cells))[:3]
            raise ValueError(f"the checkpoint's mixture does not fit this configuration (seed or cells differ: {odd})")
        self.drawn = state["drawn"]
        self.indices = {(e, lv): n for e, lv, n in state["indices"]}
        self.left_out = Counter({(e, tag): n for e, tag, n in state["left_out"]})
        for e, lv, ef, *values in state["cells"]:
            self.cells[e, lv, Effort(ef)] = Cell(*values)


def make(env: Environment, split: Split, index: int, level: int, seed: int = 0) -> Task:
    """A task of an environment; raises UserError, with its name, for whatever its own code raises."""
    try:
        task = env.task(split, index, level, seed)
        task.to_json()  # the ledger will
    except Exception as error:
        raise UserError(
            f"{env.id} cannot make its task {split}/{level}/{index}/{seed}: {brief(error)}; "
            f"see `jointrl env check {env.id}`, or leave it out (envs.exclude)"
        ) from error
    return task


def held_out(config: Config, environments: list[Environment], n: int) -> list[tuple[Task, Effort]]:
    """The n held-out (task, effort) pairs of this configuration, spread evenly: always the same, whatever was trained.

    Efforts and levels rotate within each environment, over tasks that all differ: more tasks say more about the mean
    than the same ones at every effort say about their differences. They come from the test split, which no training
    prompt is in.
    """
    split: Split = "test"
    pairs: list[tuple[Task, Effort]] = []
    for i in range(n):
        env = environments[i % len(environments)]
        k = i // len(environments)
        efforts = [e for e in env.efforts if getattr(config.effort, str(e)).enabled]
        levels = [lv for lv in config.envs.levels if lv in env.levels] or [min(env.levels)]
        effort = efforts[k % len(efforts)]
        level = levels[(k // len(efforts)) % len(levels)]
        pairs.append((make(env, split, k, level), effort))
    return pairs


def _env_weight(config: Config, id: str) -> float:
    matching = [w for pattern, w in config.envs.weights.items() if fnmatch.fnmatchcase(id, pattern)]
    return matching[-1] if matching else 1.0
