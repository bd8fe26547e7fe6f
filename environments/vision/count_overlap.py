"""Count shapes of one colour that cover one another in part."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from environments.base import Draft
from environments.vision.canvas import COLOURS, Canvas, Colour
from environments.vision.picture import Reading, asked

KINDS = ("circle", "square", "triangle")
SIZE = 20
"""Half a shape's side in pixels."""
SEEN = 0.5
"""Least visible part of every shape: enough to know what it is."""


class CountOverlap(Reading):
    """Colour and form must both be right, and covered shapes count as well."""

    id = "vision/count_overlap"
    skills = ("counting",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        count, side = (6, 14, 26)[level - 1], (180, 220, 260)[level - 1]
        colours = rng.sample([*COLOURS], 1 + level)
        while True:
            shapes = [
                (rng.choice(KINDS), rng.choice(colours), rng.randint(SIZE, side - SIZE), rng.randint(SIZE, side - SIZE))
                for _ in range(count)
            ]
            shapes = _visible(shapes, side)
            if len(shapes) >= count // 2:
                break
        canvas = Canvas(side, side)
        for kind, colour, x, y in shapes:
            _shape(canvas, kind, x, y, SIZE, (255, 255, 255))
            _shape(canvas, kind, x, y, SIZE - 2, COLOURS[colour])
        kind, colour = rng.choice(shapes)[:2] if rng.random() < 0.9 else (rng.choice(KINDS), rng.choice(colours))
        text = (
            f"How many {colour} {kind}s are in the picture? Shapes may cover parts of others; every one is at least "
            "half visible. Answer with a number."
        )
        return asked(text, sum(s[:2] == (kind, colour) for s in shapes), canvas)


def _shape(canvas: Canvas, kind: str, x: int, y: int, size: int, colour: Colour) -> None:
    if kind == "circle":
        canvas.disc(x, y, size, colour)
    elif kind == "square":
        canvas.rect(x - size, y - size, 2 * size, 2 * size, colour)
    else:
        canvas.polygon([(x - size, y + size), (x + size, y + size), (x, y - size)], colour)


def _visible(shapes: list[tuple[str, str, int, int]], side: int) -> list[tuple[str, str, int, int]]:
    """The shapes without those that later ones hide too much of: looked at from the top one down."""
    free, kept = np.ones((side, side), bool), list[tuple[str, str, int, int]]()
    for kind, colour, x, y in reversed(shapes):
        mask, place = _mask(kind), free[y - SIZE : y + SIZE + 1, x - SIZE : x + SIZE + 1]
        mask = mask[: place.shape[0], : place.shape[1]]
        if (mask & place).sum() >= SEEN * mask.sum():
            kept.append((kind, colour, x, y))
            place &= ~mask
    return kept[::-1]


@cache
def _mask(kind: str) -> np.ndarray:
    """bool [2 SIZE + 1, 2 SIZE + 1]: the pixels of a shape around its middle."""
    alone = Canvas(2 * SIZE + 1, 2 * SIZE + 1)
    _shape(alone, kind, SIZE, SIZE, SIZE, (0, 0, 0))
    return alone.pixels[:, :, 0] == 0
