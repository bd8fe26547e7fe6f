"""Move boxes between shelves with tools: a world in memory."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.simulation import Simulation, World
from environments.task import Task
from environments.tools import ToolError, tool
from rewards.grade import Grade


class Shelves(World):
    """What lies where: a dict from box to shelf."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.place = dict(task.info["place"])

    @tool
    def shelf(self, number: int) -> list[str]:
        """The boxes on a shelf."""
        return sorted(box for box, at in self.place.items() if at == number)

    @tool
    def move(self, box: str, number: int) -> str:
        """Move a box to a shelf."""
        if box not in self.place:
            raise ToolError(f"there is no box {box!r}")
        self.place[box] = number
        return "moved"


class Template(Simulation):
    """Some boxes must end on one shelf, all others where they were; more boxes by level."""

    skills = ("tools",)
    world = Shelves

    def draw(self, rng: random.Random, level: int) -> Draft:
        boxes = [f"box-{n}" for n in rng.sample(range(100, 1000), 4 * level)]
        place = {box: rng.randint(1, 4) for box in boxes}
        moved = rng.sample(boxes, 1 + level)
        text = f"Bring {', '.join(moved)} to shelf 5, and leave all else where it is. There are 5 shelves. Say `done`."
        return Draft(text, "done", {"place": place, "wanted": place | dict.fromkeys(moved, 5), "moved": moved})

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        return [("move", {"box": box, "number": 5}) for box in task.info["moved"]], "done"

    def judge(self, task: Task, world: Any, answer: str | None) -> Grade:
        return Grade.outcome(world.place == task.info["wanted"])
