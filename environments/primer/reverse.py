"""Write the symbols backwards: number them, then read the numbers down."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Reverse(Exercise):
    """`reverse: c a d b` is `b d a c`."""

    id = "primer/reverse"
    domain = "strings"
    skills = ("copying",)
    sizes = ((4, 5), (6, 7), (8, 9))

    def draw(self, rng: random.Random, level: int) -> Draft:
        word = "".join(rng.choices(LETTERS, k=self.size(rng, level)))
        return Draft(f"reverse: {spaced(word)}", spaced(word[::-1]), {"word": word})

    def steps(self, info: dict[str, Any]) -> list[str]:
        numbered = [f"{i} {c}" for i, c in enumerate(info["word"], 1)]
        return [" ".join(numbered), " ".join(reversed(numbered))]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{spaced(info['word'][::-1])} > {spaced(info['word'])}"]
