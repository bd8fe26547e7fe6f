"""Write words in reverse order, each word as it is."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, listed, spaced


class ReverseWords(Exercise):
    """`reverse words: a b , c , d e` is `d e , c , a b`."""

    id = "primer/reverse_words"
    domain = "strings"
    skills = ("copying",)
    sizes = ((3, 3), (4, 4), (5, 5))

    def draw(self, rng: random.Random, level: int) -> Draft:
        k = self.size(rng, level)
        lengths = [1] * k
        for i in rng.sample(range(k), 2):
            lengths[i] = 2
        words = ["".join(rng.choices(LETTERS, k=n)) for n in lengths]
        return Draft(f"reverse words: {listed(words)}", listed(words[::-1]), {"words": words})

    def steps(self, info: dict[str, Any]) -> list[str]:
        numbered = [f"{i} {spaced(w)}" for i, w in enumerate(info["words"], 1)]
        return [" ".join(numbered), " ".join(reversed(numbered))]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [" ".join(f"{len(w)}" for w in info["words"]), listed(info["words"])]
