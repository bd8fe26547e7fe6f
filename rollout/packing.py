"""Small unsigned numbers in as many bits as they need: the codec of recorded experts (`rollout.routes`) and picks.

Numbers are packed column by column: a block of W x m numbers (W = 16 or 32, the bits of a word) is W runs of m; word
(w, j) takes bits of the numbers j of all runs. So one numpy call shifts or joins m numbers at once, no number is looked
at alone, and a word is touched while it is in the cache. A block of B numbers of b bits is b x ceil(B / W) words.
"""

from __future__ import annotations

import numpy as np

BLOCK = 1 << 18
"""Numbers in a block, all but the last: its rows stay in a core's cache from one shift to the next (fewer numbers are
slower, more hardly faster), and a slice unpacks no more than the blocks that it touches."""


def word(bits: int) -> np.dtype:
    """The type of numbers and words of this width: uint16 up to 16 bits, else uint32. ValueError beyond 1..32."""
    if not 1 <= bits <= 32:
        raise ValueError(f"numbers of {bits} bits cannot be packed: 1 to 32")
    return np.dtype("<u2" if bits <= 16 else "<u4")


def words(count: int, bits: int) -> int:
    """Words that `count` numbers take."""
    width = 8 * word(bits).itemsize
    whole, rest = divmod(count, BLOCK)
    return bits * (whole * (BLOCK // width) + -(-rest // width))


def pack(values: np.ndarray, bits: int, cut: bool = False) -> np.ndarray:
    """Integers [n] of `bits` bits as words [words(n, bits)] of type word(bits).

    Raises ValueError for numbers that are negative or do not fit. cut: take the lower bits of those, for a caller who
    knows by other means which they are.
    """
    kind = word(bits)
    out = np.zeros(words(len(values), bits), kind)
    spare = np.empty(BLOCK // (8 * kind.itemsize), kind)
    at = 0
    for begin in range(0, len(values), BLOCK):
        block = values[begin : begin + BLOCK]
        if cut:
            block = block & ((1 << bits) - 1)
        elif (least := int(block.min())) < 0 or (most := int(block.max())) >> bits:
            raise ValueError(f"{least if least < 0 else most} does not fit {bits} bits: 0 to {(1 << bits) - 1}")
        end = at + words(len(block), bits)
        _pack_block(block.astype(kind, copy=False), bits, out[at:end].reshape(bits, -1), spare)
        at = end
    return out


def unpack(packed: np.ndarray, bits: int, count: int, begin: int = 0, end: int | None = None) -> np.ndarray:
    """Numbers begin..end of the `count` that were packed, of type word(bits): the inverse of `pack`.

    Raises ValueError where the words are not those of so many numbers.
    """
    kind = word(bits)
    if len(packed) != words(count, bits):
        raise ValueError(f"{count} numbers of {bits} bits are {words(count, bits)} words, not {len(packed)}")
    end = count if end is None else min(end, count)
    first = begin // BLOCK * BLOCK
    out = np.empty(max(0, min(-(-end // BLOCK) * BLOCK, count) - first), kind)
    spare = np.empty(BLOCK // (8 * kind.itemsize), kind)
    at = words(first, bits)
    for start in range(0, len(out), BLOCK):
        block = out[start : start + BLOCK]
        size = words(len(block), bits)
        _unpack_block(packed[at : at + size].reshape(bits, -1), bits, block, spare)
        at += size
    return out[begin - first : end - first]


def _pack_block(values: np.ndarray, bits: int, out: np.ndarray, spare: np.ndarray) -> None:
    """values [n] into zeroed words out [bits, m]."""
    width, m = 8 * values.itemsize, out.shape[1]
    for run in range(width):
        row = values[run * m : (run + 1) * m]
        if not len(row):
            break
        n = len(row)
        w, shift = divmod(run * bits, width)
        if shift:
            np.left_shift(row, shift, out=spare[:n])
            np.bitwise_or(out[w, :n], spare[:n], out=out[w, :n])
        else:
            out[w, :n] = row
        if shift + bits > width:  # its upper bits begin the next word
            np.right_shift(row, width - shift, out=out[w + 1, :n])


def _unpack_block(packed: np.ndarray, bits: int, out: np.ndarray, spare: np.ndarray) -> None:
    """Words packed [bits, m] into numbers out [n]."""
    width, m = 8 * out.itemsize, packed.shape[1]
    mask = (1 << bits) - 1
    for run in range(width):
        row = out[run * m : (run + 1) * m]
        if not len(row):
            break
        n = len(row)
        w, shift = divmod(run * bits, width)
        np.right_shift(packed[w, :n], shift, out=row)
        if shift + bits > width:
            np.left_shift(packed[w + 1, :n], width - shift, out=spare[:n])
            np.bitwise_or(row, spare[:n], out=row)
        if bits < width:
            np.bitwise_and(row, mask, out=row)
