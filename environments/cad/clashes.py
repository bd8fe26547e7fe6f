"""Which parts of an assembly cut into one another?"""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np

from environments.base import Draft
from environments.cad.model import LIMITS, Feature, expression, shape
from environments.cad.solid import MANUAL, Solid, hull, inside, parse
from environments.question import Question

COUNTS = (4, 6, 9)
_POINTS = 40
"""Points a side of the box around a possible clash: a pin's edge in a corner is some tenths of a millimetre."""


class Clashes(Question):
    """Pins pass through holes, parts touch, and boxes around parts overlap where the parts do not."""

    id = "cad/clashes"
    domain = "cad"
    limits = LIMITS
    skills = ("geometry", "spatial")

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:
            parts = [_part(rng) for _ in range(COUNTS[level - 1])]
            names = [f"p{i + 1}" for i in range(len(parts))]
            filled = [shape(p) for p in parts]
            shared = {(a, b): int((filled[a] & filled[b]).sum()) for a, b in combinations(range(len(parts)), 2)}
            # A clash of a few voxels would depend on the grid, and one between the voxels' centres is none on it.
            if not any(shared.values()) or min(v for v in shared.values() if v) < 8:
                continue
            solids = [parse(p) for p in parts]
            if not any(grazes(solids[a], solids[b]) for (a, b), v in shared.items() if not v):
                break
        pairs = [f"{names[a]}-{names[b]}" for (a, b), v in shared.items() if v]
        listed = "\n".join(f"{n} = {p}" for n, p in zip(names, parts, strict=True))
        text = (
            f"{MANUAL}An assembly has these parts:\n\n{listed}\n\nWhich pairs of parts have volume in common (touching "
            "is none)? Answer with all such pairs, such as p1-p2, p3-p4."
        )
        return Draft(text, ", ".join(pairs))

    def same(self, answer: str, gold: str) -> bool:
        """The same pairs in any order, each named once."""
        pairs = ["-".join(sorted(p.strip().lower().split("-"))) for p in answer.split(",")]
        return sorted(pairs) == sorted(gold.split(", "))


def grazes(one: Solid, other: Solid) -> bool:
    """Whether two solids have a point in common on a fine grid over the box that both may reach."""
    (low, high), (left, right) = hull(one), hull(other)
    low, high = np.maximum(low, left), np.minimum(high, right)
    if (high - low < 1e-9).any():
        return False
    x, y, z = (a + (b - a) * (np.arange(_POINTS) + 0.5) / _POINTS for a, b in zip(low, high, strict=True))
    points = (x[:, None, None], y[None, :, None], z[None, None, :])
    return bool((inside(one, points) & inside(other, points)).any())


def _part(rng: random.Random) -> str:
    """A block, a block with a hole, or a pin."""
    kind, axis = rng.choice(("block", "tube", "pin")), rng.choice("xyz")
    if kind == "pin":
        r = rng.randint(1, 3)
        at = [rng.randint(6, 40) for _ in range(3)]
        at["xyz".index(axis)] = rng.randint(2, 14)
        pin: Feature = {"kind": "cylinder", "axis": axis, "at": at, "r": r, "h": rng.randint(12, 30)}
        return expression(pin)
    size = [rng.randint(8, 20) for _ in range(3)]
    at = [rng.randint(2, 46 - s) for s in size]
    block = expression({"kind": "box", "at": at, "size": size})
    if kind == "block":
        return block
    along = "xyz".index(axis)
    middle = [a + s // 2 for a, s in zip(at, size, strict=True)]
    middle[along] = at[along]
    hole: Feature = {"kind": "cylinder", "axis": axis, "at": middle, "r": rng.randint(2, 3), "h": size[along]}
    return f"difference({block}, {expression(hole)})"
