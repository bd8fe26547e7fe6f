"""Subtract a smaller number digit by digit with a borrow."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced


class Subtraction(Exercise):
    """`subtract: 9 5 - 5 8` is `3 7`; a step is digit - digit - borrow in = borrow out, digit."""

    id = "primer/subtraction"
    domain = "arithmetic"
    skills = ("arithmetic",)
    sizes = ((2, 2), (3, 3), (4, 4))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        k = self.size(rng, level)
        b, a = sorted(rng.randrange(10 ** (k - 1), 10**k) for _ in range(2))
        return Draft(f"subtract: {spaced(a)} - {spaced(b)}", spaced(a - b), {"a": a, "b": b})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{x} - {y} - {c} = {o} {d}" for x, y, c, o, d in _columns(info["a"], info["b"])]

    def check(self, info: dict[str, Any]) -> list[str]:
        # From the left: difference, subtrahend, borrow and the digit that they add up to.
        return [f"{d} {y} {c} {x}" for x, y, c, _, d in reversed(_columns(info["a"], info["b"]))]


def _columns(a: int, b: int) -> list[tuple[int, int, int, int, int]]:
    """Digit of a, digit of b, borrow in, borrow out and digit of the difference, from the right."""
    columns, borrow = [], 0
    for x, y in zip(reversed(str(a)), reversed(str(b)), strict=True):
        left = int(x) - int(y) - borrow
        columns.append((int(x), int(y), borrow, int(left < 0), left % 10))
        borrow = int(left < 0)
    return columns
