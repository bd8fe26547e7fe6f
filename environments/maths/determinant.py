"""The determinant of a large matrix with a pattern."""

from __future__ import annotations

import random
from collections.abc import Callable

from environments.base import Draft
from environments.maths.problem import Problem, asked


class Determinant(Problem):
    """From level 2 too large for expansion: the pattern gives a recurrence or a product."""

    id = "maths/determinant"
    skills = ("linear algebra",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        n = (rng.randint(3, 4), rng.randint(6, 9), rng.randint(10, 16))[level - 1]
        while True:
            text, entry = _pattern(rng, *(rng.choice([k for k in range(-9, 10) if k]) for _ in range(3)))
            value = determinant([[entry(i, j) for j in range(1, n + 1)] for i in range(1, n + 1)])
            if value:
                break
        text = f"A is the {n} x {n} matrix whose entry in row i and column j (counted from 1) is {text}. What is det A?"
        return asked(text, value, "Give the exact integer; powers such as 3^7 are allowed in it")


def _pattern(rng: random.Random, x: int, y: int, z: int) -> tuple[str, Callable[[int, int], int]]:
    """A rule for the entries, in words and as a function of (row, column)."""
    shift = f"{'-' if x < 0 else '+'} {abs(x)}"
    patterns: list[tuple[str, Callable[[int, int], int]]] = [
        (
            f"{x} if i = j, {y} if j = i + 1, {z} if j = i - 1, and 0 otherwise",
            lambda i, j: {0: x, 1: y, -1: z}.get(j - i, 0),
        ),
        (f"{x} if i = j, {y} if i < j, and {z} if i > j", lambda i, j: x if i == j else y if i < j else z),
        (f"min(i, j) {shift} if i = j, and min(i, j) otherwise", lambda i, j: min(i, j) + x * (i == j)),
        (f"i {shift} if i = j, and {y} otherwise", lambda i, j: i + x if i == j else y),
        (f"{x} + |i - j|", lambda i, j: x + abs(i - j)),
    ]
    return rng.choice(patterns)


def determinant(rows: list[list[int]]) -> int:
    """By fraction-free elimination (Bareiss): every division is exact."""
    rows, sign, before = [list(r) for r in rows], 1, 1
    for k in range(len(rows) - 1):
        pivot = next((i for i in range(k, len(rows)) if rows[i][k]), None)
        if pivot is None:
            return 0
        if pivot != k:
            rows[k], rows[pivot], sign = rows[pivot], rows[k], -sign
        for i in range(k + 1, len(rows)):
            for j in range(k + 1, len(rows)):
                rows[i][j] = (rows[i][j] * rows[k][k] - rows[i][k] * rows[k][j]) // before
        before = rows[k][k]
    return sign * rows[-1][-1]
