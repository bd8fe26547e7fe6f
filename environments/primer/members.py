"""Which symbols are members of a list."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Members(Exercise):
    """`which of a c e: b c d e` is `c e`, or `none`."""

    id = "primer/members"
    domain = "sets"
    skills = ("sets",)
    sizes = ((4, 5), (6, 7), (8, 9))

    def draw(self, rng: random.Random, level: int) -> Draft:
        letters = LETTERS[:12]
        word = "".join(rng.sample(letters, self.size(rng, level)))
        asked = "".join(rng.sample(letters, level + 2))
        answer = spaced(c for c in asked if c in word) or "none"
        return Draft(f"which of {spaced(asked)}: {spaced(word)}", answer, {"word": word, "asked": asked})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{c} {'+' if c in info['word'] else '-'}" for c in info["asked"]]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{c} {'+' if c in info['asked'] else '-'}" for c in info["word"]]
