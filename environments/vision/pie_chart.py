"""Shares of a pie whose rim is marked."""

from __future__ import annotations

import itertools
import math
import random

from environments.base import Draft
from environments.vision.canvas import BLACK, COLOURS, WHITE, Canvas
from environments.vision.picture import SERIES, Reading, asked


class PieChart(Reading):
    """A sector is measured by the marks of the rim, of 10 or 5 percent, and several are added and scaled."""

    id = "vision/pie_chart"
    skills = ("charts", "arithmetic")

    def draw(self, rng: random.Random, level: int) -> Draft:
        parts, marks = (3, 5, 7)[level - 1], 10 if level == 1 else 20
        cuts = [0, *sorted(rng.sample(range(1, marks), parts - 1)), marks]
        names, colours = rng.sample(SERIES, parts), rng.sample([*COLOURS.values()], parts)
        canvas, turn = Canvas(380, 240), rng.randrange(marks)
        at = lambda mark, radius: (
            120 + radius * math.sin(2 * math.pi * mark / marks), 120 - radius * math.cos(2 * math.pi * mark / marks),
        )  # fmt: skip
        for i, (low, high) in enumerate(itertools.pairwise(cuts)):
            arc = [at(turn + low + (high - low) * s / 24, 90) for s in range(25)]
            canvas.polygon([(120, 120), *arc], colours[i])
            canvas.rect(245, 20 + 28 * i, 16, 16, colours[i])
            canvas.text(268, 21 + 28 * i, names[i])
        for mark in range(marks):
            canvas.line(at(mark, 94), at(mark, 104), BLACK)
        for cut in cuts[:-1]:
            canvas.line((120, 120), at(turn + cut, 90), WHITE)
        chosen = sorted(rng.sample(range(parts), level))
        share = sum(cuts[i + 1] - cuts[i] for i in chosen)
        whole = marks * rng.randint(3, 60)
        listed = " and ".join(
            [", ".join(names[i] for i in chosen[:-1]), names[chosen[-1]]] if level > 1 else [names[chosen[0]]]
        )
        text = (
            f"The pie shows how {whole} tonnes of freight are shared; the marks around it are {100 // marks} percent "
            f"apart. How many tonnes does {listed} have{' together' if level > 1 else ''}? Answer with a number."
        )
        return asked(text, share * whole // marks, canvas)
