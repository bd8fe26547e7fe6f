"""The most frequent symbol, with running counts."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Majority(Exercise):
    """`most: a b a a c` is `a`."""

    id = "primer/majority"
    domain = "lists"
    skills = ("counting",)
    sizes = ((5, 6), (7, 8), (9, 11))

    def draw(self, rng: random.Random, level: int) -> Draft:
        letters = rng.sample(LETTERS[:8], 3 if level == 1 else 4)
        while True:
            word = "".join(rng.choices(letters, k=self.size(rng, level)))
            (best, most), *others = Counter(word).most_common()
            if not others or others[0][1] < most:
                return Draft(f"most: {spaced(word)}", best, {"word": word})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{c} {info['word'][: i + 1].count(c)}" for i, c in enumerate(info["word"])]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{c} {info['word'].count(c)}" for c in dict.fromkeys(info["word"])]
