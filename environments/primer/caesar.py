"""Shift letters along a ring of eight."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced

RING = LETTERS[:8]


class Caesar(Exercise):
    """`shift 2: a c h` is `c e b`; after h comes a."""

    id = "primer/caesar"
    domain = "strings"
    skills = ("substitution",)
    sizes = ((3, 4), (4, 5), (5, 6))

    def draw(self, rng: random.Random, level: int) -> Draft:
        word, k = "".join(rng.choices(RING, k=self.size(rng, level))), rng.randint(1, 4)
        return Draft(f"shift {k}: {spaced(word)}", spaced(_shift(c, k) for c in word), {"word": word, "k": k})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced(_shift(c, i) for i in range(info["k"] + 1)) for c in info["word"]]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{_shift(c, info['k'])} - {info['k']} {c}" for c in info["word"]]


def _shift(letter: str, k: int) -> str:
    return RING[(RING.index(letter) + k) % len(RING)]
