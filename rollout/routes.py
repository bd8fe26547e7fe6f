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
    missing = np.zeros(len(routes), bool)
    if routes.size:
        likely = np.flatnonzero(routes[:, 0, 0] == NO_ROUTE)
        missing[likely] = (routes[likely] == NO_ROUTE).all((1, 2))
    some = bool(missing.any())
    bits = max(1, _largest(routes, missing).bit_length())  # NO_ROUTE inside a token's record takes all 16
    flags = np.packbits(missing).tobytes() if some else b""
    packed = packing.pack(routes.reshape(-1), bits, cut=some)  # what is cut is in the flags
    return _HEAD.pack(bits, some, *routes.shape) + flags + packed.tobytes()


def _largest(routes: np.ndarray, missing: np.ndarray) -> int:
    """The largest number of the tokens that are not missing, 0 for none; by slabs, which the cache holds."""
    top, tokens = 0, max(1, packing.BLOCK // max(1, routes[:1].size))
    for begin in range(0, len(routes), tokens):
        slab = routes[begin : begin + tokens]
        most = int(slab.max(initial=0))
        if most == NO_ROUTE:
            most = int(slab[~missing[begin : begin + tokens]].max(initial=0))
        top = max(top, most)
    return top


def token_bytes(record: bytes | memoryview) -> int:
    """Bytes that a token's routes take when they are unpacked."""
    *_, layers, k = _HEAD.unpack_from(record)
    return np.dtype(np.uint16).itemsize * layers * k


def unpack(record: bytes | memoryview) -> np.ndarray:
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
