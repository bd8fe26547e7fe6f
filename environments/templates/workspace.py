"""Write a file from others in a sandbox with a shell."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, read_text
from rewards.grade import Grade


class Template(Workspace):
    """The names that stand in every list, sorted; more and longer lists by level."""

    skills = ("shell", "text")

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = [f"user{n}" for n in rng.sample(range(1000, 10_000), 20 * level)]
        common = rng.sample(names, 3 + level)
        lists = {}
        for number in range(1 + level):
            own = [name for name in names if name in common or rng.random() < 0.4]
            lists[f"lists/{number}.txt"] = "\n".join(rng.sample(own, len(own))) + "\n"
        wanted = sorted(set.intersection(*(set(text.split()) for text in lists.values())))
        text = "Write common.txt: the names that stand in every file of lists/, one a line, sorted. Then say `done`."
        return Draft(text, "done", {"lists": lists, "wanted": "\n".join(wanted) + "\n"})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return dict(task.info["lists"])

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        count = len(task.info["lists"])
        command = f"cat lists/* | sort | uniq -c | awk '$1 == {count} {{ print $2 }}' > common.txt"
        return [("bash", {"command": command})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        found = await read_text(place, "common.txt")
        return Grade.outcome(found is not None and found.split() == task.info["wanted"].split())
