"""The symbol at a place of a list."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Item(Exercise):
    """`item 3: c a d b` is `d`."""

    id = "primer/item"
    domain = "lists"
    skills = ("search",)
    sizes = ((4, 5), (6, 7), (8, 9))

    def draw(self, rng: random.Random, level: int) -> Draft:
        word = "".join(rng.choices(LETTERS, k=self.size(rng, level)))
        place = rng.randint(1, len(word))
        return Draft(f"item {place}: {spaced(word)}", word[place - 1], {"word": word, "place": place})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{i} {c}" for i, c in enumerate(info["word"][: info["place"]], 1)]

    def check(self, info: dict[str, Any]) -> list[str]:
        # Backwards from the place to the first symbol.
        return [spaced(reversed(info["word"][: info["place"]])), spaced(info["place"])]
