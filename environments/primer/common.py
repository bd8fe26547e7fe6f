"""What two sets share, in the order of the first."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Common(Exercise):
    """`common: a c d , b c` is `c`, or `none`."""

    id = "primer/common"
    domain = "sets"
    skills = ("sets",)
    sizes = ((3, 4), (5, 5), (6, 7))

    def draw(self, rng: random.Random, level: int) -> Draft:
        letters = LETTERS[: 4 + 3 * level]
        a, b = ("".join(rng.sample(letters, self.size(rng, level))) for _ in range(2))
        return Draft(f"common: {spaced(a)} , {spaced(b)}", spaced(c for c in a if c in b) or "none", {"a": a, "b": b})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{c} {'+' if c in info['b'] else '-'}" for c in info["a"]]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{c} {'+' if c in info['a'] else '-'}" for c in info["b"]]
