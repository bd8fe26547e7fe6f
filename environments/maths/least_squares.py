"""The integer point of a line or plane that is nearest to a point."""

from __future__ import annotations

import random
from itertools import product

from environments.base import Draft
from environments.maths.problem import Problem, asked, linear
from environments.words import listed

REACH = 24
"""Coordinates are searched to this distance; a minimum below its square is therefore global."""


class LeastSquares(Problem):
    """Minimise a sum of squares over integers on a line or plane: the real optimum rounds to no solution."""

    id = "maths/least_squares"
    skills = ("optimisation", "number theory")

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = "xy" if level == 1 else "xyz"
        while True:
            a = [rng.choice([k for k in range(-12, 14) if abs(k) > 1]) for _ in names]
            total = rng.randint(20, 99)
            parity = level == 3
            found = minimum(a, total, parity)
            if found is not None and found < REACH**2:
                break
        also = ", with x + y + z odd," if parity else ""
        squares = " + ".join(f"{n}^2" for n in names)
        text = (
            f"Integers {listed([*names])}{also} satisfy {linear(a, names)} = {total}. What is the least possible "
            f"value of {squares}?"
        )
        return asked(text, found, "Answer with an integer")


def minimum(a: list[int], total: int, odd: bool) -> int | None:
    """The least sum of squares in reach, or None."""
    best = None
    for head in product(range(-REACH, REACH + 1), repeat=len(a) - 1):
        rest = total - sum(k * x for k, x in zip(a, head, strict=False))
        if rest % a[-1] == 0:
            last = rest // a[-1]
            value = sum(x * x for x in head) + last * last
            if (best is None or value < best) and (not odd or (sum(head) + last) % 2):
                best = value
    return best
