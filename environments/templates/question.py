"""How much change is left: one question, one right answer."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.question import Question
from environments.task import Limits
from rewards.answers import same_value


class Template(Question):
    """Prices are added and taken from a note; more prices by level."""

    skills = ("arithmetic",)
    limits = Limits(tokens=256)  # with the prompt, they must fit engine.max_context: 512 in the default run

    def draw(self, rng: random.Random, level: int) -> Draft:
        prices = [rng.randint(1, 99) for _ in range(2 * level)]
        note = sum(prices) + rng.randint(1, 50)
        steps = [f"{note} - {' - '.join(map(str, prices))} = {note - sum(prices)}"]
        text = f"You buy things for {', '.join(map(str, prices))} and pay with {note}. What do you get back?"
        return Draft(text, str(note - sum(prices)), {"steps": steps})

    def same(self, answer: str, gold: str) -> bool:
        return same_value(answer, gold)
