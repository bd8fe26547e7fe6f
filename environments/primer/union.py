"""Join two sets, in the order of first appearance."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Union(Exercise):
    """`join: a c d , b c` is `a c d b`."""

    id = "primer/union"
    domain = "sets"
    skills = ("sets",)
    sizes = ((3, 3), (4, 4), (5, 5))

    def draw(self, rng: random.Random, level: int) -> Draft:
        letters = LETTERS[: 4 + 2 * level]
        a, b = ("".join(rng.sample(letters, self.size(rng, level))) for _ in range(2))
        return Draft(f"join: {spaced(a)} , {spaced(b)}", spaced(dict.fromkeys(a + b)), {"a": a, "b": b})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced(info["a"]), *(f"{c} {'-' if c in info['a'] else '+'}" for c in info["b"])]

    def check(self, info: dict[str, Any]) -> list[str]:
        both = info["a"] + info["b"]
        return [f"{c} {both.count(c)}" for c in dict.fromkeys(both)]
