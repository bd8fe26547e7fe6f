"""Move the first symbols to the end."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Rotate(Exercise):
    """`rotate 2: a b c d e` is `c d e a b`."""

    id = "primer/rotate"
    domain = "strings"
    skills = ("copying",)
    sizes = ((4, 5), (6, 7), (8, 9))

    def draw(self, rng: random.Random, level: int) -> Draft:
        word, k = "".join(rng.choices(LETTERS, k=self.size(rng, level))), rng.randint(1, level + 2)
        return Draft(f"rotate {k}: {spaced(word)}", spaced(word[k:] + word[:k]), {"word": word, "k": k})

    def steps(self, info: dict[str, Any]) -> list[str]:
        word, k = info["word"], info["k"]
        return [" ".join(f"{i} {c}" for i, c in enumerate(word[:k], 1)), f"then {spaced(word[k:])}"]

    def check(self, info: dict[str, Any]) -> list[str]:
        word, k = info["word"], info["k"]
        return [f"{spaced(word[k:])} , {spaced(word[:k])}"]
