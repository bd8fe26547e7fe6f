"""The value of a zero-sum game."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations

from environments.base import Draft
from environments.maths.problem import Problem, asked


class MatrixGame(Problem):
    """Mixed strategies are needed, and from level 2 some rows or columns are never played."""

    id = "maths/matrix_game"
    skills = ("game theory", "linear algebra")

    def draw(self, rng: random.Random, level: int) -> Draft:
        shape = ((2, 2), (2, 4), (3, 4))[level - 1]
        while True:
            rows = [[rng.randint(-9, 9) for _ in range(shape[1])] for _ in range(shape[0])]
            columns = list(zip(*rows, strict=True))
            if max(map(min, rows)) < min(map(max, columns)):
                break
        table = "\n".join(f"Row {i + 1}: " + ", ".join(map(str, r)) for i, r in enumerate(rows))
        text = (
            "Rosa chooses a row and Carl a column, secretly and at the same time. Carl then pays Rosa the entry (if it "
            "is negative, she pays him):\n"
            f"{table}\nBoth play optimally, mixing their choices as they like. What is the value of the game for Rosa?"
        )
        return asked(text, value(rows), "Give an exact integer or fraction")


def value(rows: list[list[int]]) -> Fraction:
    """By Shapley and Snow: some square subgame gives both optimal mixtures, which nobody can improve on."""
    m, n = len(rows), len(rows[0])
    for k in range(1, min(m, n) + 1):
        for some in combinations(range(m), k):
            for those in combinations(range(n), k):
                mine = _equal([[rows[i][j] for i in some] for j in those])
                theirs = _equal([[rows[i][j] for j in those] for i in some])
                if mine is None or theirs is None or min(mine[:-1]) < 0 or min(theirs[:-1]) < 0:
                    continue
                v = mine[-1]
                holds = all(sum(p * rows[i][j] for p, i in zip(mine, some, strict=False)) >= v for j in range(n))
                if holds and all(
                    sum(p * rows[i][j] for p, j in zip(theirs, those, strict=False)) <= v for i in range(m)
                ):
                    return v
    raise AssertionError("every matrix game has a value")


def _equal(lines: list[list[int]]) -> list[Fraction] | None:
    """Weights that add to 1 and make all lines equal to v, then v; None where they are not unique."""
    k = len(lines)
    return solve(
        [[Fraction(a) for a in line] + [Fraction(-1), Fraction(0)] for line in lines]
        + [[Fraction(1)] * k + [Fraction(0), Fraction(1)]]
    )


def solve(rows: list[list[Fraction]]) -> list[Fraction] | None:
    """A square linear system with its right side as the last column, by elimination; None if it is singular."""
    rows, n = [list(r) for r in rows], len(rows)
    for c in range(n):
        pivot = next((r for r in range(c, n) if rows[r][c]), None)
        if pivot is None:
            return None
        rows[c], rows[pivot] = rows[pivot], rows[c]
        rows[c] = [a / rows[c][c] for a in rows[c]]
        for r in range(n):
            if r != c and rows[r][c]:
                rows[r] = [a - rows[r][c] * b for a, b in zip(rows[r], rows[c], strict=True)]
    return [r[-1] for r in rows]
