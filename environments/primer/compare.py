"""Compare pairs of numbers at their first different digit."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced


class Compare(Exercise):
    """`compare: 3 7 ? 3 9 , 5 1 ? 2 8` is `< >`."""

    id = "primer/compare"
    domain = "arithmetic"
    skills = ("comparison",)
    sizes = ((2, 2), (2, 2), (3, 3))

    def draw(self, rng: random.Random, level: int) -> Draft:
        pairs = [_pair(rng, digits=2 if level == 1 else 3) for _ in range(self.size(rng, level))]
        prompt = "compare: " + " , ".join(f"{spaced(a)} ? {spaced(b)}" for a, b in pairs)
        return Draft(prompt, spaced(_sign(a, b) for a, b in pairs), {"pairs": pairs})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [line for a, b in info["pairs"] for line in _columns(a, b)]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{spaced(b)} {_sign(b, a)} {spaced(a)}" for a, b in info["pairs"]]


def _pair(rng: random.Random, digits: int) -> list[str]:
    """Two numbers that share 0 or more leading digits."""
    a = "".join(rng.choices("123456789", k=digits))
    shared = rng.randint(0, digits)
    return [a, a[:shared] + "".join(rng.choices("123456789", k=digits - shared))]


def _sign(a: str, b: str) -> str:
    return "=" if a == b else "<" if a < b else ">"


def _columns(a: str, b: str) -> list[str]:
    """Digit against digit from the left, up to the first difference."""
    lines = []
    for x, y in zip(a, b, strict=True):
        lines.append(f"{x} {_sign(x, y)} {y}")
        if x != y:
            break
    return lines
