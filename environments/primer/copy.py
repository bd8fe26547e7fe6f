"""Write the symbols again."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Copy(Exercise):
    """`copy: c a d b` is `c a d b`."""

    id = "primer/copy"
    in_sight = True
    domain = "strings"
    skills = ("copying",)
    sizes = ((4, 5), (6, 7), (8, 9))

    def draw(self, rng: random.Random, level: int) -> Draft:
        word = "".join(rng.choices(LETTERS, k=self.size(rng, level)))
        return Draft(f"copy: {spaced(word)}", spaced(word), {"word": word})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [" ".join(f"{i} {c}" for i, c in enumerate(info["word"], 1))]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [" ".join(f"{i} {info['word'][i - 1]}" for i in range(len(info["word"]), 0, -1))]
