"""Picks [T, k] turned round: for each key the tokens that picked it, in the tokens' order. For Triton paths alone.

What tokens hand to the keys that they picked is written once and then summed key by key, in an order that never
changes: no float is added atomically. A key's entries lie together; where a pick's entry goes is looked up in a matrix
of bits, one for each key and token, so that nothing is sorted.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

COUNT = {"BLOCK": 32, "num_warps": 4}
"""Keys of a program that counts bits."""
SUM = {"ROWS": 8, "num_warps": 4}
"""Entries that a program of the sum reads at once."""


class ByKey(NamedTuple):
    """Where the entries of picks lie."""

    place: Tensor
    """int32 [T, k]: the row of each pick's entry; undefined where there is no pick."""
    first: Tensor
    """int32 [n + 1]: the entries of key s are the rows first[s] .. first[s + 1] - 1."""


@triton.jit
def _bits_below(word, bit):
    """How many bits of `word` are set below `bit`, 0 .. 32."""
    x = tl.where(bit < 32, word & ~((-1) << (bit & 31)), word)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    x = x + (x >> 8)
    return (x + (x >> 16)) & 0x3F


@triton.jit
def _mark(index, bits, words, K, BLOCK: tl.constexpr):
    t = tl.program_id(0)
    slot = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(index + t.to(tl.int64) * K + slot, mask=slot < K, other=-1)
    bit = tl.zeros((BLOCK,), tl.int32) + (1 << (t % 32))
    tl.atomic_or(bits + key.to(tl.int64) * words + t // 32, bit, mask=key >= 0, sem="relaxed")


@triton.jit
def _count(bits, before, total, keys, words, BLOCK: tl.constexpr):
    key = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = key.to(tl.int64) * words
    seen = tl.zeros((BLOCK,), tl.int32)
    for word in range(0, words):
        tl.store(before + at + word, seen, mask=key < keys)
        seen += _bits_below(tl.load(bits + at + word, mask=key < keys, other=0), seen * 0 + 32)
    tl.store(total + key, seen, mask=key < keys)


@triton.jit
def _place(index, bits, before, first, place, words, K, BLOCK: tl.constexpr):
    t = tl.program_id(0)
    slot = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = t.to(tl.int64) * K + slot
    key = tl.load(index + at, mask=slot < K, other=-1)
    there = key >= 0
    word = key.to(tl.int64) * words + t // 32
    row = tl.load(first + key, mask=there, other=0) + tl.load(before + word, mask=there, other=0)
    row += _bits_below(tl.load(bits + word, mask=there, other=0), key * 0 + t % 32)
    tl.store(place + at, row, mask=slot < K)


@triton.jit
def _sum(entries, first, out, D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr):
    key = tl.program_id(0).to(tl.int64)
    begin, stop = tl.load(first + key), tl.load(first + key + 1)
    if stop > begin:
        row, column = tl.arange(0, ROWS), tl.arange(0, BD)
        total = tl.load(out + key * D + column, mask=column < D, other=0.0)
        for at in range(begin, stop, ROWS):
            there = (at + row < stop)[:, None] & (column < D)[None, :]
            some = tl.load(entries + (at + row).to(tl.int64)[:, None] * D + column[None, :], mask=there, other=0.0)
            total += tl.sum(some.to(tl.float32), 0)
        tl.store(out + key * D + column, total, mask=column < D)


def by_key(index: Tensor, keys: int) -> ByKey:
    """Where each of the picks index int32 [T, k] (-1: none; no key twice in a row) of `keys` keys has its entry."""
    tokens, k = index.shape
    words = triton.cdiv(tokens, 32)
    new = lambda *shape: torch.empty(*shape, dtype=torch.int32, device=index.device)
    bits, before, total = torch.zeros(keys, words, dtype=torch.int32, device=index.device), new(keys, words), new(keys)
    first, place = torch.zeros(keys + 1, dtype=torch.int32, device=index.device), new(tokens, k)
    block = min(1024, triton.next_power_of_2(k))
    grid = (tokens, triton.cdiv(k, block))
    _mark[grid](index, bits, words, k, BLOCK=block)
    _count[(triton.cdiv(keys, COUNT["BLOCK"]),)](bits, before, total, keys, words, **COUNT)
    torch.cumsum(total, 0, dtype=torch.int32, out=first[1:])
    _place[grid](index, bits, before, first, place, words, k, BLOCK=block)
    return ByKey(place, first)


def sum_by_key_(out: Tensor, entries: Tensor, first: Tensor) -> None:
    """Add to each row of out float32 [n, D] its key's entries [., D], in their order."""
    keys, width = out.shape
    if keys:
        _sum[(keys,)](entries, first, out, D=width, BD=triton.next_power_of_2(width), **SUM)
