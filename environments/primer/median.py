"""The middle of an odd number of letters, after sorting."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Median(Exercise):
    """`middle: c a d b a` is `b`."""

    id = "primer/median"
    domain = "lists"
    skills = ("sorting",)
    sizes = ((3, 5), (5, 5), (7, 7))

    def draw(self, rng: random.Random, level: int) -> Draft:
        low, high = self.sizes[level - 1]
        word = "".join(rng.choices(LETTERS[:10], k=rng.randrange(low, high + 1, 2)))
        return Draft(f"middle: {spaced(word)}", sorted(word)[len(word) // 2], {"word": word})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced(sorted(info["word"][:i])) for i in range(1, len(info["word"]) + 1)]

    def check(self, info: dict[str, Any]) -> list[str]:
        word = info["word"]
        middle = sorted(word)[len(word) // 2]
        return [" ".join(f"{c} {'<' if c < middle else '>' if c > middle else '='}" for c in word)]
