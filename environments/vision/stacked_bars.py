"""Compare shares between stacked bars of different heights."""

from __future__ import annotations

import random
from fractions import Fraction

from environments.base import Draft
from environments.vision.picture import CATEGORIES, SERIES, Axes, Picture, asked


class StackedBars(Picture):
    """The largest share of a bar is not its largest piece: pieces that do not stand on the axis must be measured."""

    id = "vision/stacked_bars"
    skills = ("charts", "ratios")

    def draw(self, rng: random.Random, level: int) -> Draft:
        count, series = 3 + level, rng.sample(SERIES, 1 + level)
        names = sorted(rng.sample(CATEGORIES, count), key=CATEGORIES.index)
        largest = rng.random() < 0.5
        asked_for = rng.randrange(len(series))
        while True:
            bars = [[rng.randint(1, 12 // len(series) + 2) for _ in series] for _ in names]
            shares = [Fraction(b[asked_for], sum(b)) for b in bars]
            best = max(shares) if largest else min(shares)
            pieces = [b[asked_for] for b in bars]
            trap = pieces.index(max(pieces) if largest else min(pieces)) != shares.index(best)
            if shares.count(best) == 1 and (trap or level == 1):
                break
        axes = Axes(names, max(map(sum, bars)) + 1, rng.choice((1, 2, 10)), series)
        for i, bar in enumerate(bars):
            base = 0
            for k, piece in enumerate(bar):
                axes.canvas.rect(axes.x(i) - 16, axes.y(base + piece), 32, axes.unit * piece, axes.colour(k))
                base += piece
        text = (
            "Each bar is stacked from pieces that end on grid lines. In which month is the share (in percent) of "
            f"{series[asked_for]} in the month's whole bar {'largest' if largest else 'smallest'}? Answer with the "
            "month as it is written."
        )
        return asked(text, names[shares.index(best)], axes.canvas)
