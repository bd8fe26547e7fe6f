"""The parity of the ones in groups of bits."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, listed, spaced


class Parity(Exercise):
    """`parity: 1 0 1 1 , 0 1 1 0` is `1 0`."""

    id = "primer/parity"
    domain = "numbers"
    skills = ("counting",)
    sizes = ((4, 4), (6, 6), (7, 7))

    def draw(self, rng: random.Random, level: int) -> Draft:
        words = ["".join(rng.choices("01", k=self.size(rng, level))) for _ in range(3)]
        return Draft(f"parity: {listed(words)}", spaced(str(w.count("1") % 2) for w in words), {"words": words})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced(str(w[:i].count("1") % 2) for i in range(1, len(w) + 1)) for w in info["words"]]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{w.count('1')} > {w.count('1') % 2}" for w in info["words"]]
