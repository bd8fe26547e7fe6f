"""Model a part from a description in words."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.cad.model import Feature, part, program
from environments.cad.modelling import Modelling
from environments.cad.solid import MANUAL


class FromText(Modelling):
    """Features are described as people do, relative to the plate: edges, top face, centre, through all."""

    id = "cad/from_text"
    skills = ("geometry", "modelling")

    def draw(self, rng: random.Random, level: int) -> Draft:
        features = part(rng, level - 1, level)
        lines = "\n".join(f"{i}. {_words(f, features[0])}" for i, f in enumerate(features, 1))
        text = (
            f"{MANUAL}Write a program for this part. x grows to the right, y to the back, z upwards. Additions come "
            f"first; what is cut is cut from the whole part.\n{lines}\nAnswer with the program only."
        )
        return Draft(text, program(features))


def _words(feature: Feature, plate: Feature) -> str:
    """A sentence for a feature."""
    (x, y, z), (px, py, pz) = feature["at"], plate["at"]
    if feature is plate:
        a, b, c = feature["size"]
        return f"A plate {a} wide (x), {b} deep (y) and {c} thick, its left front bottom corner at ({x}, {y}, {z})."
    right, back, top = px + plate["size"][0], py + plate["size"][1], pz + plate["size"][2]
    if feature["kind"] == "box":
        a, b, c = feature["size"]
        where = f"its left side {x - px} from the plate's left edge and its back side {back - y - b} from the back edge"
        if feature["op"] == "add":
            return f"On the top face of the plate, a block {a} x {b} x {c} (x, y, z), {where}."
        depth = "through the whole plate" if c == plate["size"][2] else f"{c} deep from the plate's top face"
        return f"A rectangular pocket {a} x {b} (x, y), {depth}, {where}; what stands above it on the plate stays."
    if feature["op"] == "add":
        return (
            f"On the top face, an upright round boss of diameter {2 * feature['r']} and height {feature['h']}, its "
            f"axis {right - x} from the plate's right edge and {y - py} from its front edge."
        )
    if feature["axis"] == "z":
        return (
            f"A vertical hole of diameter {2 * feature['r']} through everything (bosses too), {right - x} from the "
            f"right edge and {y - py} from the front edge of the plate."
        )
    along = {"x": ("left to right", "front edge", y - py), "y": ("front to back", "left edge", x - px)}[feature["axis"]]
    height = f"{z - top} above the plate's top face" if z > top else f"{z - pz} above the plate's bottom face"
    return (
        f"A horizontal hole of diameter {2 * feature['r']} from {along[0]} over the plate's whole length, its axis "
        f"{along[2]} from the {along[1]} and {height}."
    )
