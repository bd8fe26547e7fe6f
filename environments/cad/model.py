"""What several tasks of this family share: random parts, their programs, and the verdict on a program."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np

from environments.cad.solid import ProgramError, Solid, parse, voxels, within
from environments.task import Limits
from rewards.grade import Grade, GradeStatus

Feature = dict[str, Any]
"""`op` add or cut, `kind` box (with `size`) or cylinder (with `r`, `h`, `axis`), `at` [x, y, z]: JSON values."""
LIMITS = Limits(turns=1, tokens=16_384, seconds=60.0)
"""Of tasks with one reply: parts are compared and places tried in thought, as long as a puzzle of logic takes."""
HALF = 0.5
"""Most that a model of the wrong shape can earn."""


def expression(feature: Feature) -> str:
    """A feature as a solid of the language; `at` is a box's lowest corner, or the centre of a cylinder's first face."""
    x, y, z = feature["at"]
    if feature["kind"] == "box":
        body = "box({}, {}, {})".format(*feature["size"])
    else:
        body = f"cylinder({feature['r']}, {feature['h']})"
        turn = {"x": "0, 90, 0", "y": "-90, 0, 0", "z": ""}[feature["axis"]]
        body = f"rotate({turn}, {body})" if turn else body
    return f"translate({x}, {y}, {z}, {body})"


def program(features: list[Feature]) -> str:
    """The features as a program: all that are added, without all that are cut."""
    added = [expression(f) for f in features if f["op"] == "add"]
    cut = [expression(f) for f in features if f["op"] == "cut"]
    body = added[0] if len(added) == 1 else "union(\n  " + ",\n  ".join(added) + ")"
    return f"body = {body}\n" + ("difference(body,\n  " + ",\n  ".join(cut) + ")" if cut else "body")


def part(rng: random.Random, bosses: int, cuts: int, round_ones: bool = True) -> list[Feature]:
    """A plate with bosses on it and holes or pockets in it; every feature changes the shape."""
    while True:
        size = [rng.randint(22, 36), rng.randint(18, 32), rng.randint(5, 9)]
        at = [rng.randint(4, 42 - s) for s in size[:2]] + [rng.randint(2, 8)]
        features: list[Feature] = [{"op": "add", "kind": "box", "at": at, "size": size}]
        top = at[2] + size[2]
        for _ in range(bosses):
            if round_ones and rng.random() < 0.4:
                r = rng.randint(3, 6)
                place = [rng.randint(at[i] + r, at[i] + size[i] - r) for i in range(2)]
                features.append(
                    {"op": "add", "kind": "cylinder", "axis": "z", "at": [*place, top], "r": r, "h": rng.randint(4, 14)}
                )
            else:
                small = [rng.randint(4, 12), rng.randint(4, 12), rng.randint(4, 18)]
                place = [rng.randint(at[i], at[i] + size[i] - small[i]) for i in range(2)]
                features.append({"op": "add", "kind": "box", "at": [*place, top], "size": small})
        for _ in range(cuts):
            if round_ones and rng.random() < 0.6:
                axis, r = rng.choice("zzxy"), rng.randint(2, 4)
                along = "xyz".index(axis)
                low = at[2] if axis == "z" else top + r if bosses and rng.random() < 0.5 else at[2] + size[2] // 2
                place = [rng.randint(at[i] + r + 1, at[i] + size[i] - r - 1) for i in range(2)] + [low]
                place[along] = at[along]
                reach = 40 - at[2] if axis == "z" else size[along]
                features.append({"op": "cut", "kind": "cylinder", "axis": axis, "at": place, "r": r, "h": reach})
            else:
                small = [rng.randint(4, 14), rng.randint(4, 12), rng.randint(2, size[2])]
                place = [rng.randint(at[i], at[i] + size[i] - small[i]) for i in range(2)] + [top - small[2]]
                features.append({"op": "cut", "kind": "box", "at": place, "size": small})
        if all_matter(features):
            return features


def all_matter(features: list[Feature]) -> bool:
    """Whether each feature but the first changes the shape by at least 12 voxels: what is described must be seen."""
    grids = [within(parse(expression(f))) for f in features]
    cut = [f["op"] == "cut" for f in features]
    added, taken = (np.sum([g for g, c in zip(grids, cut, strict=True) if c == out], 0) for out in (False, True))
    # Without the feature another voxel is full: where it alone adds and nothing cuts, or it alone cuts what is added.
    alone = ((added == 1) & (taken == 0), (taken == 1) & (added > 0))
    return all((g & alone[c]).sum() >= 12 for g, c in zip(grids[1:], cut[1:], strict=True))


@lru_cache(maxsize=64)
def shape(text: str) -> np.ndarray:
    """bool [SIDE, SIDE, SIDE] of a program, read only; some are kept, for a gold is compared many times.

    Raises ProgramError.
    """
    return voxels(parse(text))


def stock(target: np.ndarray) -> np.ndarray:
    """The upright box around a shape: what everybody can guess."""
    spans = [np.flatnonzero(target.any(tuple(a for a in range(3) if a != axis))) for axis in range(3)]
    out = np.zeros_like(target)
    out[tuple(slice(s[0], s[-1] + 1) for s in spans)] = True
    return out


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Intersection over union."""
    return float((a & b).sum() / max(1, (a | b).sum()))


def judged(text: str | None, gold: str, start: str | None = None, most: int | None = None) -> Grade:
    """1 for a program of the gold's very voxels; up to HALF as its overlap exceeds that of `start` (else the stock).

    `most`: primitives allowed; a program of more of them earns nothing.
    """
    if text is None:
        return Grade.unparsed(why="no answer")
    try:
        model: Solid = parse(text)
        got = voxels(model)
    except ProgramError as error:
        return Grade.unparsed(why=str(error))
    if most is not None and model.leaves > most:
        return Grade.outcome(False, primitives=model.leaves, allowed=most)
    target = shape(gold)
    score = overlap(got, target)
    if score == 1.0:
        return Grade.outcome(True)
    floor = overlap(stock(target) if start is None else shape(start), target)
    gain = HALF * (score - floor) / (1 - floor) if floor < 1 else 0.0
    if gain <= 0:
        return Grade.outcome(False, overlap=score)
    return Grade(gain, GradeStatus.PARTIAL, {"overlap": score})
