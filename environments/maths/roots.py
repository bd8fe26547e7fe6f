"""A symmetric function of the roots of a polynomial whose roots are not nice."""

from __future__ import annotations

import random
from fractions import Fraction

from environments.base import Draft
from environments.maths.problem import Problem, asked, polynomial


class Roots(Problem):
    """Vieta and Newton instead of solving: power sums, sums of reciprocals, products of shifted roots."""

    id = "maths/roots"
    skills = ("algebra", "polynomials")

    def draw(self, rng: random.Random, level: int) -> Draft:
        degree, k = 2 + level, rng.choice([-3, -2, -1, 1, 2, 3])
        while True:
            lead = rng.randint(1, level)
            c = [lead, *(rng.randint(-9, 9) for _ in range(degree - 1)), rng.choice([x for x in range(-9, 10) if x])]
            if value(c, k):
                break
        names = "pqrst"[:degree]
        kind = rng.choice(("power", "product", "reciprocal", "square") if level > 1 else ("power", "product"))
        shifted = "({}" + f" {'-' if k > 0 else '+'} {abs(k)})"
        if kind == "power":
            n = level + 1
            expression, result = " + ".join(f"{r}^{n}" for r in names), power_sum(c, n)
        elif kind == "product":
            expression = "".join(shifted.format(r) for r in names)
            result = (-1) ** degree * value(c, k) / lead
        else:
            moved = shift(c, k)  # its roots are r - k; reversed, 1/(r - k)
            square = kind == "square"
            expression = " + ".join(f"1/{shifted.format(r)}{'^2' if square else ''}" for r in names)
            result = power_sum(moved[::-1], 2 if square else 1)
        text = (
            f"Let {', '.join(names)} be the complex roots (with multiplicity) of {polynomial(c)} = 0. Compute "
            f"{expression}."
        )
        return asked(text, result, "Give an exact integer or fraction")


def value(c: list[int], x: int) -> Fraction:
    """The polynomial at x."""
    total = Fraction()
    for a in c:
        total = total * x + a
    return total


def shift(c: list[int], k: int) -> list[int]:
    """Coefficients of P(x + k), by repeated synthetic division."""
    c = list(c)
    for end in range(len(c), 0, -1):
        for i in range(1, end):
            c[i] += c[i - 1] * k
    return c


def power_sum(c: list[int], n: int) -> Fraction:
    """Sum of n-th powers of the roots, by Newton's identities."""
    e = [Fraction((-1) ** i * a, c[0]) for i, a in enumerate(c)] + [Fraction()] * n
    sums = [Fraction()]
    for m in range(1, n + 1):
        total = Fraction((-1) ** (m - 1)) * m * e[m]
        sums.append(total + sum(((-1) ** (i - 1) * e[i] * sums[m - i] for i in range(1, m)), Fraction()))
    return sums[n]
