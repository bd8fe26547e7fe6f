"""A nonogram: a picture from the lengths of its runs."""

from __future__ import annotations

import random
import re
from functools import cache
from itertools import groupby

from environments.base import Draft
from environments.images import text_of
from environments.logic.puzzle import Grid, asked, grid_text
from environments.task import Task


class Nonogram(Grid):
    """Solvable line by line, which also makes it unique; up to 9 x 9."""

    id = "logic/nonogram"
    skills = ("constraints",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        n = (4, 6, 9)[level - 1]
        while True:
            picture = [
                "".join(rng.choice("##.") if level < 3 else rng.choice("####...") for _ in range(n)) for _ in range(n)
            ]
            rows, columns = [runs(r) for r in picture], [runs("".join(c)) for c in zip(*picture, strict=True)]
            if propagate(rows, columns) == picture and sum(r.count(".") for r in picture) > 0:
                break
        text = (
            f"Solve this {n} x {n} nonogram: the numbers are the lengths of the runs of filled cells in a line, "
            "in order; runs are apart by at least one empty cell.\n"
            f"Rows, from top to bottom: {_listed(rows)}\nColumns, from left to right: {_listed(columns)}"
        )
        return asked(
            text,
            grid_text(picture),
            "Give the rows from top to bottom, separated by /, with # for filled and . for empty cells",
        )

    def weak(self, task: Task) -> str:
        """Goes over all lines once, and fills what is left open."""
        listed = re.findall(r"(?:to bottom|to right): (.+)", text_of(task.prompt[-1]))
        rows, columns = ([tuple(int(n) for n in c.split() if n != "0") for c in line.split(";")] for line in listed)
        return grid_text(propagate(rows, columns, 1)).replace("?", "#")


def _listed(clues: list[tuple[int, ...]]) -> str:
    return "; ".join(" ".join(map(str, c)) or "0" for c in clues)


def runs(line: str) -> tuple[int, ...]:
    """`##.#` is (2, 1)."""
    return tuple(len(list(g)) for c, g in groupby(line) if c == "#")


@cache
def _lines(clue: tuple[int, ...], n: int) -> tuple[str, ...]:
    """All lines of length n with these runs."""
    if not clue:
        return ("." * n,)
    found = []
    for start in range(n - sum(clue) - len(clue) + 2):
        head = "." * start + "#" * clue[0] + ("." if len(clue) > 1 else "")
        found += [head + rest for rest in _lines(clue[1:], n - len(head))]
    return tuple(found)


def propagate(rows: list[tuple[int, ...]], columns: list[tuple[int, ...]], rounds: int = 1000) -> list[str]:
    """What follows from single lines, `?` where nothing does; each round goes over all of them."""
    grid = [["?"] * len(columns) for _ in rows]
    changed = True
    while changed and rounds:
        changed, rounds = False, rounds - 1
        for clues, is_row in ((rows, True), (columns, False)):
            for i, clue in enumerate(clues):
                old = grid[i] if is_row else [r[i] for r in grid]
                fit = [ln for ln in _lines(clue, len(old)) if all(o in ("?", c) for o, c in zip(old, ln, strict=True))]
                new = [s.pop() if len(s := {ln[k] for ln in fit}) == 1 else "?" for k in range(len(old))]
                if new != old:
                    changed = True
                    for k, c in enumerate(new):
                        grid[i if is_row else k][k if is_row else i] = c
    return ["".join(r) for r in grid]
