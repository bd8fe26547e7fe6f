"""Sort letters by inserting one after the other."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class SortLetters(Exercise):
    """`sort: c a d b` is `a b c d`."""

    id = "primer/sort_letters"
    domain = "lists"
    skills = ("sorting",)
    sizes = ((3, 4), (5, 6), (7, 7))

    def draw(self, rng: random.Random, level: int) -> Draft:
        word = "".join(rng.choices(LETTERS[:10], k=self.size(rng, level)))
        return Draft(f"sort: {spaced(word)}", spaced(sorted(word)), {"word": word})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced(sorted(info["word"][:i])) for i in range(1, len(info["word"]) + 1)]

    def check(self, info: dict[str, Any]) -> list[str]:
        done = sorted(info["word"])
        return [" ".join([done[0], *(f"{'=' if a == b else '<'} {b}" for a, b in pairwise(done))])]
