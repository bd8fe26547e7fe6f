"""Rebuild a part that can only be measured: volume, extent and sections by tools."""

from __future__ import annotations

import random
from typing import Any, Literal

import numpy as np

from environments.base import Draft
from environments.cad.from_sections import spans
from environments.cad.model import judged, overlap, part, program, shape
from environments.cad.modelling import Desk
from environments.cad.solid import MANUAL, SIDE, ProgramError, parse, voxels
from environments.simulation import Simulation
from environments.task import Limits, Task
from environments.tools import ToolError, tool
from rewards.grade import Grade

COMPARES = 3


class Scanner(Desk):
    """The hidden part, and the comparisons that are left."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.part = shape(task.answer)
        self.compares = COMPARES

    @tool
    def extent(self) -> dict[str, Any]:
        """The part's volume in cubic millimetres, and its least and greatest coordinate on each axis."""
        out: dict[str, Any] = {"volume": int(self.part.sum())}
        for axis, name in enumerate("xyz"):
            hit = np.flatnonzero(self.part.any(tuple(a for a in range(3) if a != axis)))
            out[name] = [int(hit[0]), int(hit[-1]) + 1]
        return out

    @tool
    def section(self, axis: Literal["x", "y", "z"], at: int) -> str:
        """The section through the millimetre from `at` to `at + 1` of an axis, as a table of the material in it."""
        if not 0 <= at < SIDE:
            raise ToolError(f"at goes from 0 to {SIDE - 1}")
        flat = np.take(self.part, at, "xyz".index(axis))
        across, along = [n for n in "xyz" if n != axis]
        rows = [f"{along} {i}-{i + 1}: {across} {spans(flat[:, i])}" for i in range(SIDE) if flat[:, i].any()]
        return "\n".join(rows) or "empty"

    @tool
    def compare(self, program: str) -> dict[str, Any]:
        """How far a program agrees with the part: intersection over union; only 3 times."""
        if not self.compares:
            raise ToolError("no comparison is left")
        try:
            score = overlap(voxels(parse(program)), self.part)
        except ProgramError as error:
            raise ToolError(str(error)) from None
        self.compares -= 1
        return {"overlap": round(score, 6), "comparisons_left": self.compares}


class Scan(Simulation):
    """More features need more, and the right, sections: a hole along x is hardly seen in sections across z."""

    id = "cad/scan"
    domain = "cad"
    skills = ("geometry", "measurement")
    world = Scanner
    limits = Limits(turns=32, tokens=32_768, seconds=60.0)

    def draw(self, rng: random.Random, level: int) -> Draft:
        target = program(part(rng, level - 1, level))
        text = (
            f"{MANUAL}A part (whole millimetres; a plate with blocks and round bosses on it, and with holes and "
            "pockets) lies in a scanner. Measure it with `extent` and `section`, and hand in a program of exactly the "
            f"same solid with `submit`. `compare` may be used {COMPARES} times before."
        )
        return Draft(text, target, {"part": target})

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        low = [("extent", {}), *(("section", {"axis": a, "at": 24}) for a in "xyz")]
        return [*low, ("compare", {"program": task.answer}), ("submit", {"program": task.answer})], ""

    def judge(self, task: Task, world: Any, answer: str | None) -> Grade:
        return judged(world.handed, task.answer)
