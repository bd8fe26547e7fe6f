"""Write a model that was built from many pieces with few primitives."""

from __future__ import annotations

import random

import numpy as np

from environments.base import Draft
from environments.cad.model import part, program, shape
from environments.cad.modelling import Modelling
from environments.cad.solid import MANUAL, MAX_CHARS


class FewerParts(Modelling):
    """A union of disjoint boxes hides a difference: see the shape behind the pieces."""

    id = "cad/fewer_parts"
    skills = ("geometry", "compression")

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:
            features = part(rng, level - 1, level, round_ones=False)
            pieces = _pieces(shape(program(features)))
            rng.shuffle(pieces)
            given = "union(\n  " + ",\n  ".join(pieces) + ")"
            if len(pieces) >= len(features) + 2 and len(given) < MAX_CHARS:
                break
        text = (
            f"{MANUAL}This model is made of {len(pieces)} boxes:\n\n{given}\n\nWrite a program of exactly the same "
            f"solid with at most {len(features)} primitives (boxes, cylinders and spheres; a name that is used twice "
            "counts twice). Answer with the program only."
        )
        return Draft(text, program(features), {"start": given, "most": len(features)})


def _pieces(filled: np.ndarray) -> list[str]:
    """Disjoint boxes that fill a shape: from the lowest voxel, grown along z, then y, then x."""
    left, out = filled.copy(), list[str]()
    while left.any():
        low = [int(v) for v in np.unravel_index(left.argmax(), left.shape)]
        high = [v + 1 for v in low]
        for axis in (2, 1, 0):
            while high[axis] < left.shape[axis]:
                layer = tuple(slice(high[a], high[a] + 1) if a == axis else slice(low[a], high[a]) for a in range(3))
                if not left[layer].all():
                    break
                high[axis] += 1
        left[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = False
        size = [b - a for a, b in zip(low, high, strict=True)]
        out.append("translate({}, {}, {}, box({}, {}, {}))".format(*low, *size))
    return out
