"""For tests of single-turn families: a reply's grade, and replies that are right or just not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

from environments.base import Environment
from environments.catalogue import resolve
from environments.task import Task


def reward(env: Environment, task: Task, *replies: str) -> float | None:
    """The reward of a conversation with these replies."""
    said = [{"role": "assistant", "content": text} for text in replies]
    return asyncio.run(env.grade(task, [*task.prompt, *said], None)).reward


_MANY = "chairs coins days hours houses items litres metres minutes people pieces rows steps words workers years"
_CLUMSY = re.compile(
    rf"(?<![\w.,:/#-])1 (?:{'|'.join(_MANY.split())})\b"  # one of something
    r"|\ba (?=[aeio]|u[mnp](?!i))(?!one\b)\w+|\ban (?=[b-df-gj-np-tv-z])\w+"  # a apple, an pear
    r"|\w\(s\)|\bsince \d+ (?:hours|days)|(?<!1)[123]th\b"
)


def slips(text: str) -> list[str]:
    """Slips of grammar: counts of one, articles, ordinals."""
    return [m[0] for m in _CLUMSY.finditer(text)]


def clumsy(name: str, count: int = 12) -> list[str]:
    """Slips in what the user says in some tasks of an environment."""
    env, found = resolve(name), []
    for level in env.levels[:3]:
        for index in range(count if level < 2 or "long_context" not in name else 0):
            task = env.task("train", index, level)
            said = [m["content"] for m in task.prompt] + task.info.get("said", [])
            found += [slip for text in said for slip in slips(text)]
    return found


def tasks(name: str, count: int = 3) -> Iterator[tuple[Environment, Task]]:
    """Some tasks of the shorter levels of an environment."""
    env = resolve(name)
    for level in env.levels[:3]:
        for index in range(count):
            yield env, env.task("train", index, level)
