"""For tests of single-turn families: a reply's grade, and replies that are right or just not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from environments.base import Environment
from environments.catalogue import resolve
from environments.task import Task


def reward(env: Environment, task: Task, *replies: str) -> float | None:
    """The reward of a conversation with these replies."""
    said = [{"role": "assistant", "content": text} for text in replies]
    return asyncio.run(env.grade(task, [*task.prompt, *said], None)).reward


def tasks(name: str, count: int = 3) -> Iterator[tuple[Environment, Task]]:
    """Some tasks of the shorter levels of an environment."""
    env = resolve(name)
    for level in env.levels[:3]:
        for index in range(count):
            yield env, env.task("train", index, level)
