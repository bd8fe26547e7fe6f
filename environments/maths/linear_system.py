"""Two or three linear equations with a whole solution; one of the unknowns is asked for."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.maths.problem import Problem, asked, linear


class LinearSystem(Problem):
    """`2x + 3y = 12` and `x - y = 1`: what is x?"""

    id = "maths/linear_system"
    skills = ("algebra",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        names, size = "xyz"[: 2 if level == 1 else 3], 5 * level
        while True:
            rows = [[rng.choice([a for a in range(-size, size + 1) if a]) for _ in names] for _ in names]
            if _determinant(rows):
                break
        values = [rng.randint(-size, size) for _ in names]
        lines = [f"{linear(row, names)} = {sum(a * v for a, v in zip(row, values, strict=True))}" for row in rows]
        which = rng.randrange(len(names))
        text = "Solve the system of equations:\n" + "\n".join(lines) + f"\nWhat is {names[which]}?"
        return asked(text, values[which], "Answer with an integer")


def _determinant(rows: list[list[int]]) -> int:
    """By expansion along the first row; the matrices are small."""
    if len(rows) == 1:
        return rows[0][0]
    return sum((-1) ** i * a * _determinant([r[:i] + r[i + 1 :] for r in rows[1:]]) for i, a in enumerate(rows[0]))
