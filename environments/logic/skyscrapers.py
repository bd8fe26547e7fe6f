"""Skyscrapers: a Latin square by how many buildings are seen from its edges."""

from __future__ import annotations

import random
import re
from functools import cache
from itertools import permutations

from environments.base import Draft
from environments.images import text_of
from environments.logic.puzzle import Grid, asked, grid_text
from environments.task import Task

Clues = dict[tuple[str, int], int]
"""(`top`, `bottom`, `left` or `right`; line) -> buildings seen."""


class Skyscrapers(Grid):
    """The clues are thinned out until the square is barely unique; any layout of the grid is read."""

    id = "logic/skyscrapers"
    skills = ("constraints",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        n = 3 + min(level, 2)
        square = latin(n, rng)
        clues = look(square)
        given: dict[tuple[int, int], int] = {}
        while len(found := solve(n, clues, given)) > 1:
            r, c = next((r, c) for r in range(n) for c in range(n) if found[0][r][c] != found[1][r][c])
            given[r, c] = square[r][c]
        for key in rng.sample(list(clues), len(clues))[: 3 + 2 * level]:
            fewer = {k: v for k, v in clues.items() if k != key}
            if len(solve(n, fewer, given)) == 1:
                clues = fewer
        sides = [
            f"- {s}: " + " ".join(str(clues.get((s, i), "-")) for i in range(n))
            for s in ("top", "bottom", "left", "right")
        ]
        also = "".join(f"\n- Row {r + 1}, column {c + 1} is {v}." for (r, c), v in sorted(given.items()))
        text = (
            f"Fill a {n} x {n} grid so that each row and each column holds the heights 1 to {n} once. A number at "
            "an edge says how many buildings are seen from "
            "there along the line, where taller ones hide those behind; `-` says nothing. Numbers at top and "
            "bottom go from left to right, at left and "
            f"right from top to bottom.\n" + "\n".join(sides) + also
        )
        return asked(text, grid_text(square), "Give the rows from top to bottom, separated by /, as in 123/231/312")

    def weak(self, task: Task) -> str:
        """Takes the first square that fits the clues at left and right."""
        text = text_of(task.prompt[-1])
        sides = {s: told.split() for s, told in re.findall(r"- (left|right): (.+)", text)}
        clues = {(s, i): int(c) for s, told in sides.items() for i, c in enumerate(told) if c != "-"}
        also = re.findall(r"Row (\d), column (\d) is (\d)", text)
        given = {(int(r) - 1, int(c) - 1): int(v) for r, c, v in also}
        square = solve(len(sides["left"]), clues, given, most=1)[0]
        return grid_text([[*row] for row in square])


def seen(line: list[int] | tuple[int, ...]) -> int:
    """Buildings that are seen from the front of a line."""
    tallest = count = 0
    for h in line:
        if h > tallest:
            tallest, count = h, count + 1
    return count


def latin(n: int, rng: random.Random) -> list[list[int]]:
    """A shuffled cyclic square."""
    rows, columns, names = (rng.sample(range(n), n) for _ in range(3))
    return [[names[(r + c) % n] + 1 for c in columns] for r in rows]


def look(square: list[list[int]]) -> Clues:
    """All clues of a square."""
    columns = list(zip(*square, strict=True))
    clues = {("left", i): seen(r) for i, r in enumerate(square)} | {
        ("right", i): seen(r[::-1]) for i, r in enumerate(square)
    }
    return (
        clues
        | {("top", i): seen(c) for i, c in enumerate(columns)}
        | {("bottom", i): seen(c[::-1]) for i, c in enumerate(columns)}
    )


@cache
def _rows(n: int, front: int | None, back: int | None) -> list[tuple[int, ...]]:
    """Lines that show so many buildings from their ends."""
    lines = permutations(range(1, n + 1))
    return [p for p in lines if front in (None, seen(p)) and back in (None, seen(p[::-1]))]


@cache
def _after(n: int, front: int | None, back: int | None) -> dict[tuple[int, ...], set[int]]:
    """The beginnings of such lines, and what may follow each."""
    found: dict[tuple[int, ...], set[int]] = {}
    for p in _rows(n, front, back):
        for k in range(n):
            found.setdefault(p[:k], set()).add(p[k])
    return found


def solve(n: int, clues: Clues, given: dict[tuple[int, int], int], most: int = 2) -> list[list[tuple[int, ...]]]:
    """At most so many solutions: rows that fit their clues, stacked while no column repeats."""
    rows = [
        [
            p
            for p in _rows(n, clues.get(("left", r)), clues.get(("right", r)))
            if all(p[c] == v for (q, c), v in given.items() if q == r)
        ]
        for r in range(n)
    ]
    columns = [_after(n, clues.get(("top", c)), clues.get(("bottom", c))) for c in range(n)]
    found: list[list[tuple[int, ...]]] = []

    def extend(grid: list[tuple[int, ...]]) -> None:
        if len(grid) == n:
            found.append(grid)
            return
        heads = zip(*grid, strict=True) if grid else [()] * n
        allowed = [columns[c].get(tuple(h), set()) for c, h in enumerate(heads)]
        for row in rows[len(grid)]:
            if len(found) < most and all(h in a for h, a in zip(row, allowed, strict=True)):
                extend([*grid, row])

    extend([])
    return found
