"""The sum of digits, with a running sum."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

from environments.base import Draft
from environments.primer.exercise import DIGITS, Exercise, spaced


class DigitSum(Exercise):
    """`sum: 3 8 5` is `1 6`."""

    id = "primer/digit_sum"
    domain = "arithmetic"
    skills = ("arithmetic",)
    sizes = ((3, 4), (5, 6), (7, 9))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        digits = "".join(rng.choices(DIGITS, k=self.size(rng, level)))
        return Draft(f"sum: {spaced(digits)}", spaced(sum(map(int, digits))), {"digits": digits})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced(n) for n in accumulate(map(int, info["digits"]))]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [spaced(n) for n in accumulate(map(int, reversed(info["digits"])))]
