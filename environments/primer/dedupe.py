"""Keep the first of each symbol."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Dedupe(Exercise):
    """`unique: a b a c b` is `a b c`."""

    id = "primer/dedupe"
    domain = "lists"
    skills = ("sets",)
    sizes = ((5, 6), (7, 8), (9, 10))

    def draw(self, rng: random.Random, level: int) -> Draft:
        word = "".join(rng.choices(LETTERS[:6], k=self.size(rng, level)))
        return Draft(f"unique: {spaced(word)}", spaced(dict.fromkeys(word)), {"word": word})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{c} {'-' if c in info['word'][:i] else '+'}" for i, c in enumerate(info["word"])]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{c} {info['word'].count(c)}" for c in dict.fromkeys(info["word"])]
