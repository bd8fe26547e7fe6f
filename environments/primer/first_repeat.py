"""The first symbol that comes a second time."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class FirstRepeat(Exercise):
    """`first repeat: c a d a c` is `a`."""

    id = "primer/first_repeat"
    domain = "lists"
    skills = ("search",)
    sizes = ((5, 6), (7, 8), (9, 10))

    def draw(self, rng: random.Random, level: int) -> Draft:
        word = ""
        while len(set(word)) == len(word):
            word = "".join(rng.choices(LETTERS[:12], k=self.size(rng, level)))
        return Draft(f"first repeat: {spaced(word)}", word[_place(word)], {"word": word})

    def steps(self, info: dict[str, Any]) -> list[str]:
        *new, again = info["word"][: _place(info["word"]) + 1]
        return [*(f"{c} -" for c in new), f"{again} +"]

    def check(self, info: dict[str, Any]) -> list[str]:
        place = _place(info["word"])
        return [f"{spaced(info['word'][:place])} < {info['word'][place]}"]


def _place(word: str) -> int:
    """Index of the first symbol that occurs before it."""
    return next(i for i, c in enumerate(word) if c in word[:i])
