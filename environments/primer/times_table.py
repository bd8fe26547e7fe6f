"""Products of the small multiplication table."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, listed, spaced


class TimesTable(Exercise):
    """`times: 6 x 7 , 3 x 8` is `4 2 , 2 4`."""

    id = "primer/times_table"
    domain = "arithmetic"
    skills = ("arithmetic",)
    sizes = ((2, 2), (3, 3), (3, 3))

    def draw(self, rng: random.Random, level: int) -> Draft:
        # Level 3 adds to every product, which makes it multiplication with a carry.
        terms = [
            [rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 9) if level == 3 else 0]
            for _ in range(self.size(rng, level))
        ]
        prompt = " , ".join(f"{a} x {b} + {c}" if c else f"{a} x {b}" for a, b, c in terms)
        return Draft(f"times: {prompt}", listed(a * b + c for a, b, c in terms), {"terms": terms})

    def steps(self, info: dict[str, Any]) -> list[str]:
        lines = []
        for a, b, c in info["terms"]:
            product = f"{a} x {b} = {spaced(a * b)}"
            lines.append(f"{product} + {c} = {spaced(a * b + c)}" if c else product)
        return lines

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{b} x {a} = {spaced(a * b)}" for a, b, _ in reversed(info["terms"])]
