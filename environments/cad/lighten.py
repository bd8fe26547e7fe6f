"""Design a bracket that is light, whole, keeps what must be kept and leaves free what must be free."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np

from environments.base import Draft
from environments.cad.model import expression, shape
from environments.cad.modelling import Desk
from environments.cad.solid import MANUAL, ProgramError
from environments.simulation import Simulation
from environments.task import Limits, Task
from environments.tools import ToolError, tool
from rewards.grade import Grade

PADS, SLACK = (2, 3, 5), (1.5, 1.2, 1.05)
"""Bolted places, and the mass allowed as a multiple of our own design's."""


def pieces(filled: np.ndarray) -> bool:
    """Whether a shape is of one piece (voxels that share a face)."""
    if not len(spots := np.argwhere(filled)):
        return False
    filled = filled[tuple(slice(low, high + 1) for low, high in zip(spots.min(0), spots.max(0), strict=True))]
    reached, size = np.zeros_like(filled), 0
    reached[tuple(spots[0] - spots.min(0))] = True
    while size < (size := int(reached.sum())):
        for axis in range(3):  # over whole runs at once, there and back: a sweep a bend, not a step a voxel
            ours, theirs = np.moveaxis(reached, axis, 0), np.moveaxis(filled, axis, 0)
            for k in range(1, len(ours)):
                ours[k] |= ours[k - 1] & theirs[k]
            for k in range(len(ours) - 2, -1, -1):
                ours[k] |= ours[k + 1] & theirs[k]
    return bool(size == filled.sum())


@lru_cache(maxsize=64)
def whole(text: str) -> bool:
    """Whether a program's shape is of one piece; kept, for a design is looked at several times. Raises ProgramError."""
    return pieces(shape(text))


def faults(text: str, info: dict[str, Any]) -> list[str]:
    """What a design does wrong, in words. Raises ProgramError."""
    got = shape(text)
    room, keep, free = (shape(info[k]) for k in ("room", "keep", "free"))
    out = []
    if (got & ~room).any():
        out.append(f"{int((got & ~room).sum())} mm3 lie outside the allowed block")
    if (keep & ~free & ~got).any():
        out.append(f"{int((keep & ~free & ~got).sum())} mm3 of the pads are missing")
    if (got & free).any():
        out.append(f"{int((got & free).sum())} mm3 are in the bolt holes")
    if got.sum() > info["most"]:
        out.append(f"the volume is {int(got.sum())} mm3, more than {info['most']}")
    elif not whole(text):  # looked at only where the volume bounds the work
        out.append("the part is not of one piece")
    return out


class Bench(Desk):
    """Where a design is looked at before it is handed in."""

    @tool
    def check(self, program: str) -> list[str]:
        """What is wrong with a design; an empty list if nothing is."""
        try:
            return faults(program, self.task.info)
        except ProgramError as error:
            raise ToolError(str(error)) from None


class Lighten(Simulation):
    """Many designs are right; more pads in space and a tighter mass leave fewer."""

    id = "cad/lighten"
    domain = "cad"
    skills = ("geometry", "design")
    world = Bench
    limits = Limits(turns=24, tokens=32_768, seconds=60.0)

    def draw(self, rng: random.Random, level: int) -> Draft:
        size = [rng.randint(30, 40), rng.randint(24, 36), rng.randint(14, 24)]
        at = [rng.randint(1, 6) for _ in range(3)]
        pads, holes = list[str](), list[str]()
        spots = list[list[int]]()
        while len(spots) < PADS[level - 1]:
            spot = [at[i] + rng.randint(0, size[i] - 8) for i in range(2)] + [at[2] + rng.randint(0, size[2] - 5)]
            if all(abs(spot[0] - s[0]) > 9 or abs(spot[1] - s[1]) > 9 for s in spots):
                spots.append(spot)
            elif rng.random() < 0.02:
                spots.clear()
        lines = []
        for i, (x, y, z) in enumerate(spots, 1):
            r = rng.randint(1, 2)
            pads.append(expression({"kind": "box", "at": [x, y, z], "size": [8, 8, 5]}))
            holes.append(
                expression({"kind": "cylinder", "axis": "z", "at": [x + 4, y + 4, at[2]], "r": r, "h": size[2]})
            )
            lines.append(f"pad {i}: {pads[-1]}, bolt hole {holes[-1]}")
        room = expression({"kind": "box", "at": at, "size": size})
        keep, free = f"union({', '.join(pads)})", f"union({', '.join(holes)})"
        # Our design: from each pad a bar of 2 x 2 mm along x, y and z to the first; holes pass beside the bars' ends.
        bars = [b for spot in spots[1:] for b in _bars(spots[0], spot)]
        design = f"difference(union({', '.join([*pads, *bars])}), {', '.join(holes)})"
        most = round(int(shape(design).sum()) * SLACK[level - 1])
        listed = "\n".join(lines)
        text = (
            f"{MANUAL}Design a bracket of one piece inside the block {room}. Each pad must be solid but for the bolt "
            f"holes, and nothing may be in any bolt hole, which run through the whole height of the block:\n{listed}\n"
            f"The volume must be at most {most} mm3 (voxels hang together by shared faces). `check` names what is "
            "wrong; hand in with `submit`."
        )
        info = {"room": room, "keep": keep, "free": free, "most": most, "design": design}
        if faults(design, info):  # a bar cut through by a hole, for one
            return self.draw(rng, level)
        return Draft(text, None, info)

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        design = task.info["design"]
        return [("check", {"program": design}), ("submit", {"program": design})], ""

    def judge(self, task: Task, world: Any, answer: str | None) -> Grade:
        try:
            wrong = ["nothing was handed in"] if world.handed is None else faults(world.handed, task.info)
        except ProgramError as error:
            wrong = [str(error)]
        return Grade.outcome(not wrong, wrong=wrong)


def _bars(a: list[int], b: list[int]) -> list[str]:
    """Bars from a corner of one pad along x, then y, then z to that corner of another."""
    out, here = list[str](), [*a]
    for axis in range(3):
        there = [*here]
        there[axis] = b[axis]
        low = [min(p, q) for p, q in zip(here, there, strict=True)]
        size = [abs(p - q) + 2 for p, q in zip(here, there, strict=True)]
        out.append(expression({"kind": "box", "at": low, "size": size}))
        here = there
    return out
