"""The best mix of products under limits: a small linear program."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations

from environments.base import Draft
from environments.maths.matrix_game import solve
from environments.maths.problem import Problem, asked
from environments.words import listed

GOODS = ("ale", "bread", "cider", "dough")
MEANS = ("hours of work", "kg of flour", "litres of water", "kWh of power")


class ProductionPlan(Problem):
    """Amounts may be fractions; the best corner is not the obvious one, and its profit is exact."""

    id = "maths/production_plan"
    skills = ("optimisation", "linear algebra")

    def draw(self, rng: random.Random, level: int) -> Draft:
        n, m = (2, 2, 3)[level - 1], (2, 3, 4)[level - 1]
        goods = rng.sample(GOODS, n)
        while True:
            needs = [[rng.randint(1, 9) for _ in range(n)] for _ in range(m)]
            limits, profit = [rng.randint(30, 150) for _ in range(m)], [rng.randint(3, 20) for _ in range(n)]
            best, plan = optimum(needs, limits, profit)
            if sum(x > 0 for x in plan) > 1:
                break
        lines = [
            f"- a crate of {g} brings {profit[j]} euros and takes "
            + listed([amount(needs[i][j], MEANS[i]) for i in range(m)])
            for j, g in enumerate(goods)
        ]
        has = listed([amount(limits[i], MEANS[i]) for i in range(m)])
        text = (
            f"A workshop makes {listed(goods)}:\n"
            + "\n".join(lines)
            + (
                f"\nIt has {has}. Fractions of crates can be made and sold. What is the largest possible income, in "
                "euros?"
            )
        )
        return asked(text, best, "Give an exact integer or fraction, no unit")


def amount(count: int, mean: str) -> str:
    """`3 hours of work`, `1 hour of work`."""
    return f"{count} {mean if count > 1 else mean.replace('s of', ' of')}"


def optimum(needs: list[list[int]], limits: list[int], profit: list[int]) -> tuple[Fraction, list[Fraction]]:
    """The best corner of {x >= 0, needs x <= limits}: every corner is where n of the constraints are tight."""
    n = len(profit)
    rows = [([*map(Fraction, a)], Fraction(b)) for a, b in zip(needs, limits, strict=True)]
    axes = [([Fraction(-(i == j)) for j in range(n)], Fraction(0)) for i in range(n)]
    best: tuple[Fraction, list[Fraction]] = (Fraction(0), [Fraction(0)] * n)
    for tight in combinations([*rows, *axes], n):
        x = solve([[*a, b] for a, b in tight])
        if x is not None and all(sum(p * q for p, q in zip(a, x, strict=True)) <= b for a, b in [*rows, *axes]):
            best = max(best, (sum((p * q for p, q in zip(profit, x, strict=True)), Fraction()), x))
    return best
