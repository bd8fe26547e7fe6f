"""A free text under many rules at once."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.instructions.writing import TOPICS, Writing, prose, ruled, wishes_of


class Stacked(Writing):
    """Length, wording, order and letters together; one broken rule makes the text wrong."""

    id = "instructions/stacked"
    skills = ("constraints", "writing")

    def draw(self, rng: random.Random, level: int) -> Draft:
        text = prose(rng, 2 + 2 * level)
        wishes = wishes_of(rng, text, 2 + 2 * level)
        return ruled(
            f"Write a short text about {rng.choice(TOPICS)}. It has to meet all of these requirements:",
            wishes,
            " ".join(text),
        )
