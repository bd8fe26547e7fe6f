"""A decimal number in a small base, by repeated division."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced


class ToBase(Exercise):
    """`base 2: 1 3` is `1 1 0 1`; a step is quotient r remainder."""

    id = "primer/to_base"
    domain = "numbers"
    skills = ("number_bases",)
    sizes = ((10, 214), (5, 255), (256, 999))

    def draw(self, rng: random.Random, level: int) -> Draft:
        base = rng.randint(*((3, 7), (2, 5), (4, 9))[level - 1])
        n = self.size(rng, level)
        answer = spaced(str(r) for _, r in reversed(_divide(n, base)))
        return Draft(f"base {base}: {spaced(n)}", answer, {"n": n, "base": base})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced(info["n"]), *(f"{spaced(q)} r {r}" for q, r in _divide(info["n"], info["base"]))]

    def check(self, info: dict[str, Any]) -> list[str]:
        value, lines = 0, []
        for _, r in reversed(_divide(info["n"], info["base"])):
            value = value * info["base"] + r
            lines.append(spaced(value))
        return lines


def _divide(n: int, base: int) -> list[tuple[int, int]]:
    """Quotients and remainders until the quotient is 0; the remainders are the digits, last first."""
    rows = []
    while n:
        rows.append(divmod(n, base))
        n //= base
    return rows
