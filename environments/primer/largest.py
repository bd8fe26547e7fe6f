"""The largest of some two-digit numbers, by pairs."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any, ClassVar

from environments.base import Draft
from environments.primer.exercise import Exercise, listed, spaced


class Largest(Exercise):
    """`largest: 4 7 , 1 9 , 8 2` is `8 2`."""

    id = "primer/largest"
    domain = "arithmetic"
    skills = ("comparison",)
    sizes = ((3, 3), (4, 5), (6, 7))
    numeric = True
    name: ClassVar[str] = "largest"
    pick: ClassVar = max
    sign: ClassVar[str] = ">"

    def draw(self, rng: random.Random, level: int) -> Draft:
        numbers = rng.sample(range(10, 100), self.size(rng, level))
        return Draft(f"{self.name}: {listed(numbers)}", spaced(type(self).pick(numbers)), {"numbers": numbers})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced(n) for n in accumulate(info["numbers"], type(self).pick)]

    def check(self, info: dict[str, Any]) -> list[str]:
        best = type(self).pick(info["numbers"])
        return [f"{spaced(best)} {self.sign} {spaced(n)}" for n in info["numbers"] if n != best]
