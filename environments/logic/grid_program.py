"""Find the transformation of grids from examples, and apply it: a composition of operations on shapes and colours."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from itertools import product

from environments.base import Draft
from environments.images import text_of
from environments.logic.puzzle import Grid as GridPuzzle
from environments.logic.puzzle import asked, grid_text
from environments.task import Task

Grid = tuple[tuple[int, ...], ...]
"""0 is the background."""


def _columns(g: Grid) -> Grid:
    return tuple(zip(*g, strict=True))


def _turn(g: Grid) -> Grid:
    return tuple(tuple(r) for r in zip(*g[::-1], strict=True))


def _fall(g: Grid) -> Grid:
    """Every coloured cell falls to the bottom of its column."""
    return _columns(tuple(tuple([0] * c.count(0) + [x for x in c if x]) for c in _columns(g)))


def _crop(g: Grid) -> Grid:
    """The smallest box around what is coloured."""
    rows = [i for i, r in enumerate(g) if any(r)]
    columns = [j for j, c in enumerate(_columns(g)) if any(c)]
    return tuple(r[columns[0] : columns[-1] + 1] for r in g[rows[0] : rows[-1] + 1]) if rows else g


def _ranked(g: Grid) -> list[int]:
    counts = Counter(x for r in g for x in r if x)
    return sorted(counts, key=lambda x: (-counts[x], x))


def _keep_most(g: Grid) -> Grid:
    most = _ranked(g)[:1]
    return tuple(tuple(x if x in most else 0 for x in r) for r in g)


def _drop_most(g: Grid) -> Grid:
    most = _ranked(g)[:1]
    return tuple(tuple(0 if x in most else x for x in r) for r in g)


def _swap_two(g: Grid) -> Grid:
    """The two most frequent colours change places."""
    top = _ranked(g)[:2]
    swap = dict(zip(top, top[::-1], strict=True))
    return tuple(tuple(swap.get(x, x) for x in r) for r in g)


def _fill_rows(g: Grid) -> Grid:
    """Background between two cells of one colour in a row takes their colour."""
    rows = []
    for r in g:
        row, last = list(r), -1
        for j, x in enumerate(r):
            if x:
                if last >= 0 and r[last] == x:
                    row[last:j] = [x] * (j - last)
                last = j
        rows.append(tuple(row))
    return tuple(rows)


def _outline(g: Grid) -> Grid:
    """Coloured cells with coloured cells on all four sides become background."""

    def at(i: int, j: int) -> int:
        return g[i][j] if 0 <= i < len(g) and 0 <= j < len(g[0]) else 0

    around = ((1, 0), (-1, 0), (0, 1), (0, -1))
    return tuple(
        tuple(0 if all(at(i + a, j + b) for a, b in around) else x for j, x in enumerate(r)) for i, r in enumerate(g)
    )


OPERATIONS: dict[str, Callable[[Grid], Grid]] = {
    "mirror": lambda g: tuple(r[::-1] for r in g),
    "turn": _turn,
    "transpose": _columns,
    "fall": _fall,
    "crop": _crop,
    "keep most": _keep_most,
    "drop most": _drop_most,
    "swap two": _swap_two,
    "fill rows": _fill_rows,
    "outline": _outline,
    "beside itself": lambda g: tuple(r + r[::-1] for r in g),
    "shift": lambda g: tuple(r[-1:] + r[:-1] for r in g),
}


class GridProgram(GridPuzzle):
    """One or two operations in a row. Every program that explains the examples gives the same answer."""

    id = "logic/grid_program"
    skills = ("induction", "spatial reasoning")

    def draw(self, rng: random.Random, level: int) -> Draft:
        length = 1 if level == 1 else 2
        size = 4 + level
        while True:
            program = tuple(rng.choice(list(OPERATIONS)) for _ in range(length))
            grids = [_scene(rng, size, 2 + (level > 1)) for _ in range(4)]
            pairs = [(g, apply(program, g)) for g in grids]
            if any(a == b or not 0 < len(b) * len(b[0]) <= 150 or not any(map(any, b)) for a, b in pairs):
                continue
            if len(program) > 1 and any(apply(p, pairs[0][0]) == pairs[0][1] for p in product(OPERATIONS, repeat=1)):
                continue
            rivals = [p for k in range(1, length + 1) for p in product(OPERATIONS, repeat=k)]
            for a, b in pairs[:3]:
                rivals = [p for p in rivals if apply(p, a) == b]
            if {apply(p, pairs[3][0]) for p in rivals} == {pairs[3][1]}:
                break
        shown = [f"Input {i + 1}:\n{_show(a)}\nOutput {i + 1}:\n{_show(b)}" for i, (a, b) in enumerate(pairs[:3])]
        text = (
            (
                "One and the same transformation turns each input grid into its output grid (0 is the background, "
                "other digits are colours):\n\n"
            )
            + "\n\n".join(shown)
            + f"\n\nApply it to this grid:\n{_show(pairs[3][0])}"
        )
        return asked(
            text,
            grid_text([list(r) for r in pairs[3][1]]),
            "Give the rows of the output from top to bottom, separated by /, as in 102/220",
        )

    def weak(self, task: Task) -> str:
        """Tries single operations."""
        blocks = re.findall(r":\n((?:\d+\n?)+)", text_of(task.prompt[-1]))
        *pairs, last = (tuple(tuple(map(int, row)) for row in block.split()) for block in blocks)
        fits = [f for f in OPERATIONS.values() if all(f(a) == b for a, b in zip(pairs[::2], pairs[1::2], strict=True))]
        return grid_text([list(row) for row in (fits[0](last) if fits else last)])


def apply(program: tuple[str, ...], g: Grid) -> Grid:
    """The operations in order."""
    for name in program:
        g = OPERATIONS[name](g)
    return g


def _show(g: Grid) -> str:
    return "\n".join("".join(map(str, r)) for r in g)


def _scene(rng: random.Random, size: int, shapes: int) -> Grid:
    """Rectangles of different colours, some over others, and single cells."""
    height, width = size, size + rng.randint(0, 2)
    grid = [[0] * width for _ in range(height)]
    for colour in rng.sample(range(1, 8), shapes):
        h, w = rng.randint(1, 3), rng.randint(1, 4)
        top, left = rng.randint(0, height - h), rng.randint(0, width - w)
        for i in range(h):
            grid[top + i][left : left + w] = [colour] * w
        grid[rng.randrange(height)][rng.randrange(width)] = colour
    return tuple(map(tuple, grid))
