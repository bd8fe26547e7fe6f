"""The run's parts in one process, on single-turn environments: no Ray, no engines, no sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from environments.catalogue import resolve, select
from environments.task import Task
from model import QuantSpec, build_policy
from model.chat import ChatTokenizer
from rewards.efforts import Effort
from rl import evaluate
from rl.assess import Assessed, assess
from rl.config import TINY, Config
from rl.examine import sample
from rl.learner import initial
from rl.state import RunState
from rollout.trajectory import Group, GroupOrder, Node, Sampling, StopReason, Trajectory


def configured(changes: dict[str, Any], seed: int) -> Config:
    """The default configuration with dotted changes. Raises ValueError for a key that does not exist."""
    config = Config(seed=seed)
    for key, value in changes.items():
        *path, last = key.split(".")
        at: Any = config
        for name in path:
            at = getattr(at, name)
        if not hasattr(at, last):
            raise ValueError(f"unknown key {key}")
        setattr(at, last, value)
    return config


class Solo:
    """A policy from a start (a file, or a folder that `jointrl ckpt export` wrote), its mixture and its state; samples
    are exactly on policy."""

    def __init__(self, config: Config, start: str | Path, envs: Sequence[str] = TINY, device: str | None = None):
        torch.set_num_threads(1)
        self.config = config
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.tok = ChatTokenizer()
        specs, _ = select(list(envs), [])
        self.environments = [e for e in (resolve(s.id) for s in specs) if not e.needs_sandbox]
        q = config.model.quant
        spec = QuantSpec(q.expert_weights, q.expert_activations, q.scale_rule)
        self.policy = build_policy("k3", config.model.preset, quant=spec, seed=config.seed)
        config.policy.init = str(start)
        initial.load(config, self.policy)
        self.policy.to(self.device).refresh_quantized()
        self.policy.train(False)
        self.state = RunState(config, self.environments)

    def play(self, orders: Sequence[GroupOrder], temperature: float, noise: int) -> list[Group]:
        """Sample and grade every order's continuations, all in one batch; `noise` seeds the sampling."""
        prompts = [self.tok.render_prompt(list(o.task.prompt), [], str(o.effort)) for o in orders for _ in o.seeds]
        replies = sample(self.policy, self.tok, prompts, temperature, noise)

        async def grade() -> list[Any]:
            tasks = [o.task for o in orders for _ in o.seeds]
            return [
                await resolve(t.environment).grade(t, [*t.prompt, self.tok.parse(ids).message], None)
                for t, ids in zip(tasks, replies, strict=True)
            ]

        rest = iter(zip(prompts, replies, asyncio.run(grade()), strict=True))
        return [
            Group(o, [self._trajectory(o, i, temperature, *next(rest)) for i in range(len(o.seeds))]) for o in orders
        ]

    def _trajectory(
        self, order: GroupOrder, index: int, temperature: float, prompt: list[int], ids: list[int], grade: Any
    ) -> Trajectory:
        n = len(ids)
        versions = np.full(n, self.state.version, np.int32)
        columns = (np.asarray(ids, np.int32), np.zeros(n, np.float32), np.ones(n, np.uint8), versions)
        t = Trajectory(f"{order.id}/{index}", order.task, order.effort, [Node.given("user", prompt)])
        t.append(Node("assistant", *columns, Sampling(temperature or 1.0)))
        t.stop, t.grade = StopReason.DONE, grade
        return t

    def calibrate(self) -> None:
        """Base lengths and the mixture's first solve rates, as the run gets them."""
        config = self.config
        pairs = self.state.mixture.calibration(config.evaluation.calibration_tasks)
        orders = evaluate.orders(pairs, "calibration", config.seed, False)
        self.state.calibrate(evaluate.rows(self.play(orders, 1.0, 7), []))

    def examine(self, pairs: Sequence[tuple[Task, Effort]], label: str) -> dict[str, Any]:
        """Held-out tasks, sampled and greedy."""
        out: dict[str, Any] = {"label": label, "step": self.state.step}
        for purpose, temperature in (("sampled", 1.0), ("greedy", 0.0)):
            orders = [
                o for o in evaluate.orders(list(pairs), label, self.config.seed, True) if o.temperature == temperature
            ]
            rows = evaluate.rows(self.play(orders, temperature, 7), [])
            out[purpose] = evaluate.summary(rows, purpose)
        return out

    def assess(self, group: Group, step: int) -> Assessed:
        """As the run does it at a step."""
        task = group.order.task
        base = self.state.lengths.get(task.environment, task.level)
        return assess(group, self.state.effort, base, step, self.config)
