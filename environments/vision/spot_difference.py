"""Two pictures that are equal but for some places."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.vision.canvas import BLACK, COLOURS, PALE, WHITE, Canvas
from environments.vision.picture import Picture, asked

SIDES, CHANGES = (3, 5, 7), (1, 3, 5)
TILE = 36
Icon = tuple[str, str, int]
"""Kind, colour, quarter turns."""


class SpotDifference(Picture):
    """Kinds, colours and, at level 3, only small turns differ; all places that differ must be named."""

    id = "vision/spot_difference"
    skills = ("comparison",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        side = SIDES[level - 1]
        icon = lambda: (rng.choice(("arrow", "cross", "moon")), rng.choice([*COLOURS]), rng.randrange(4))
        left = {(r, c): icon() for r in range(side) for c in range(side)}
        changed = rng.sample([*left], CHANGES[level - 1])
        right = dict(left)
        for at in changed:
            kind, colour, turn = left[at]
            if level == 3 and kind != "cross":  # a cross looks the same after a turn
                right[at] = (kind, colour, (turn + rng.randint(1, 3)) % 4)
            else:
                right[at] = (kind, rng.choice([c for c in COLOURS if c != colour]), turn)
        text = (
            "Compare the two pictures. Which places differ? Name all of them by row letter and column number, such as "
            "A1, separated by commas."
        )
        answer = ", ".join(f"{'ABCDEFG'[r]}{c + 1}" for r, c in sorted(changed))
        return asked(text, answer, _drawn(left, side), _drawn(right, side))

    def same(self, answer: str, gold: str) -> bool:
        """The same places in any order, each named once."""
        return sorted(p.strip().upper() for p in answer.split(",")) == gold.split(", ")


def _drawn(icons: dict[tuple[int, int], Icon], side: int) -> Canvas:
    canvas = Canvas(20 + TILE * side, 20 + TILE * side)
    for i in range(side):
        canvas.text(28 + TILE * i, 3, str(i + 1))
        canvas.text(4, 30 + TILE * i, "ABCDEFG"[i])
    for (r, c), (kind, name, turn) in icons.items():
        x, y, colour = 20 + TILE * c + TILE // 2, 20 + TILE * r + TILE // 2, COLOURS[name]
        canvas.rect(x - TILE // 2, y - TILE // 2, TILE, TILE, PALE, border=1)
        dx, dy = ((0, -1), (1, 0), (0, 1), (-1, 0))[turn]
        if kind == "arrow":
            canvas.arrow((x - 12 * dx, y - 12 * dy), (x + 13 * dx, y + 13 * dy), colour)
        elif kind == "cross":
            canvas.line((x - 10, y - 10), (x + 10, y + 10), colour, 4)
            canvas.line((x - 10, y + 10), (x + 10, y - 10), colour, 4)
        else:
            canvas.disc(x, y, 12, colour)
            canvas.disc(x + 6 * dx, y + 6 * dy, 9, WHITE)
    canvas.rect(19, 19, 2 + TILE * side, 2 + TILE * side, BLACK, border=1)
    return canvas
