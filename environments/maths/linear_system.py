"""Two or three linear equations with a whole solution; one of the unknowns is asked for."""

from __future__ import annotations

import random
from itertools import product

from environments.base import Draft
from environments.images import text_of
from environments.maths.problem import Problem, asked, factors_of, linear
from environments.task import Task


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

    def weak(self, task: Task) -> str:
        """Tries values from -4 to 4."""
        text = text_of(task.prompt[-1])
        sides = [line.split("=") for line in text.splitlines() if "=" in line]
        rows = [(factors_of(left, "xyz"[: len(sides)]), int(right)) for left, right in sides]
        for values in product(range(-4, 5), repeat=len(rows)):
            if all(sum(a * v for a, v in zip(row, values, strict=True)) == total for row, total in rows):
                return str(values["xyz".index(text[text.index("What is ") + 8])])
        return "0"


def _determinant(rows: list[list[int]]) -> int:
    """By expansion along the first row; the matrices are small."""
    if len(rows) == 1:
        return rows[0][0]
    return sum((-1) ** i * a * _determinant([r[:i] + r[i + 1 :] for r in rows[1:]]) for i, a in enumerate(rows[0]))
