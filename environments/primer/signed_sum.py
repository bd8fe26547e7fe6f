"""Add and subtract digits from left to right, with a running total."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced


class SignedSum(Exercise):
    """`total: 3 + 4 - 2` is `5`; no total is negative."""

    id = "primer/signed_sum"
    domain = "arithmetic"
    skills = ("arithmetic",)
    sizes = ((3, 4), (5, 6), (7, 8))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        totals, words = [rng.randint(0, 9)], []
        words.append(str(totals[0]))
        for _ in range(self.size(rng, level) - 1):
            minus = rng.random() < 0.5 and totals[-1] > 0
            digit = rng.randint(1, min(9, totals[-1])) if minus else rng.randint(1, 9)
            totals.append(totals[-1] - digit if minus else totals[-1] + digit)
            words += ["-" if minus else "+", str(digit)]
        return Draft(f"total: {spaced(words)}", spaced(totals[-1]), {"totals": totals})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced(t) for t in info["totals"]]

    def check(self, info: dict[str, Any]) -> list[str]:
        # Backwards with the signs turned, from the answer to the first digit.
        turned = []
        for before, after in pairwise(info["totals"]):
            turned.append(f"{'-' if after > before else '+'} {abs(after - before)} {spaced(before)}")
        return [spaced(info["totals"][-1]), *reversed(turned)]
