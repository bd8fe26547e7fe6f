"""Picks as they travel: the keys that sparse attention selected for a token, in the smallest unsigned type that fits.

An engine records them, nodes and rows carry them, the learner replays them. They are position numbers, so a context of
65,535 tokens fits 16 bits: 2 x index_topk bytes for a token and a full-attention layer. The type's largest value stands
for "none", and a token of nothing else was not recorded. One at a position below index_topk never is: it attends to all
keys that it has, whatever the indexer says.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

_TYPES = (np.dtype(np.uint16), np.dtype(np.uint32))


def pick_type(context: int) -> np.dtype:
    """The type for sequences of at most `context` tokens."""
    return _TYPES[0] if context <= np.iinfo(np.uint16).max else _TYPES[1]


def no_pick(kind: np.dtype) -> int:
    """What stands for "none"; raises ValueError for a type that picks are not kept in."""
    if kind not in _TYPES:
        raise ValueError(f"picks are {kind}: they are kept as {' or '.join(str(t) for t in _TYPES)}")
    return int(np.iinfo(kind).max)


def nothing(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """Picks of this shape of which none is recorded."""
    return np.full(shape, no_pick(kind), kind)


def stored(picks: np.ndarray, kind: np.dtype) -> np.ndarray:
    """int32 picks, -1 for none (`model.dsa`), as they travel."""
    return picks.astype(kind)  # -1 wraps to the largest value


def positions(picks: np.ndarray) -> np.ndarray:
    """Inverse of `stored`: int32, -1 for none."""
    out = picks.astype(np.int32)
    out[picks == no_pick(picks.dtype)] = -1
    return out


def recorded(picks: np.ndarray) -> np.ndarray:
    """Bool [..., L]: whether picks [..., L, k] of a token and layer were recorded."""
    return (picks != no_pick(picks.dtype)).any(-1)


def merged(old: np.ndarray | None, new: np.ndarray) -> np.ndarray:
    """What is known of the same tokens [T, L, k]: what was recorded first stays, `new` fills the rest."""
    return new.copy() if old is None else np.where(recorded(old)[..., None], old, new)


def to_json(picks: np.ndarray) -> dict[str, Any]:
    """A JSON-serialisable form, compressed: sets of ascending numbers are mostly alike from token to token."""
    little = picks.astype(picks.dtype.newbyteorder("<"), copy=False)
    data = base64.b64encode(zlib.compress(little.tobytes(), 1)).decode()
    return {"shape": list(picks.shape), "bits": 8 * picks.dtype.itemsize, "zlib": data}


def from_json(row: dict[str, Any]) -> np.ndarray:
    """Inverse of `to_json`, bit for bit."""
    kind = np.dtype(f"<u{row['bits'] // 8}")
    flat = np.frombuffer(zlib.decompress(base64.b64decode(row["zlib"])), kind)
    return flat.astype(kind.newbyteorder("=")).reshape(row["shape"])
