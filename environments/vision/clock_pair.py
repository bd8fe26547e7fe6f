"""Read clocks with two hands, and the time between them."""

from __future__ import annotations

import math
import random
from functools import cache

import numpy as np

from environments.base import Draft
from environments.vision.canvas import BLACK, COLOURS, WHITE, Canvas, Point
from environments.vision.picture import Picture, asked


class ClockPair(Picture):
    """Hands at full five minutes, then at any minute, then on dials without numbers."""

    id = "vision/clock_pair"
    skills = ("gauges", "arithmetic")

    def draw(self, rng: random.Random, level: int) -> Draft:
        times = [5 * rng.randrange(144) if level == 1 else rng.randrange(720) for _ in range(2)]
        canvas = Canvas(400, 200)
        for i, time in enumerate(times):
            _clock(canvas, 100 + 200 * i, 100, time, digits=level < 3)
        total = (times[1] - times[0]) % 720
        text = (
            "The left clock shows when a job began, the right one when it ended, less than twelve hours later. How "
            "long did it take? Answer as H:MM, such as 0:05 for five minutes."
        )
        return asked(text, f"{total // 60}:{total % 60:02}", canvas)

    def same(self, answer: str, gold: str) -> bool:
        """`03:20` is `3:20`."""
        hours, colon, minutes = answer.partition(":")
        if not (colon and len(hours) in (1, 2) and len(minutes) == 2 and (hours + minutes).isascii()):
            return False
        if not (hours + minutes).isdigit() or int(minutes) > 59 or int(hours) > 11:
            return False
        return f"{int(hours)}:{minutes}" == gold


def _at(x: float, y: float, turn: float, radius: float) -> Point:
    """The point of a dial at a part of a turn past twelve."""
    return x + radius * math.sin(2 * math.pi * turn), y - radius * math.cos(2 * math.pi * turn)


@cache
def _dial(digits: bool) -> np.ndarray:
    """uint8 [200, 200, 3]: a dial without hands, which are all that differs."""
    canvas = Canvas(200, 200)
    canvas.disc(100, 100, 92, BLACK)
    canvas.disc(100, 100, 89, WHITE)
    for mark in range(60):
        long = mark % 5 == 0
        canvas.line(_at(100, 100, mark / 60, 80 if long else 85), _at(100, 100, mark / 60, 88), BLACK, 3 if long else 1)
    for hour in range(1, 13) if digits else ():
        canvas.text(*_at(100, 100, hour / 12, 66), str(hour), centre=True)
    return canvas.pixels


def _clock(canvas: Canvas, x: int, y: int, time: int, digits: bool) -> None:
    """A dial with its hands at minutes past twelve."""
    canvas.pixels[y - 100 : y + 100, x - 100 : x + 100] = _dial(digits)
    canvas.line((x, y), _at(x, y, time / 720, 46), BLACK, 7)
    canvas.line((x, y), _at(x, y, time % 60 / 60, 78), COLOURS["red"], 3)
    canvas.disc(x, y, 5, BLACK)
