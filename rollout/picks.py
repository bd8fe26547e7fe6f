"""Picks as they travel: the keys that sparse attention selected for a token, in the smallest unsigned type that fits.

An engine records them, nodes and rows carry them, the learner replays them. They are position numbers, so a context of
65,535 tokens fits 16 bits: 2 x index_topk bytes for a token and a full-attention layer. The type's largest value stands
for "none", and a token of nothing else was not recorded. One at a position below index_topk never is: it attends to all
keys that it has, whatever the indexer says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from rollout import packing

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


def told(lengths: Sequence[int], begin: int, read: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """(node, its first token that is told of, records of its tokens from there on), from the last node backwards.

    lengths: of the nodes of a prompt; read [T - begin, ...]: what an engine tells of its tokens from `begin` on. Nodes
    that it tells nothing of are not looked at, so that a turn costs what it adds.
    """
    end = begin + len(read)
    for i in range(len(lengths) - 1, -1, -1):
        first = end - lengths[i]
        if end <= begin:
            return
        at = max(first, begin)
        yield i, at - first, read[at - begin : end - begin]
        end = first


def filled(old: np.ndarray | None, n: int, at: int, new: np.ndarray) -> np.ndarray:
    """Records of a node of n tokens (routes or picks, [n, L, k]) of which `new` tells from token `at` on: what was
    recorded first stays."""
    out = nothing((n, *new.shape[1:]), new.dtype) if old is None else old.copy()
    out[at:] = merged(out[at:], new)
    return out


_CHUNK = 16
"""Steps from key to key that are packed in the width of their largest: so few that one wide gap costs little, so many
that the byte of their width does not count."""

_SLAB = 1 << 20
"""Keys in a slab, which is packed by itself: what packing and unpacking hold beside the picks."""

_HEAD = struct.Struct("<BIII")
"""Bytes of the type, and the shape."""


def pack(picks: np.ndarray) -> bytes:
    """Picks [T, L, k] as bytes: steps from key to key, 16 at a time in the bits of the largest. Any come back to the
    bit; short are those that ascend, with "none" behind, which costs next to nothing where it is alone.

    Raises ValueError for a type that picks are not kept in and for another number of axes.
    """
    no_pick(picks.dtype)
    if picks.ndim != 3:
        raise ValueError(f"picks {picks.shape}: give [tokens, layers, index_topk]")
    parts = [_HEAD.pack(picks.dtype.itemsize, *picks.shape)]
    tokens = _slab_tokens(picks.shape)
    for begin in range(0, len(picks) if picks.size else 0, tokens):
        parts += _pack_slab(picks[begin : begin + tokens])
    return b"".join(parts)


def unpack(record: bytes | memoryview) -> np.ndarray:
    """Inverse of `pack`, to the bit; ValueError for what is not whole."""
    size, *shape = _HEAD.unpack_from(record)
    out = np.empty(shape, np.dtype(f"u{size}"))
    at, tokens = _HEAD.size, _slab_tokens(shape)
    for begin in range(0, len(out) if out.size else 0, tokens):
        at = _unpack_slab(record, at, out[begin : begin + tokens])
    return out


def token_bytes(record: bytes | memoryview) -> int:
    """Bytes that a token's picks take when they are unpacked."""
    size, _, layers, k = _HEAD.unpack_from(record)
    return size * layers * k


def _slab_tokens(shape: Sequence[int]) -> int:
    return max(1, _SLAB // max(1, shape[1] * shape[2]))


def _pack_slab(picks: np.ndarray) -> list[bytes]:
    """Widths uint8 [chunks], then the steps of all chunks of a width, by width."""
    k = picks.shape[-1]
    steps = np.zeros((picks.size // k, -(-k // _CHUNK) * _CHUNK), picks.dtype)
    flat = picks.reshape(-1, k)
    np.add(flat, 1, out=steps[:, :k])  # "none" wraps to 0, and so does its step to the next
    steps[:, 1:k] -= flat[:, :-1] + flat.dtype.type(1)
    chunks = steps.reshape(-1, _CHUNK)
    widths = np.frexp(chunks.max(-1).astype(np.float64))[1].astype(np.uint8)
    parts = [widths.tobytes()]
    for bits in _widths(widths):
        parts.append(packing.pack(chunks[widths == bits].reshape(-1), bits).tobytes())
    return parts


def _unpack_slab(record: bytes | memoryview, at: int, out: np.ndarray) -> int:
    """Fill out [T, L, k] from what begins at byte `at`; returns where it ends."""
    k = out.shape[-1]
    rows = out.size // k
    steps = np.zeros((rows, -(-k // _CHUNK) * _CHUNK), out.dtype)
    chunks = steps.reshape(-1, _CHUNK)
    widths = np.frombuffer(record, np.uint8, len(chunks), at)
    at += len(chunks)
    for bits in _widths(widths):
        here = widths == bits
        count = int(here.sum()) * _CHUNK
        packed = np.frombuffer(record, packing.word(bits), packing.words(count, bits), at)
        chunks[here] = packing.unpack(packed, bits, count).reshape(-1, _CHUNK)
        at += packed.nbytes
    np.cumsum(steps[:, :k], axis=1, dtype=out.dtype, out=steps[:, :k])
    np.subtract(steps[:, :k], 1, out=out.reshape(rows, k))
    return at


def _widths(widths: np.ndarray) -> list[int]:
    """The widths that occur, but 0: nothing is kept of those chunks."""
    return [int(bits) for bits in np.flatnonzero(np.bincount(widths, minlength=1)) if bits]
