"""The place of a symbol in a list."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Position(Exercise):
    """`position of c: a d c b` is `3`."""

    id = "primer/position"
    domain = "lists"
    skills = ("search",)
    sizes = ((4, 5), (6, 7), (8, 9))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        word = "".join(rng.sample(LETTERS, self.size(rng, level)))
        letter = rng.choice(word)
        prompt = f"position of {letter}: {spaced(word)}"
        return Draft(prompt, spaced(word.index(letter) + 1), {"word": word, "letter": letter})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{i} {c}" for i, c in enumerate(_up_to(info), 1)]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [" ".join(f"{i} {c}" for i, c in reversed(list(enumerate(_up_to(info), 1))))]


def _up_to(info: dict[str, Any]) -> str:
    return info["word"][: info["word"].index(info["letter"]) + 1]
