"""Read a utility meter: one pointer a digit, dials that turn in alternating directions."""

from __future__ import annotations

import math
import random

from environments.base import Draft
from environments.vision.canvas import BLACK, COLOURS, WHITE, Canvas
from environments.vision.picture import Reading, asked

DIALS = (3, 4, 6)


class MeterDials(Reading):
    """A pointer between two digits means the one it has passed, and the next dial says which one that is."""

    id = "vision/meter_dials"
    skills = ("gauges",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        count = DIALS[level - 1]
        number = rng.randrange(10 ** (count - 1), 10**count)
        used = rng.randrange(1, 10 ** (count - 1)) if level == 3 else 0
        canvas = Canvas(104 * count, 116)
        for place in range(count):
            # The pointer stands between its digit and the next one, by what the lower digits are.
            power = 10 ** (count - 1 - place)
            self._dial(canvas, 52 + 104 * place, 58, number / power % 10, 1 if place % 2 else -1)
        text = (
            "This meter is read from left to right, one digit a dial. Each pointer moves from 0 towards 9 and shows "
            "the digit that it has passed last; neighbouring dials turn in opposite directions. The rightmost pointer "
            "stands exactly on its digit. "
        )
        text += (
            f"At the last reading it showed {number - used}. How much was used since?" if used else "What does it show?"
        )
        return asked(f"{text} Answer with the number.", used or number, canvas)

    @staticmethod
    def _dial(canvas: Canvas, x: int, y: int, value: float, sign: int) -> None:
        at = lambda turn, radius: (x + sign * radius * math.sin(turn), y - radius * math.cos(turn))
        canvas.disc(x, y, 48, BLACK)
        canvas.disc(x, y, 46, WHITE)
        for digit in range(10):
            turn = 2 * math.pi * digit / 10
            canvas.line(at(turn, 41), at(turn, 46), BLACK)
            canvas.text(*at(turn, 33), str(digit), centre=True)
        canvas.line((x, y), at(2 * math.pi * value / 10, 44), COLOURS["red"], 3)
        canvas.disc(x, y, 4, COLOURS["red"])
