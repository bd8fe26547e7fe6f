"""Sort digits by taking the smallest of what is left."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import DIGITS, Exercise, spaced


class SortDigits(Exercise):
    """`order: 4 1 3` is `1 3 4`; a step is the smallest, then what is left."""

    id = "primer/sort_digits"
    domain = "lists"
    skills = ("sorting",)
    sizes = ((3, 4), (5, 6), (7, 7))

    def draw(self, rng: random.Random, level: int) -> Draft:
        digits = "".join(rng.choices(DIGITS, k=self.size(rng, level)))
        return Draft(f"order: {spaced(digits)}", spaced(sorted(digits)), {"digits": digits})

    def steps(self, info: dict[str, Any]) -> list[str]:
        left, lines = info["digits"], []
        while left:
            least = min(left)
            left = left.replace(least, "", 1)
            lines.append(f"{least} < {spaced(left)}" if left else least)
        return lines

    def check(self, info: dict[str, Any]) -> list[str]:
        # The counts of the digits that occur, from the greatest: each is found as often as it was given.
        return [f"{d} {info['digits'].count(d)}" for d in sorted(set(info["digits"]), reverse=True)]
