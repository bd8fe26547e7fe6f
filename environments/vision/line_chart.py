"""Follow lines that cross."""

from __future__ import annotations

import itertools
import random

from environments.base import Draft
from environments.vision.canvas import WHITE
from environments.vision.picture import CATEGORIES, SERIES, Axes, Picture, asked


class LineChart(Picture):
    """In which month is one line furthest above another, or the sum of all lines largest?"""

    id = "vision/line_chart"
    skills = ("charts",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        count, units = (6, 9, 12)[level - 1], 14
        series, names = rng.sample(SERIES, 3 if level == 3 else 2), CATEGORIES[:count]
        while True:
            values = [self._walk(rng, count, units) for _ in series]
            score = [sum(v) if level == 3 else v[0] - v[1] for v in zip(*values, strict=True)]
            # One month is the best, and no two points hide one another.
            apart = all(len({*v}) == len(v) for v in zip(*values, strict=True))
            if apart and sorted(score)[-1] > max(0, sorted(score)[-2]):
                break
        axes = Axes(names, units, rng.choice((1, 5, 10)), series)
        for k, line in enumerate(values):
            points = [(axes.x(i), axes.y(v)) for i, v in enumerate(line)]
            for start, end in itertools.pairwise(points):
                axes.canvas.line(start, end, axes.colour(k), 3)
            for x, y in points:
                axes.canvas.disc(x, y, 5, axes.colour(k))
                axes.canvas.disc(x, y, 2, WHITE)
        what = "is the sum of the three lines largest" if level == 3 else f"is {series[0]} furthest above {series[1]}"
        text = f"In which month {what}? Answer with the month as it is written in the chart."
        return asked(text, names[score.index(max(score))], axes.canvas)

    @staticmethod
    def _walk(rng: random.Random, count: int, units: int) -> list[int]:
        values = [rng.randint(2, units - 2)]
        while len(values) < count:
            values.append(min(units, max(0, values[-1] + rng.randint(-4, 4))))
        return values
