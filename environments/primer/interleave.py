"""Take turns between two words."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Interleave(Exercise):
    """`interleave: a b c , d e f` is `a d b e c f`."""

    id = "primer/interleave"
    domain = "strings"
    skills = ("copying",)
    sizes = ((2, 3), (4, 4), (5, 5))

    def draw(self, rng: random.Random, level: int) -> Draft:
        k = self.size(rng, level)
        a, b = ("".join(rng.choices(LETTERS, k=k)) for _ in range(2))
        mixed = [c for pair in zip(a, b, strict=True) for c in pair]
        return Draft(f"interleave: {spaced(a)} , {spaced(b)}", spaced(mixed), {"a": a, "b": b})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{i} {x} {y}" for i, (x, y) in enumerate(zip(info["a"], info["b"], strict=True), 1)]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [spaced(info["a"]), spaced(info["b"])]
