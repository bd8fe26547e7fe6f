"""The area that two polynomial curves enclose."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

from environments.base import Draft
from environments.maths.problem import Problem, asked, polynomial


class EnclosedArea(Problem):
    """The curves cross at several points, so that the integral of the difference alone is wrong from level 2 on."""

    id = "maths/enclosed_area"
    skills = ("calculus",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:
            crossings = sorted(rng.sample(range(-4, 6), 1 + level))
            gap = [rng.choice((-3, -2, -1, 1, 2, 3))]
            for r in crossings:
                gap = [a - r * b for a, b in zip([*gap, 0], [0, *gap], strict=True)]
            lower = [0] * (len(gap) - 3) + [rng.randint(-6, 6) for _ in range(3)]
            upper = [a + b for a, b in zip(gap, lower, strict=True)]
            if max(map(abs, gap)) < 200 * level and any(lower):
                break
        area = sum((abs(integral(gap, Fraction(a), Fraction(b))) for a, b in pairwise(crossings)), Fraction())
        while lower[0] == 0 and len(lower) > 1:
            lower = lower[1:]
        text = (
            f"What is the total area of the bounded regions enclosed by y = {polynomial(upper)} and y = "
            f"{polynomial(lower)}?"
        )
        steps = [f"the curves cross at x = {', '.join(map(str, crossings))}", f"areas between them add to {area}"]
        return asked(text, area, "Give an exact integer or fraction", steps)


def integral(c: list[int], low: Fraction, high: Fraction) -> Fraction:
    """Of the polynomial with coefficients c, the highest power first."""
    total = Fraction()
    for power, a in enumerate(reversed(c), 1):
        total += Fraction(a, power) * (high**power - low**power)
    return total
