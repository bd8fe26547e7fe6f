"""Where images stand in a sequence of token ids, and what tells two sequences apart that differ in pixels alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from environments.images import image_hash, image_parts
from environments.task import Message
from rollout.trajectory import Place


def runs(ids: np.ndarray | Sequence[int], token: int | None) -> list[tuple[int, int]]:
    """(first index, length) of every run of `token` among ids [T]; none if it is None."""
    if token is None:
        return []
    inside = np.concatenate([[0], np.asarray(ids) == token, [0]]).astype(np.int8)
    turns = np.diff(inside)
    return [(int(a), int(b - a)) for a, b in zip(*(np.flatnonzero(turns == t) for t in (1, -1)), strict=True)]


def places(messages: Iterable[Message], ids: Sequence[int], token: int | None) -> tuple[Place, ...]:
    """Places of the messages' images among the ids that were rendered from them: one run of placeholders each.

    Raises ValueError where runs and images are not equally many.
    """
    parts, found = list(image_parts(messages)), runs(ids, token)
    if len(parts) != len(found):
        raise ValueError(f"{len(parts)} images, but {len(found)} runs of placeholder tokens: render them as parts")
    return tuple(Place(part["image"], at, n) for part, (at, n) in zip(parts, found, strict=True))


def identity(ids: np.ndarray, images: Sequence[bytes] = (), token: int | None = None) -> np.ndarray:
    """int64 [T, 2], what a state depends on: (id, 0) of a token, or the 128-bit hash of the file for each token of an
    image. Equal prefixes are equal ids and equal pixels.

    ids int32 [T]; images: files in order, one for each run of `token`. Raises ValueError where they are not.
    """
    out = np.zeros((len(ids), 2), np.int64)
    out[:, 0] = ids
    found = runs(ids, token) if images else []
    if len(found) != len(images):
        raise ValueError(f"{len(images)} images for {len(found)} runs of placeholder tokens")
    for (at, n), file in zip(found, images, strict=True):
        out[at : at + n] = np.frombuffer(bytes.fromhex(image_hash(file)), np.int64)
    return out
