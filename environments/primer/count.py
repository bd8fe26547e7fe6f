"""Count one symbol with a running count."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced


class Count(Exercise):
    """`count a: a b a c a` is `3`."""

    id = "primer/count"
    domain = "strings"
    skills = ("counting",)
    sizes = ((5, 6), (7, 8), (9, 11))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        # One letter in two is the wanted one on average, so that small counts are not a good guess.
        letter = rng.choice("abcd")
        word = "".join(letter if rng.random() < 0.4 else rng.choice("abcd") for _ in range(self.size(rng, level)))
        return Draft(f"count {letter}: {spaced(word)}", spaced(word.count(letter)), {"word": word, "letter": letter})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return _tally(info["word"], info["letter"])

    def check(self, info: dict[str, Any]) -> list[str]:
        return _tally(info["word"][::-1], info["letter"])


def _tally(word: str, letter: str) -> list[str]:
    return [f"{c} {spaced(word[: i + 1].count(letter))}" for i, c in enumerate(word)]
