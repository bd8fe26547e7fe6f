"""Swap places in a row, one swap after the other."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Swaps(Exercise):
    """`swap 1 3 , 1 2: a b c` is `b c a`."""

    id = "primer/swaps"
    domain = "programs"
    skills = ("simulation",)
    sizes = ((3, 3), (4, 4), (5, 5))

    def draw(self, rng: random.Random, level: int) -> Draft:
        k = self.size(rng, level)
        rows = ["".join(rng.sample(LETTERS, k))]
        swaps = [sorted(rng.sample(range(k), 2)) for _ in range(level + 1)]
        for i, j in swaps:
            row = list(rows[-1])
            row[i], row[j] = row[j], row[i]
            rows.append("".join(row))
        prompt = " , ".join(f"{i + 1} {j + 1}" for i, j in swaps)
        return Draft(f"swap {prompt}: {spaced(rows[0])}", spaced(rows[-1]), {"rows": rows})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced(row) for row in info["rows"][1:]]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{c} {info['rows'][-1].index(c) + 1}" for c in info["rows"][0]]
