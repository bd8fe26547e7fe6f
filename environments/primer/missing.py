"""The smallest digit that is not in a list."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import DIGITS, Exercise, spaced


class Missing(Exercise):
    """`missing: 0 3 1 2 5` is `4`."""

    id = "primer/missing"
    domain = "sets"
    skills = ("sets",)
    sizes = ((4, 5), (6, 7), (9, 10))

    def draw(self, rng: random.Random, level: int) -> Draft:
        # Short runs from 0 are likely, so that the first gap is not always 0.
        k = self.size(rng, level)
        run = rng.randint(0, min(k, 8))
        digits = [*DIGITS[:run], *rng.choices(DIGITS[run + 1 :], k=k - run)]
        rng.shuffle(digits)
        return Draft(f"missing: {spaced(digits)}", DIGITS[run], {"digits": digits})

    def steps(self, info: dict[str, Any]) -> list[str]:
        gap = _gap(info["digits"])
        return [*(f"{d} +" for d in DIGITS[:gap]), f"{gap} -"]

    def check(self, info: dict[str, Any]) -> list[str]:
        gap = _gap(info["digits"])
        return [" ".join(f"{d} {'<' if int(d) < gap else '>'}" for d in info["digits"])]


def _gap(digits: list[str]) -> int:
    return next(i for i, d in enumerate(DIGITS) if d not in digits)
