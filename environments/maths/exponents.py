"""Equations with logarithms and exponents: all solutions, without the extraneous ones."""

from __future__ import annotations

import random
from fractions import Fraction

from environments.base import Draft
from environments.maths.problem import Problem, asked, polynomial


class Exponents(Problem):
    """A sum of logarithms; a hidden quadratic in powers; a power that is 1, with its four cases."""

    id = "maths/exponents"
    skills = ("algebra",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        text, solutions = (self._logarithms, self._powers, self._one)[level - 1](rng)
        listed = ", ".join(map(str, sorted(set(solutions))))
        answer = listed if len(solutions) == 1 else f"{{{listed}}}"
        return asked(text, answer, "Give the set of all solutions, as in {-1, 5/2}")

    def _logarithms(self, rng: random.Random) -> tuple[str, list[Fraction]]:
        base = rng.randint(2, 7)
        small, large = sorted(rng.sample(range(4 if base > 3 else 6), 2))
        x = rng.randint(-40, 40)
        p, q, k = x - base**small, x - base**large, small + large
        sides = [f"log_{base}(x {'-' if s >= 0 else '+'} {abs(s)})" for s in (p, q)]
        rng.shuffle(sides)
        return f"Solve over the real numbers: {sides[0]} + {sides[1]} = {k}", [Fraction(x)]

    def _powers(self, rng: random.Random) -> tuple[str, list[Fraction]]:
        """With u = (b^d)^x: u^2 - (b^m + b^n) u + b^(m+n) = 0, so x is m/d or n/d; sometimes one root is negative."""
        base, d = rng.choice((2, 3, 5)), rng.randint(1, 4)
        m, n = rng.sample(range(5), 2)
        spurious = rng.random() < 0.4
        first, second = base**m, -(base**n) if spurious else base**n
        total, product, name, scale = first + second, first * second, base**d, rng.randint(1, 9)
        middle = f"{'-' if scale * total > 0 else '+'} {abs(scale * total)} * {name}^x"
        text = (
            f"Solve over the real numbers: {scale} * {name**2}^x {middle} {'-' if product < 0 else '+'} "
            f"{abs(scale * product)} = 0"
        )
        return text, [Fraction(m, d)] if spurious else [Fraction(m, d), Fraction(n, d)]

    def _one(self, rng: random.Random) -> tuple[str, list[Fraction]]:
        while True:
            kind = rng.choice((1, -1))
            r, s = rng.randint(-6, 6), rng.randint(-6, 6)
            base = [1, -(r + s), r * s + kind]  # it is `kind` at r and s
            t, u = rng.randint(-7, 7), rng.randint(-7, 7)
            exponent = [1, -(t + u), t * u]
            if len(found := ones(base, exponent)) > 2:
                text = (
                    f"Find all integers x such that ({polynomial(base)})^({polynomial(exponent)}) = 1 (0^0 is "
                    "undefined)."
                )
                return text, found


def ones(base: list[int], exponent: list[int]) -> list[Fraction]:
    """Integers where the power is 1; beyond 100 the base is larger than 1 and the exponent not 0."""
    found = []
    for x in range(-100, 101):
        b, e = ((c[0] * x + c[1]) * x + c[2] for c in (base, exponent))
        if b == 1 or (e == 0 and b) or (b == -1 and e % 2 == 0):
            found.append(Fraction(x))
    return found
