"""Count the squares of one colour in a drawn grid."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from environments.base import Draft
from environments.images import image_part
from environments.primer.exercise import Exercise, spaced
from environments.task import Message, TextPart

COLOURS = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220)}
CELL = 12
"""Pixels of a grid cell's side; one token of the tiny vision tower (2 x 2 patches of 6 px) sees a cell."""
_MARGIN = 2
_PAPER = 245


class Squares(Exercise):
    """A picture of coloured squares and `count red: picture` is `2`."""

    id = "sight/squares"
    domain = "images"
    skills = ("counting",)
    needs_vision = True
    numeric = True
    sides = ((1, 3), (2, 3), (3, 4))
    """Cells (down, across) of the grid, by level."""

    def draw(self, rng: random.Random, level: int) -> Draft:
        down, across = self.sides[level - 1]
        wanted = rng.choice([*COLOURS])
        # Half of all cells have the wanted colour on average, so that small counts are not a good guess.
        cells = [wanted if rng.random() < 0.4 else rng.choice([*COLOURS, "empty"]) for _ in range(down * across)]
        question: TextPart = {"type": "text", "text": f"count {wanted}: picture"}
        message: Message = {"role": "user", "content": [image_part(_drawn(cells, down, across, rng)), question]}
        return Draft([message], spaced(cells.count(wanted)), {"cells": cells, "wanted": wanted})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return _tally(info["cells"], info["wanted"])

    def check(self, info: dict[str, Any]) -> list[str]:
        return _tally(info["cells"][::-1], info["wanted"])


def _tally(cells: list[str], wanted: str) -> list[str]:
    return [f"{c} {spaced(cells[: i + 1].count(wanted))}" for i, c in enumerate(cells)]


def _drawn(cells: list[str], down: int, across: int, rng: random.Random) -> np.ndarray:
    """Pixels uint8 [H, W, 3] of the grid, each square moved by up to a margin."""
    pixels = np.full((down * CELL, across * CELL, 3), _PAPER, np.uint8)
    for i, name in enumerate(cells):
        if name in COLOURS:
            y, x = (CELL * at + _MARGIN + rng.randint(-1, 1) for at in divmod(i, across))
            side = CELL - 2 * _MARGIN
            pixels[y : y + side, x : x + side] = COLOURS[name]
    return pixels
