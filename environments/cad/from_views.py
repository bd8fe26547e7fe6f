"""Find a solid with given depth views from the front, the right and above."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from environments.base import Draft
from environments.cad.model import program
from environments.cad.modelling import Modelling
from environments.cad.solid import MANUAL, SIDE, ProgramError, parse, voxels
from environments.task import Message, Task
from rewards.answers import extract, last_reply
from rewards.grade import Grade

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

CELL = 4
"""Millimetres of a view's character."""
_DEPTHS = "0123456789AB"


def views(filled: np.ndarray) -> dict[str, str]:
    """bool [x, y, z] by cells as three views; a character is the number of empty cells before the first full one."""
    # Each is looked along its last axis: rows from above, columns from left to right.
    sides = {
        "front (from low y; columns x, rows z)": filled.transpose(2, 0, 1)[::-1],
        "right (from high x; columns y, rows z)": filled.transpose(2, 1, 0)[::-1, :, ::-1],
        "top (from high z; columns x, rows y)": filled.transpose(1, 0, 2)[::-1, :, ::-1],
    }
    return {
        name: "\n".join(
            "".join(_DEPTHS[d] if line[d] else "." for line, d in zip(r, r.argmax(-1), strict=True)) for r in s
        )
        for name, s in sides.items()
    }


class FromViews(Modelling):
    """Three depth maps must be combined into one solid; any solid that looks the same is right."""

    id = "cad/from_views"
    skills = ("geometry", "spatial")

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:
            boxes = []
            for number in range(2 + level):
                size = [CELL * rng.randint(2, 7) for _ in range(3)]
                at = [CELL * rng.randint(1, 10 - s // CELL) for s in size]
                boxes.append(
                    {"op": "cut" if number >= 2 and number % 2 else "add", "kind": "box", "at": at, "size": size}
                )
            text = program(boxes)
            whole = views(voxels(parse(text), CELL))
            fewer = (program(boxes[:i] + boxes[i + 1 :]) for i in range(1, len(boxes)))
            if all(views(voxels(parse(f), CELL)) != whole for f in fewer):
                break
        drawn = "\n\n".join(f"{name}:\n{view}" for name, view in whole.items())
        prompt = (
            f"{MANUAL}Three views of a solid follow. A character is a column of {CELL} x {CELL} mm cells (x, y and z "
            f"from 0 to {SIDE}) looked along: the number of empty {CELL} mm cells from the near side of the workspace "
            "to the first full one (A is 10, B is 11), or `.` where there is none. In each view left is low x (or low "
            "y), and the bottom row is low z (or, from the top, low y). All faces of the solid are at multiples of "
            f"{CELL} mm.\n\n{drawn}\n\nWrite a program of a solid with exactly these views (any one that has them is "
            "right). Answer with the program only."
        )
        return Draft(prompt, text)

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """All characters of all views must agree."""
        text = extract(last_reply(conversation))
        try:
            got = views(voxels(parse(text or ""), CELL))
        except ProgramError as error:
            return Grade.unparsed(why=str(error))
        return Grade.outcome(got == views(voxels(parse(task.answer), CELL)))
