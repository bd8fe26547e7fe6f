"""The two numbers that make a sum, in their order."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, listed, spaced


class PairSum(Exercise):
    """`pair for 9: 3 , 1 , 6 , 4` is `3 , 6`."""

    id = "primer/pair_sum"
    domain = "arithmetic"
    skills = ("search", "arithmetic")
    sizes = ((4, 4), (5, 5), (6, 6))

    def draw(self, rng: random.Random, level: int) -> Draft:
        highest = (9, 12, 15)[level - 1]
        while True:
            numbers = rng.sample(range(1, highest + 1), self.size(rng, level))
            a, b = (numbers[i] for i in sorted(rng.sample(range(len(numbers)), 2)))
            if sum(a + b - n in numbers and 2 * n != a + b for n in numbers) == 2:
                prompt = f"pair for {spaced(a + b)}: {listed(numbers)}"
                return Draft(prompt, listed([a, b]), {"numbers": numbers, "sum": a + b})

    def steps(self, info: dict[str, Any]) -> list[str]:
        # What each number would need, up to the first one that finds it.
        lines = []
        for n in info["numbers"]:
            need = info["sum"] - n
            found = need in info["numbers"] and need != n
            lines.append(f"{spaced(n)} ? {_signed(need)} {'+' if found else '-'}")
            if found:
                break
        return lines

    def check(self, info: dict[str, Any]) -> list[str]:
        a, b = (n for n in info["numbers"] if info["sum"] - n in info["numbers"] and 2 * n != info["sum"])
        return [f"{spaced(b)} + {spaced(a)} = {spaced(a + b)}"]


def _signed(n: int) -> str:
    return spaced(n) if n >= 0 else f"- {spaced(-n)}"
