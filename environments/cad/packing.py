"""Put parts of an assembly into a crate that they fill."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np

from environments.base import Draft
from environments.cad.model import LIMITS
from environments.cad.solid import MANUAL, SIDE, ProgramError, Solid, parse, solid, turning, voxels
from environments.question import Question
from environments.task import Message, Task
from rewards.answers import extract, last_reply, unfenced
from rewards.grade import Grade

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

CELL = 4
CRATES, COUNTS = ((3, 2, 2), (3, 3, 2), (4, 3, 3)), (2, 3, 5)
"""Cells of the crate, and parts."""
Cell = tuple[int, int, int]


class Packing(Question):
    """Parts of cubes are given turned; without a free cell in the crate, each must find its only place."""

    id = "cad/packing"
    domain = "cad"
    limits = LIMITS
    skills = ("spatial", "search")

    def draw(self, rng: random.Random, level: int) -> Draft:
        crate = CRATES[level - 1]
        while True:
            groups = _split(rng, crate, COUNTS[level - 1])
            if groups is not None:
                break
        parts, places = dict[str, str](), dict[str, Any]()
        for name, cells in zip("ABCDE", groups, strict=False):
            turn = [90 * rng.randrange(4) for _ in range(3)]
            given, move = _turned(cells, turn)
            boxes = ["translate({}, {}, {}, box(4, 4, 4))".format(*(CELL * v for v in c)) for c in given]
            parts[name] = f"union({', '.join(boxes)})" if len(boxes) > 1 else boxes[0]
            places[name] = {"rotate": turn, "translate": [CELL * m for m in move]}
        size = [CELL * v for v in crate]
        listed = "\n".join(f"{n} = {p}" for n, p in parts.items())
        text = (
            f"{MANUAL}These parts must all go into a crate from the origin to ({size[0]}, {size[1]}, {size[2]}), "
            f"without two of them sharing volume:\n\n{listed}\n\nFor each part give how it is first rotated, then "
            'translated (as the words of the language do), as one JSON object: {"A": {"rotate": [ax, ay, az], '
            '"translate": [dx, dy, dz]}, ...}. Answer with the JSON only.'
        )
        return Draft(text, json.dumps(places), {"parts": parts, "size": size})

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """Every part in the crate, no voxel twice."""
        text = extract(last_reply(conversation))
        try:
            places = json.loads(unfenced(text or ""))
            taken = np.zeros((SIDE,) * 3, np.int64)
            if not isinstance(places, dict) or {*places} != {*task.info["parts"]}:
                raise ProgramError("give a place for each part and nothing else")
            for name, source in task.info["parts"].items():
                taken += voxels(_placed(parse(source), places[name]))
        except (ValueError, RecursionError) as error:
            return Grade.unparsed(why=str(error)[:200])
        x, y, z = task.info["size"]
        # The parts have the crate's volume (and a rotation keeps it, but for one by odd angles, which leaves gaps).
        full = bool((taken[:x, :y, :z] == 1).all()) and int(taken.sum()) == x * y * z
        return Grade.outcome(full)


def _placed(part: Solid, place: Any) -> Solid:
    """Raises ProgramError for what is no place."""
    if not isinstance(place, dict) or {*place} != {"rotate", "translate"}:
        raise ProgramError("a place has rotate and translate")
    for values in place.values():
        good = isinstance(values, list) and len(values) == 3
        if not good or any(not isinstance(v, int | float) or isinstance(v, bool) or v != v for v in values):
            raise ProgramError("rotate and translate are three numbers each")
    if any(v % 90 for v in place["rotate"]) or any(abs(v) > 1000 for v in place["rotate"]):
        raise ProgramError("only right angles fill the crate")
    return solid("translate", (*place["translate"],), (solid("rotate", (*place["rotate"],), (part,)),))


def _split(rng: random.Random, crate: tuple[int, int, int], count: int) -> list[list[Cell]] | None:
    """The crate's cells in parts that hang together, grown one cell at a time; None where one stays tiny."""
    free = {(x, y, z) for x in range(crate[0]) for y in range(crate[1]) for z in range(crate[2])}
    groups = [[c] for c in rng.sample(sorted(free), count)]
    free -= {g[0] for g in groups}
    while free:
        group = rng.choice(groups)
        edge = sorted(c for c in free if any(sum(abs(a - b) for a, b in zip(c, g, strict=True)) == 1 for g in group))
        if edge:
            group.append(rng.choice(edge))
            free.discard(group[-1])
    return groups if min(map(len, groups)) >= 3 else None


def _turned(cells: list[Cell], turn: list[int]) -> tuple[list[list[int]], list[int]]:
    """Cells of a part in its own frame (lowest corner at the origin), and the translation that undoes it.

    Rotating the given part by `turn` and translating it by the result (in cells) puts it where the cells are.
    """
    matrix = turning(tuple(turn))
    corners = np.array(cells) + 0.5
    back = corners @ matrix  # the inverse rotation of each centre
    low = np.floor(back.min(0))
    move = matrix @ low
    return sorted([int(v) for v in c] for c in np.floor(back - low)), [round(v) for v in move]
