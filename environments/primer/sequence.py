"""Continue a sequence by its differences."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, listed, spaced


class Sequence(Exercise):
    """`next: 3 , 5 , 7` is `9`."""

    id = "primer/sequence"
    domain = "numbers"
    skills = ("induction",)
    sizes = ((3, 4), (3, 4), (5, 5))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        k = self.size(rng, level)
        low, high = ((1, 9), (5, 19), (1, 9))[level - 1]
        steps = rng.choices(range(low, high + 1), k=2)
        if level < 3:
            steps[1] = steps[0]  # Level 3 alternates between two differences.
        start = rng.randint(0, 60)
        terms = [*accumulate((steps[i % 2] for i in range(k)), initial=start)]
        if level == 2 and rng.random() < 0.5:
            terms.reverse()
        return Draft(f"next: {listed(terms[:-1])}", spaced(terms[-1]), {"terms": terms})

    def steps(self, info: dict[str, Any]) -> list[str]:
        last, after = info["terms"][-2:]
        known = [f"{spaced(a)} {_signed(b - a)}" for a, b in pairwise(info["terms"][:-1])]
        return [*known, f"{spaced(last)} {_signed(after - last)} = {spaced(after)}"]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{spaced(b)} {_signed(a - b)} {spaced(a)}" for a, b in reversed([*pairwise(info["terms"])])]


def _signed(n: int) -> str:
    return f"{'+' if n >= 0 else '-'} {spaced(abs(n))}"
