"""Rebuild a solid from a table of its sections, with few primitives."""

from __future__ import annotations

import random
from itertools import groupby

import numpy as np

from environments.base import Draft
from environments.cad.model import part, program, shape
from environments.cad.modelling import Modelling
from environments.cad.solid import MANUAL


def spans(flags: np.ndarray) -> str:
    """bool [n] as `4-10, 12-30`."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return ", ".join(f"{a}-{b}" for a, b in edges.reshape(-1, 2))


def sections(filled: np.ndarray) -> str:
    """bool [x, y, z] as text: equal layers and equal rows are given once."""
    out = []
    for _, group in groupby(range(filled.shape[2]), key=lambda z: filled[:, :, z].tobytes()):
        levels = [*group]
        here = filled[:, :, levels[0]]
        if not here.any():
            continue
        out.append(f"z {levels[0]}-{levels[-1] + 1}")
        for _, ys in groupby(range(here.shape[1]), key=lambda y: here[:, y].tobytes()):
            lines = [*ys]
            if row := spans(here[:, lines[0]]):
                out.append(f"  y {lines[0]}-{lines[-1] + 1}: x {row}")
    return "\n".join(out)


class FromSections(Modelling):
    """The rows could be copied box by box, but only as many primitives are allowed as the part was made of."""

    id = "cad/from_sections"
    skills = ("geometry", "compression")

    def draw(self, rng: random.Random, level: int) -> Draft:
        features = part(rng, level, level, round_ones=False)
        most = len(features)
        text = (
            f"{MANUAL}This table lists the sections of a part: for each range of z, for each range of y, the ranges of "
            f"x that are material.\n\n{sections(shape(program(features)))}\n\nWrite a program for the part with at "
            f"most {most} primitives (boxes, cylinders and spheres; a name that is used twice counts twice). Answer "
            "with the program only."
        )
        draft = Draft(text, program(features))
        draft.info["most"] = most
        return draft
