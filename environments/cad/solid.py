"""The modelling language: a bounded parser, and solids as sets of voxels.

A program is any number of `name = solid`, then one solid. Its cost is bounded by its length, its nodes after names are
replaced by what they stand for, and the fixed workspace, whatever it says.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from rewards.answers import unfenced

SIDE = 48
"""Millimetres of the workspace's side; a voxel is 1 mm and is in a solid if its centre is."""
MAX_CHARS, MAX_NODES, MAX_DEPTH, MAX_NUMBER = 2000, 200, 40, 1000.0
_TOKEN = re.compile(r"\s*([a-z_][a-z0-9_]{0,30}|-?[0-9]{1,6}(?:\.[0-9]{1,6})?|[(),=])", re.IGNORECASE)
_NUMBERS = {"box": 3, "cylinder": 2, "sphere": 1, "translate": 3, "rotate": 3}
_SETS = ("union", "difference", "intersection")

MANUAL = (
    "The modelling language (millimetres, degrees):\n"
    "box(x, y, z) - from the origin to (x, y, z)\n"
    "cylinder(r, h) - around the z axis, from z = 0 to z = h\n"
    "sphere(r) - around the origin\n"
    "translate(dx, dy, dz, solid)\n"
    "rotate(ax, ay, az, solid) - about the x axis, then the y axis, then the z axis, each by the right-hand rule\n"
    "union(a, b, ...), intersection(a, b, ...), difference(a, b, ...) - the last takes b and all others from a\n"
    "Numbers are plain decimals. A program is any number of statements `name = solid`, then one solid, which is the "
    f"model. It has at most {MAX_CHARS} characters, and the model must lie in the workspace from 0 to {SIDE} on all "
    "axes. Models are compared on a grid of 1 mm voxels, by the voxels' centres.\n\n"
)
"""What every prompt says of it."""


class ProgramError(ValueError):
    """A program that is not in the language, or goes beyond its bounds; the message helps to mend it."""


@dataclass(frozen=True)
class Solid:
    """A node: its word, its numbers and its parts; `nodes` and `leaves` count the whole tree."""

    word: str
    numbers: tuple[float, ...]
    parts: tuple[Solid, ...]
    nodes: int
    leaves: int


def solid(word: str, numbers: tuple[float, ...] = (), parts: tuple[Solid, ...] = ()) -> Solid:
    """A checked node. Raises ProgramError."""
    wanted = _NUMBERS.get(word, 0)
    if len(numbers) != wanted:
        raise ProgramError(f"{word} takes {wanted} numbers, not {len(numbers)}")
    if any(abs(n) > MAX_NUMBER for n in numbers):
        raise ProgramError(f"numbers go to {MAX_NUMBER:g}")
    if word in ("box", "cylinder", "sphere"):
        if parts or min(numbers) <= 0:
            raise ProgramError(f"{word} takes positive numbers only")
    elif (word in _SETS and not parts) or (word not in _SETS and len(parts) != 1):
        raise ProgramError(f"{word} takes {'one or more solids' if word in _SETS else 'one solid, after its numbers'}")
    nodes = 1 + sum(p.nodes for p in parts)
    if nodes > MAX_NODES:
        raise ProgramError(f"the model has more than {MAX_NODES} parts, with names replaced")
    return Solid(word, numbers, parts, nodes, sum(p.leaves for p in parts) or 1)


def parse(text: str) -> Solid:
    """The model of a program, with or without a code fence around it. Raises ProgramError."""
    text = unfenced(text[: MAX_CHARS + 1])
    if len(text) > MAX_CHARS:
        raise ProgramError(f"a program has at most {MAX_CHARS} characters")
    tokens, at, text = list[str](), 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ProgramError(f"cannot read {text[at : at + 20]!r}")
        tokens.append(match.group(1).lower())
        at = match.end()
    tokens.reverse()  # popped from the end
    names: dict[str, Solid] = {}
    while len(tokens) > 1 and tokens[-2] == "=":
        name = tokens.pop()
        tokens.pop()
        if not name[0].isalpha() or name in _NUMBERS or name in _SETS:
            raise ProgramError(f"{name} cannot be a name")
        names[name] = _read(tokens, names, 0)
    model = _read(tokens, names, 0)
    if tokens:
        raise ProgramError(f"there is more after the model: {tokens[-1]!r}")
    return model


def _read(tokens: list[str], names: dict[str, Solid], depth: int) -> Solid:
    """One solid from the end of the reversed tokens."""
    word = tokens.pop() if tokens else "the end"
    if word in names:
        return names[word]
    if word not in _NUMBERS and word not in _SETS:
        raise ProgramError(f"expected a solid, found {word}")
    if depth > MAX_DEPTH or not tokens or tokens.pop() != "(":
        raise ProgramError(f"{word} is nested too deep" if depth > MAX_DEPTH else f"expected ( after {word}")
    numbers, parts = list[float](), list[Solid]()
    while True:
        if tokens and (tokens[-1][0].isdigit() or tokens[-1][0] == "-") and not parts:
            numbers.append(float(tokens.pop()))
        else:
            parts.append(_read(tokens, names, depth + 1))
        mark = tokens.pop() if tokens else "the end"
        if mark == ")":
            return solid(word, tuple(numbers), tuple(parts))
        if mark != ",":
            raise ProgramError(f"expected , or ) in {word}, found {mark}")


def turning(degrees: tuple[float, ...]) -> np.ndarray:
    """float64 [3, 3]: about x, then y, then z; exact for right angles."""
    matrix = np.eye(3)
    for axis, angle in enumerate(degrees):
        c, s = (
            round(v) if angle % 90 == 0 else v for v in (math.cos(math.radians(angle)), math.sin(math.radians(angle)))
        )
        step = np.eye(3)
        i, j = ((1, 2), (2, 0), (0, 1))[axis]
        step[i, i], step[i, j], step[j, i], step[j, j] = c, -s, s, c
        matrix = step @ matrix
    return matrix


Axes3 = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Coordinates of points, broadcast against each other: right angles keep them one-dimensional, and so cheap."""


def inside(model: Solid, points: Axes3) -> np.ndarray:
    """bool, broadcastable to the points: which of them lie in the solid."""
    x, y, z = points
    n = model.numbers
    if model.word == "box":
        return (x >= 0) & (x <= n[0]) & ((y >= 0) & (y <= n[1])) & ((z >= 0) & (z <= n[2]))
    if model.word == "cylinder":
        return (x * x + y * y <= n[0] ** 2) & ((z >= 0) & (z <= n[1]))
    if model.word == "sphere":
        return x * x + y * y + z * z <= n[0] ** 2
    if model.word == "translate":
        return inside(model.parts[0], (x - n[0], y - n[1], z - n[2]))
    if model.word == "rotate":
        back = turning(n).T
        turned = [sum(f * p for f, p in zip(row, points, strict=True) if f) for row in back]
        return inside(model.parts[0], (turned[0], turned[1], turned[2]))
    out = inside(model.parts[0], points)
    for part in model.parts[1:]:
        other = inside(part, points)
        out = out | other if model.word == "union" else out & (other if model.word == "intersection" else ~other)
    return out


def hull(model: Solid) -> tuple[np.ndarray, np.ndarray]:
    """float64 [3], [3]: corners of an upright box that surely holds the solid."""
    n = model.numbers
    if model.word == "box":
        return np.zeros(3), np.array(n)
    if model.word == "cylinder":
        return np.array([-n[0], -n[0], 0.0]), np.array([n[0], n[0], n[1]])
    if model.word == "sphere":
        return np.full(3, -n[0]), np.full(3, n[0])
    boxes = [hull(p) for p in model.parts]
    low, high = boxes[0]
    if model.word == "translate":
        return low + n, high + n
    if model.word == "rotate":
        corners = np.array([[(low, high)[i >> k & 1][k] for k in range(3)] for i in range(8)]) @ turning(n).T
        return corners.min(0), corners.max(0)
    if model.word == "union":
        return np.min([b[0] for b in boxes], 0), np.max([b[1] for b in boxes], 0)
    if model.word == "intersection":
        low, high = np.max([b[0] for b in boxes], 0), np.min([b[1] for b in boxes], 0)
        return low, np.maximum(low, high)
    return low, high


def voxels(model: Solid, cell: int = 1) -> np.ndarray:
    """bool [x, y, z] over the workspace, by cells of `cell` mm; read only. Raises ProgramError for a model that leaves
    it."""
    low, high = hull(model)
    if low.min() < -1e-6 or high.max() > SIDE + 1e-6:
        span = ", ".join(f"{a} {lo:g} to {hi:g}" for a, lo, hi in zip("xyz", low, high, strict=True))
        raise ProgramError(f"the model (or the box around it) leaves the workspace of 0 to {SIDE}: {span}")
    return within(model, cell)


def within(model: Solid, cell: int = 1) -> np.ndarray:
    """bool [x, y, z], read only: what the workspace holds of a model, by cells of `cell` mm."""
    centres = np.arange(SIDE // cell) * cell + cell / 2
    points = (centres[:, None, None], centres[None, :, None], centres[None, None, :])
    return np.broadcast_to(inside(model, points), (SIDE // cell,) * 3)
