"""Run-length encoding, with a running count."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Runs(Exercise):
    """`runs: a a b b b` is `a 2 b 3`."""

    id = "primer/runs"
    domain = "strings"
    skills = ("counting",)
    sizes = ((5, 6), (7, 8), (9, 11))

    def draw(self, rng: random.Random, level: int) -> Draft:
        word = ""
        for _ in range(self.size(rng, level)):
            again = word and (rng.random() < 0.55 or len(_runs(word)) == 5)
            word += word[-1] if again else rng.choice([c for c in LETTERS[:6] if c != word[-1:]])
        answer = " ".join(f"{c} {n}" for c, n in _runs(word))
        return Draft(f"runs: {spaced(word)}", answer, {"word": word})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{c} {i}" for c, n in _runs(info["word"]) for i in range(1, n + 1)]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [spaced(c * n) for c, n in _runs(info["word"])]


def _runs(word: str) -> list[tuple[str, int]]:
    return [(c, len(list(group))) for c, group in groupby(word)]
