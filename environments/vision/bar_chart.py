"""Read grouped bars and calculate with their values."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.vision.picture import CATEGORIES, SERIES, Axes, Reading, asked


class BarChart(Reading):
    """One series, then two and three side by side whose totals must be compared."""

    id = "vision/bar_chart"
    skills = ("charts", "arithmetic")

    def draw(self, rng: random.Random, level: int) -> Draft:
        first, count = rng.randrange(6), 4 + level
        names, series = CATEGORIES[first : first + count], rng.sample(SERIES, level)
        step, units = rng.choice((1, 2, 5, 10, 25)), 12
        values = {s: [rng.randint(1, units) for _ in names] for s in series}
        axes = Axes(names, units, step, series)
        bar = 36 // level
        for k, s in enumerate(series):
            for i, v in enumerate(values[s]):
                axes.canvas.rect(axes.x(i) - 18 + bar * k, axes.y(v), bar - 1, axes.bottom - axes.y(v), axes.colour(k))
        a, b = rng.sample(range(count), 2)
        if level == 1:
            question = f"How much is {names[a]} minus {names[b]}? A negative difference has a minus sign."
            answer = values[series[0]][a] - values[series[0]][b]
        else:
            one, two = rng.sample(series, 2)
            spans = (names[0], names[-1])
            question = f"From {spans[0]} to {spans[1]}, what is the total of {one} minus the total of {two}?"
            question += " A negative difference has a minus sign."
            answer = sum(values[one]) - sum(values[two])
        text = f"Every bar ends on a grid line. {question} Answer with the number in the chart's units."
        return asked(text, answer * step, axes.canvas)
