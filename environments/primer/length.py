"""How many symbols there are, by numbering them."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Length(Exercise):
    """`length: c a d b` is `4`."""

    id = "primer/length"
    domain = "lists"
    skills = ("counting",)
    sizes = ((4, 6), (7, 9), (10, 14))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        word = "".join(rng.choices(LETTERS, k=self.size(rng, level)))
        return Draft(f"length: {spaced(word)}", spaced(len(word)), {"word": word})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [" ".join(f"{c} {spaced(i)}" for i, c in enumerate(info["word"], 1))]

    def check(self, info: dict[str, Any]) -> list[str]:
        # By pairs: each adds two, a single one at the end adds one.
        word = info["word"]
        return [" ".join(f"{spaced(word[i : i + 2])} {spaced(min(i + 2, len(word)))}" for i in range(0, len(word), 2))]
