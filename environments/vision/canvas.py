"""A small rasteriser: rectangles, lines, discs, polygons and text in a bitmap font, on uint8 pixels [H, W, 3]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np

Colour = tuple[int, int, int]
Point = tuple[float, float]

BLACK, GREY, PALE, WHITE = (20, 20, 20), (130, 130, 130), (215, 215, 215), (255, 255, 255)
COLOURS: dict[str, Colour] = {
    "red": (214, 39, 40), "blue": (31, 90, 200), "green": (30, 150, 60), "orange": (255, 150, 20),
    "purple": (130, 60, 170), "brown": (130, 80, 50), "pink": (245, 130, 190), "cyan": (30, 190, 210),
}  # fmt: skip
"""Colours that are told apart by name."""

_TABLE = (
    "0000000000 00005f0000 0007000700 147f147f14 242a7f2a12 2313086462 3649552250 0005030000 001c224100 0041221c00 "
    "14083e0814 08083e0808 0050300000 0808080808 0060600000 2010080402 3e5149453e 00427f4000 4261514946 2141454b31 "
    "1814127f10 2745454539 3c4a494930 0171090503 3649494936 064949291e 0036360000 0056360000 0814224100 1414141414 "
    "0041221408 0201510906 324979413e 7e1111117e 7f49494936 3e41414122 7f4141221c 7f49494941 7f09090901 3e4149497a "
    "7f0808087f 00417f4100 2040413f01 7f08142241 7f40404040 7f020c027f 7f0408107f 3e4141413e 7f09090906 3e4151215e "
    "7f09192946 4649494931 01017f0101 3f4040403f 1f2040201f 3f4038403f 6314081463 0708700807 6151494543 007f414100 "
    "0204081020 0041417f00 0402010204 4040404040 0001020400 2054545478 7f48444438 3844444420 384444487f 3854545418 "
    "087e090102 18a4a4a47c 7f08040478 00447d4000 2040443d00 7f10284400 00417f4000 7c04180478 7c08040478 3844444438 "
    "fc24242418 18242424fc 7c08040408 4854545420 043f444020 3c4040207c 1c2040201c 3c4030403c 4428102844 1ca0a0a07c "
    "4464544c44 "
)
_GLYPHS = _TABLE.split()
"""Glyphs of the characters from space to z: five columns of a byte each, the lowest bit on top."""
_FIRST = ord(" ")
LETTER = (6, 8)
"""Pixels of a character at scale 1, with the gap to the next."""


@cache
def _bitmap(character: str) -> np.ndarray:
    """bool [8, 6] of a character."""
    columns = np.frombuffer(bytes.fromhex(_GLYPHS[ord(character) - _FIRST]), np.uint8)
    out = np.zeros((8, 6), bool)
    out[:, :5] = (columns[None, :] >> np.arange(8)[:, None]) & 1
    return out


@lru_cache(maxsize=1024)
def _bits(text: str, scale: int) -> np.ndarray:
    """bool [8 scale, 6 scale len(text)] of a line of text."""
    return np.concatenate([_bitmap(c) for c in text], 1).repeat(scale, 0).repeat(scale, 1)


class Canvas:
    """Pixels to draw on; what is outside is cut off."""

    def __init__(self, width: int, height: int, paper: Colour = WHITE) -> None:
        grey = len({*paper}) == 1  # filling with one value is much faster
        self.pixels = np.full((height, width, 3), paper[0] if grey else paper, np.uint8)

    def rect(self, x: int, y: int, width: int, height: int, colour: Colour, border: int = 0) -> None:
        """A filled rectangle, or only its border of that many pixels."""
        x, y = max(0, x), max(0, y)
        if not border:
            self.pixels[y : y + height, x : x + width] = colour
            return
        for bx, by, w, h in (
            (x, y, width, border), (x, y + height - border, width, border),
            (x, y, border, height), (x + width - border, y, border, height),
        ):  # fmt: skip
            self.pixels[by : by + h, bx : bx + w] = colour

    def _grid(self, low: Point, high: Point) -> tuple[slice, slice, np.ndarray, np.ndarray]:
        """The part of the picture between two corners: slices, and the x and y of its pixels."""
        height, width, _ = self.pixels.shape
        x0, y0 = (max(0, int(v) - 1) for v in low)
        x1, y1 = min(width, int(high[0]) + 2), min(height, int(high[1]) + 2)
        return slice(y0, y1), slice(x0, x1), np.arange(x0, x1)[None, :], np.arange(y0, y1)[:, None]

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """A filled circle."""
        rows, columns, px, py = self._grid((x - radius, y - radius), (x + radius, y + radius))
        self.pixels[rows, columns][(px - x) ** 2 + (py - y) ** 2 <= radius**2] = colour

    def line(self, start: Point, end: Point, colour: Colour, width: float = 2.0) -> None:
        """A straight stroke."""
        (x0, y0), (x1, y1), half = start, end, width / 2
        rows, columns, px, py = self._grid(
            (min(x0, x1) - half, min(y0, y1) - half), (max(x0, x1) + half, max(y0, y1) + half)
        )
        dx, dy = x1 - x0, y1 - y0
        along = np.clip(((px - x0) * dx + (py - y0) * dy) / ((dx * dx + dy * dy) or 1), 0, 1)
        near = (px - x0 - along * dx) ** 2 + (py - y0 - along * dy) ** 2 <= half**2
        self.pixels[rows, columns][near] = colour

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        """A filled polygon (even-odd)."""
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        rows, columns, px, py = self._grid((min(xs), min(ys)), (max(xs), max(ys)))
        inside = np.zeros((py.size, px.size), bool)
        for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True):
            # Only the rows from the edge's upper end to before its lower one are crossed by it.
            first, last = (max(0, math.ceil(y) - rows.start) for y in sorted((y0, y1)))
            if first < last:
                inside[first:last] ^= px < (x1 - x0) * (py[first:last] - y0) / (y1 - y0) + x0
        self.pixels[rows, columns][inside] = colour

    def arrow(self, start: Point, end: Point, colour: Colour) -> None:
        """A stroke with a head at its end."""
        self.line(start, end, colour)
        dx, dy = end[0] - start[0], end[1] - start[1]
        size = (dx * dx + dy * dy) ** 0.5 or 1.0
        ux, uy = 9 * dx / size, 9 * dy / size
        self.polygon(
            [end, (end[0] - ux - uy / 2, end[1] - uy + ux / 2), (end[0] - ux + uy / 2, end[1] - uy - ux / 2)], colour
        )

    def text(self, x: float, y: float, text: str, colour: Colour = BLACK, scale: int = 2, centre: bool = False) -> None:
        """Text from its upper left corner, or around the middle of its line. Raises IndexError for other letters."""
        bits = _bits(text, scale)
        left, top = (int(x - bits.shape[1] / 2 + scale / 2), int(y - 7 * scale / 2)) if centre else (int(x), int(y))
        part = self.pixels[max(0, top) : top + bits.shape[0], max(0, left) : left + bits.shape[1]]
        part[bits[max(0, -top) :, max(0, -left) :][: part.shape[0], : part.shape[1]]] = colour
