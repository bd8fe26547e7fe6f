"""Add hours on a clock of twelve."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced


class Clock(Exercise):
    """`clock: 9 + 5 + 8` is `1 0`; after 1 1 comes 0."""

    id = "primer/clock"
    domain = "arithmetic"
    skills = ("arithmetic",)
    sizes = ((3, 3), (4, 4), (5, 5))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        hours = [rng.randint(1, 11) for _ in range(self.size(rng, level))]
        return Draft(f"clock: {' + '.join(map(spaced, hours))}", spaced(sum(hours) % 12), {"hours": hours})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return _walk(info["hours"])

    def check(self, info: dict[str, Any]) -> list[str]:
        return _walk(info["hours"][::-1])


def _walk(hours: list[int]) -> list[str]:
    """The sums from left to right, each taken around the clock."""
    times = list(accumulate(hours, lambda a, b: (a + b) % 12))
    return [f"{spaced(t)} + {spaced(h)} = {spaced(u)}" for t, h, u in zip(times, hours[1:], times[1:], strict=False)]
