"""Add two numbers digit by digit with a carry."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced


class Addition(Exercise):
    """`add: 3 7 + 5 8` is `9 5`; a step is digit + digit + carry in = carry out, digit."""

    id = "primer/addition"
    domain = "arithmetic"
    skills = ("arithmetic",)
    sizes = ((2, 2), (3, 3), (4, 4))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        k = self.size(rng, level)
        a, b = (rng.randrange(10 ** (k - 1), 10**k) for _ in range(2))
        return Draft(f"add: {spaced(a)} + {spaced(b)}", spaced(a + b), {"a": a, "b": b})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{x} + {y} + {c} = {t // 10} {t % 10}" for x, y, c, t in _columns(info["a"], info["b"])]

    def check(self, info: dict[str, Any]) -> list[str]:
        # From the left: the digit of the sum, less one digit, is the other digit and the carry that came in.
        return [f"{t % 10} {x} {y} {c}" for x, y, c, t in reversed(_columns(info["a"], info["b"]))]


def _columns(a: int, b: int) -> list[tuple[int, int, int, int]]:
    """Digit of a, digit of b, carry in and their total, from the right; a and b have equally many digits."""
    columns, carry = [], 0
    for x, y in zip(reversed(str(a)), reversed(str(b)), strict=True):
        total = int(x) + int(y) + carry
        columns.append((int(x), int(y), carry, total))
        carry = total // 10
    return columns
