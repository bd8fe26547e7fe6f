"""Lengths in a triangle that is given by coordinates, as surds."""

from __future__ import annotations

import random
from fractions import Fraction
from math import gcd, isqrt

from environments.base import Draft
from environments.maths.problem import Problem, asked

Point = tuple[Fraction, Fraction]


class Triangle(Problem):
    """An altitude or a median; a circumradius; the distance of two centres, or a chord of the circumcircle."""

    id = "maths/triangle"
    skills = ("geometry",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        size = 4 + 3 * level
        while True:
            a, b, c = ((Fraction(rng.randint(-size, size)), Fraction(rng.randint(-size, size))) for _ in range(3))
            if area2 := abs(_cross(a, b, c)):
                break
        centre, centroid = circumcentre(a, b, c), ((a[0] + b[0] + c[0]) / 3, (a[1] + b[1] + c[1]) / 3)
        ortho = (3 * centroid[0] - 2 * centre[0], 3 * centroid[1] - 2 * centre[1])
        radius2, middle = _gap2(centre, a), ((b[0] + c[0]) / 2, (b[1] + c[1]) / 2)
        median2 = _gap2(a, middle)
        cases = {
            1: (
                ("the length of the altitude from A", area2**2 / _gap2(b, c)),
                ("the length of the median from A", median2),
            ),
            2: (
                ("the radius of the circle through A, B and C", radius2),
                ("the distance from B to the orthocentre of the triangle", _gap2(b, ortho)),
            ),
            3: (
                ("the distance between the orthocentre and the centroid of the triangle", _gap2(ortho, centroid)),
                ("the distance between the orthocentre and the centre of the circumcircle", _gap2(ortho, centre)),
                # Power of the midpoint M of BC: AM * MP = BM^2, so AP = AM + BM^2 / AM.
                (
                    "the length AP, where the line from A through the midpoint of BC meets the circumcircle again at P",
                    (median2 + _gap2(b, middle)) ** 2 / median2,
                ),
            ),
        }
        what, squared = rng.choice(cases[level])
        if max(squared.numerator, squared.denominator) > 10**10:  # unsimplified roots of these can still be read
            return self.draw(rng, level)
        points = ", ".join(f"{n} = ({p[0]}, {p[1]})" for n, p in zip("ABC", (a, b, c), strict=True))
        return asked(
            f"The triangle ABC has the vertices {points}. What is {what}?",
            surd(squared),
            "Give the exact value, with a root where needed",
        )


def _cross(a: Point, b: Point, c: Point) -> Fraction:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _gap2(a: Point, b: Point) -> Fraction:
    return (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2


def circumcentre(a: Point, b: Point, c: Point) -> Point:
    """Where the perpendicular bisectors meet."""
    d = 2 * _cross(a, b, c)
    u, v = _gap2(a, b), _gap2(a, c)
    x = ((c[1] - a[1]) * u - (b[1] - a[1]) * v) / d
    y = ((b[0] - a[0]) * v - (c[0] - a[0]) * u) / d
    return a[0] + x, a[1] + y


def surd(squared: Fraction) -> str:
    """The root of a rational: `2`, `3/2`, or `3/2*sqrt(5)` (the radicand without small square factors)."""
    n, outside = squared.numerator * squared.denominator, 1
    if isqrt(n) ** 2 == n:
        outside, n = isqrt(n), 1
    for p in range(2, 1000):
        while n % (p * p) == 0:
            n, outside = n // (p * p), outside * p
    bottom = squared.denominator
    g = gcd(outside, bottom)
    factor = Fraction(outside // g, bottom // g)
    return str(factor) if n == 1 else f"{factor}*sqrt({n})"
