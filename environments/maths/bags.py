"""Marbles from bags: the exact probability of a draw, or of the bag that it came from."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product
from math import comb

from environments.base import Draft
from environments.maths.problem import Problem, asked

COLOURS = ("red", "blue", "green", "white")


class Bags(Problem):
    """Draws without replacement; from level 2 a bag is chosen by weights and asked back from the draw (Bayes)."""

    id = "maths/bags"
    skills = ("probability",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = COLOURS[: (3, 3, 4)[level - 1]]
        bags = [[rng.randint(2, 6 + 2 * level) for _ in names] for _ in range(level)]
        drawn = rng.randint(2, 2 + level)
        exactly, least = rng.sample(range(len(names)), 2)
        a, b = rng.randint(1, drawn - 1), 1
        while min(bag[exactly] for bag in bags) < a:
            a -= 1
        weights = [rng.randint(1, 5) for _ in bags]
        chances = [w * _chance(bag, drawn, exactly, a, least, b) for w, bag in zip(weights, bags, strict=True)]
        event = f"exactly {a} {names[exactly]} and at least {b} {names[least]}"
        contents = [", ".join(f"{k} {c}" for k, c in zip(bag, names, strict=True)) for bag in bags]
        if level == 1:
            text = (
                f"A bag holds these marbles: {contents[0]}. At random, {drawn} marbles are drawn at once. What is the "
                f"probability that {event} are among them?"
            )
            return asked(text, chances[0] / weights[0], "Give an exact fraction")
        asked_bag = rng.randrange(level)
        lines = [
            f"- Bag {i + 1}: {c}; it is chosen with probability {w}/{sum(weights)}."
            for i, (c, w) in enumerate(zip(contents, weights, strict=True))
        ]
        text = (
            "One of these bags of marbles is chosen at random:\n"
            + "\n".join(lines)
            + f"\nThen {drawn} marbles are drawn from "
            f"it at once. Among them are {event}. Given this, what is the probability that it was bag {asked_bag + 1}?"
        )
        return asked(text, chances[asked_bag] / sum(chances), "Give an exact fraction")


def _chance(bag: list[int], drawn: int, exactly: int, a: int, least: int, b: int) -> Fraction:
    """By summing over the counts of all colours."""
    good = 0
    for counts in product(*(range(min(k, drawn) + 1) for k in bag)):
        if sum(counts) == drawn and counts[exactly] == a and counts[least] >= b:
            ways = 1
            for k, c in zip(bag, counts, strict=True):
                ways *= comb(k, c)
            good += ways
    return Fraction(good, comb(sum(bag), drawn))
