"""Router records, packed: the experts of each token and layer in ceil(log2(experts)) bits, 10 for 896 of them.

A record says by itself how wide it is, by the largest expert in it. Tokens that no engine has run (NO_ROUTE throughout)
are a bit each and cost no width.
"""

from __future__ import annotations

import struct

import numpy as np

from rollout import packing

NO_ROUTE = 65535
"""Route of a token that no engine has run: one that was sampled last and never fed back."""

_HEAD = struct.Struct("<BBIII")
"""Bits, whether there are tokens without a route, and the shape."""


def pack(routes: np.ndarray) -> bytes:
    """uint16 [T, moe layers, top-k] as bytes. Raises ValueError for another type or shape."""
    if routes.dtype != np.uint16 or routes.ndim != 3:
        raise ValueError(f"routes {routes.dtype} {routes.shape}: give uint16 [tokens, layers, top-k]")
    missing = (routes.reshape(len(routes), -1) == NO_ROUTE).all(-1) if routes.size else np.zeros(len(routes), bool)
    some = bool(missing.any())
    if some:
        routes = routes.copy()
        routes[missing] = 0
    bits = max(1, int(routes.max(initial=0)).bit_length())  # NO_ROUTE inside a token's record takes all 16
    flags = np.packbits(missing).tobytes() if some else b""
    return _HEAD.pack(bits, some, *routes.shape) + flags + packing.pack(routes.reshape(-1), bits).tobytes()


def shape(record: bytes | np.ndarray) -> tuple[int, int, int]:
    """What shape `unpack` will have."""
    _, _, t, layers, k = _HEAD.unpack_from(record)
    return t, layers, k


def unpack(record: bytes | np.ndarray) -> np.ndarray:
    """Inverse of `pack`, to the bit; ValueError for what is not whole."""
    bits, some, t, layers, k = _HEAD.unpack_from(record)
    at = _HEAD.size
    missing = None
    if some:
        flags = np.frombuffer(record, np.uint8, -(-t // 8), at)
        missing = np.unpackbits(flags, count=t).astype(bool)
        at += len(flags)
    packed = np.frombuffer(record, packing.word(bits), offset=at)
    out = packing.unpack(packed, bits, t * layers * k).astype(np.uint16, copy=False).reshape(t, layers, k)
    if missing is not None:
        out[missing] = NO_ROUTE
    return out
