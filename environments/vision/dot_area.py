"""The area of a figure on a dotted grid."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from environments.base import Draft
from environments.vision.canvas import BLACK, COLOURS, Canvas
from environments.vision.picture import Reading, asked

CORNERS, SIDES = (3, 5, 8), (6, 8, 10)
GAP = 26


class DotArea(Reading):
    """A triangle, then star-shaped polygons with re-entrant corners: decompose, subtract, or count dots."""

    id = "vision/dot_area"
    skills = ("geometry",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        side = SIDES[level - 1]
        while True:
            points = _star(rng, CORNERS[level - 1], side)
            doubled = sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(points, points[1:] + points[:1], strict=True))
            if abs(doubled) >= 2 * side:
                break
        area = Fraction(abs(doubled), 2)
        canvas = Canvas(GAP * side + 20, GAP * side + 20)
        at = [(10 + GAP * x, 10 + GAP * y) for x, y in points]
        canvas.polygon(at, (190, 215, 250))
        for start, end in zip(at, at[1:] + at[:1], strict=True):
            canvas.line(start, end, COLOURS["blue"], 3)
        for x in range(side + 1):
            for y in range(side + 1):
                canvas.disc(10 + GAP * x, 10 + GAP * y, 2, BLACK)
        text = (
            "The dots are 1 cm apart in both directions, and all corners of the figure are on dots. What is its area "
            "in square centimetres? Answer with a number; halves as a decimal such as 7.5."
        )
        return asked(text, f"{area.numerator / area.denominator:g}", canvas)


def _star(rng: random.Random, corners: int, side: int) -> list[tuple[int, int]]:
    """Corners in the order of their direction from a point between dots, all directions well apart: no edges cross."""
    centre = side / 2 + 0.31, side / 2 + 0.17
    while True:
        points = [(rng.randint(0, side), rng.randint(0, side)) for _ in range(corners)]
        turn = lambda p: math.atan2(p[1] - centre[1], p[0] - centre[0])
        points.sort(key=turn)
        turns = [turn(p) for p in points]
        gaps = [b - a for a, b in zip(turns, [*turns[1:], turns[0] + 2 * math.pi], strict=True)]
        if min(gaps) > 0.2 and max(gaps) < 3.0:
            return points
