"""The symbol after the last occurrence of another."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class AfterLast(Exercise):
    """`after last a: b a c a d` is `d`."""

    id = "primer/after_last"
    domain = "lists"
    skills = ("search",)
    sizes = ((5, 6), (7, 8), (9, 10))

    def draw(self, rng: random.Random, level: int) -> Draft:
        word = "".join(rng.choices(LETTERS[:5], k=self.size(rng, level)))
        letter = rng.choice(word[:-1])
        while word[-1] == letter:
            word = word[:-1] + rng.choice(LETTERS[:5])
        after = word[word.rindex(letter) + 1]
        return Draft(f"after last {letter}: {spaced(word)}", after, {"word": word, "letter": letter})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced(pair) for pair in pairwise(info["word"]) if pair[0] == info["letter"]]

    def check(self, info: dict[str, Any]) -> list[str]:
        # From the end back to the first one met.
        return [spaced(info["word"][info["word"].rindex(info["letter"]) :][::-1])]
