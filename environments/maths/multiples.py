"""How many integers of a range are multiples of some of several numbers?"""

from __future__ import annotations

import random
import re
from itertools import combinations
from math import lcm

from environments.base import Draft
from environments.images import text_of
from environments.maths.problem import Problem, asked
from environments.task import Task


class Multiples(Problem):
    """Inclusion and exclusion over numbers with common factors, for `exactly` and `at least` so many of them."""

    id = "maths/multiples"
    skills = ("set counting", "number theory")

    def draw(self, rng: random.Random, level: int) -> Draft:
        numbers = sorted(rng.sample(range(4, 13 + 6 * level), 2 + level))
        low = rng.randint(1, 500)
        high = low + rng.randint(300, 10 ** (level + 2))
        k, most = rng.randint(1, level), rng.random() < 0.5
        wanted = [k] if most else list(range(k, len(numbers) + 1))
        text = (
            f"How many integers n with {low} <= n <= {high} are divisible by {'exactly' if most else 'at least'} "
            f"{k} of the "
            f"numbers {', '.join(map(str, numbers))}?"
        )
        return asked(text, count(numbers, low, high, wanted), "Answer with an integer")

    def weak(self, task: Task) -> str:
        """Goes through 1000 integers one by one."""
        text = text_of(task.prompt[-1])
        low, high, k, *numbers = (int(x) for x in re.findall(r"\d+", text))
        divided = [sum(n % m == 0 for m in numbers) for n in range(low, min(high, low + 1000) + 1)]
        return str(sum(d == k or (d > k and "at least" in text) for d in divided))


def count(numbers: list[int], low: int, high: int, wanted: list[int]) -> int:
    """sum over j of (-1)^(j-w) C(j, w) S(j), where S(j) adds the counts of common multiples of j of them."""
    total = 0
    for w in wanted:
        for j in range(w, len(numbers) + 1):
            for some in combinations(numbers, j):
                m = lcm(*some) if some else 1
                ways = sum(1 for _ in combinations(range(j), w))
                total += (-1) ** (j - w) * ways * (high // m - (low - 1) // m)
    return total
