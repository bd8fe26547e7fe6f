"""MX rounding, packing and unpacking in one pass over device memory: the same bits as `kernels.mx.torch`.

A program takes TILE blocks of 32 values. All arithmetic is on magnitudes, the sign bit is put back last; the block
maximum is one of int32 bit patterns, which order as the magnitudes do and keep NaN above Inf above every number.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.mx.torch import BLOCK, Format, check_rule

CONFIG = {"TILE": 128, "num_warps": 4}
"""Blocks of a program: 32 values a thread, four 16-byte loads of bfloat16 in flight."""
SWEEP = [{"TILE": t, "num_warps": w} for t, w in ((64, 4), (128, 4), (256, 4), (256, 8), (512, 8))]
"""What `python -m benchmarks.kernels` tries beside CONFIG."""


@triton.jit
def _rounded(
    given, LARGEST: tl.constexpr, EMAX: tl.constexpr, LEAST: tl.constexpr, MAGIC: tl.constexpr, EVEN: tl.constexpr
):
    """(magnitudes in units of the scale, sign bits, E8M0 code << 23, whether the block is broken); last two [TILE]."""
    bits = given.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    amax = tl.max(size, 1)
    top = amax
    if EVEN:
        top = amax + 0x200000  # carries into the exponent exactly when the mantissa is >= 1.75
    code = (top & 0x7F800000) - (EMAX << 23)
    code = tl.minimum(tl.maximum(code, 0), (254 - EMAX) << 23)
    inverse = ((254 << 23) - code).to(tl.float32, bitcast=True)
    y = tl.minimum(size.to(tl.float32, bitcast=True) * inverse[:, None], LARGEST)
    # Adding and removing 1.5 x 2^(23 + step) rounds to a multiple of 2^step, ties to even.
    step = (y.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    step = tl.maximum(step, LEAST) * MAGIC
    return (y + step) - step, bits ^ size, code, amax >= 0x7F800000


@triton.jit
def _places(count, columns, per_row, TILE: tl.constexpr, TAIL: tl.constexpr):
    """(block numbers [TILE], element offsets [TILE, 32], which of them exist)."""
    block = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    lane = tl.arange(0, 32)
    if TAIL:
        column = (block % per_row)[:, None] * 32 + lane[None, :]
        at = (block // per_row)[:, None] * columns + column
        there = (block < count)[:, None] & (column < columns)
    else:
        at = block[:, None] * 32 + lane[None, :]
        there = (block < count)[:, None] & (lane < 32)[None, :]
    return block, at, there


@triton.jit
def _fake_quantise(
    x, out, count, columns, per_row,
    LARGEST: tl.constexpr, EMAX: tl.constexpr, LEAST: tl.constexpr, MAGIC: tl.constexpr, EVEN: tl.constexpr,
    KEEP_SIGN: tl.constexpr, TAIL: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    _, at, there = _places(count, columns, per_row, TILE, TAIL)
    given = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    y, sign, code, broken = _rounded(given, LARGEST, EMAX, LEAST, MAGIC, EVEN)
    # The code's bits are those of its scale, but for code 0, which is 2^-127.
    scale = tl.maximum(code, 1 << 22).to(tl.float32, bitcast=True)
    scale = tl.where(broken, float("nan"), scale)
    if not KEEP_SIGN:
        sign = tl.where(y == 0.0, 0, sign)
    y = ((y * scale[:, None]).to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=there)


@triton.jit
def _pack(
    x, elements, scales, count,
    LARGEST: tl.constexpr, EMAX: tl.constexpr, LEAST: tl.constexpr, MAGIC: tl.constexpr, EVEN: tl.constexpr,
    MANTISSA: tl.constexpr, TO_CODE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    block, at, there = _places(count, 0, 1, TILE, False)
    given = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    y, sign, code, broken = _rounded(given, LARGEST, EMAX, LEAST, MAGIC, EVEN)
    # Multiplied so that the format's smallest exponent becomes float32's, the bits' head is the element's code.
    y = tl.where(y == y, y, 0.0)
    byte = (y * TO_CODE).to(tl.int32, bitcast=True) >> (23 - MANTISSA)
    if MANTISSA == 1:
        byte |= (sign >> 28) & 8
        low, high = tl.split(tl.reshape(byte, (TILE, 16, 2)))
        half = block[:, None] * 16 + tl.arange(0, 16)[None, :]
        known = (block < count)[:, None] & (tl.arange(0, 16) < 16)[None, :]
        tl.store(elements + half, (low | (high << 4)).to(tl.uint8), mask=known)
    else:
        byte |= (sign >> 24) & 128
        tl.store(elements + at, byte.to(tl.uint8), mask=there)
    tl.store(scales + block, tl.where(broken, 255, code >> 23).to(tl.uint8), mask=block < count)


@triton.jit
def _unpack(elements, scales, out, count, MANTISSA: tl.constexpr, FROM_CODE: tl.constexpr, TILE: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    code = tl.load(scales + block, mask=block < count, other=127).to(tl.int32)
    scale = tl.maximum(code << 23, 1 << 22).to(tl.float32, bitcast=True)
    scale = tl.where(code == 255, float("nan"), scale)
    lane = tl.arange(0, 32)
    at = block[:, None] * 32 + lane[None, :]
    there = (block < count)[:, None] & (lane < 32)[None, :]
    if MANTISSA == 1:
        half = block[:, None] * 16 + tl.arange(0, 16)[None, :]
        known = (block < count)[:, None] & (tl.arange(0, 16) < 16)[None, :]
        byte = tl.load(elements + half, mask=known, other=0).to(tl.int32)
        byte = tl.reshape(tl.join(byte & 15, byte >> 4), (TILE, 32))
        size, sign = byte & 7, (byte & 8) << 28
    else:
        byte = tl.load(elements + at, mask=there, other=0).to(tl.int32)
        size, sign = byte & 127, (byte & 128) << 24
    y = (size << (23 - MANTISSA)).to(tl.float32, bitcast=True) * FROM_CODE
    if MANTISSA == 3:  # E4M3's only NaN
        y = tl.where(size == 127, float("nan"), y)
    if MANTISSA == 2:  # E5M2's infinity and NaNs
        y = tl.where(size == 124, float("inf"), tl.where(size > 124, float("nan"), y))
    y = ((y * scale[:, None]).to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=there)


def _numbers(fmt: Format, rule: str) -> dict[str, float]:
    check_rule(rule)
    magic = 1.5 * 2.0 ** (23 - fmt.mantissa)
    return {"LARGEST": fmt.largest, "EMAX": fmt.emax, "LEAST": 2.0**fmt.emin, "MAGIC": magic, "EVEN": rule == "even"}


def fake_quantise(x: Tensor, fmt: Format, rule: str) -> Tensor:
    """Values that the format stores for x, same shape and dtype; see `kernels.mx.torch.fake_quantise`."""
    numbers = _numbers(fmt, rule)
    x = x.detach().contiguous()
    out = torch.empty_like(x)
    if x.numel():
        columns = x.shape[-1]
        per_row = -(-columns // BLOCK)
        count = x.numel() // columns * per_row
        _fake_quantise[(triton.cdiv(count, CONFIG["TILE"]),)](
            x, out, count, columns, per_row, **numbers, KEEP_SIGN=fmt.mantissa == 1, TAIL=columns % BLOCK != 0, **CONFIG
        )
    return out


def pack(x: Tensor, fmt: Format, rule: str) -> tuple[Tensor, Tensor]:
    """x [..., n], n a multiple of 32, as (bytes uint8 [..., n] or [..., n/2] for MXFP4, scales uint8 [..., n/32])."""
    numbers = _numbers(fmt, rule)
    x = x.detach().contiguous()
    count, columns = x.numel() // BLOCK, x.shape[-1]
    if columns % BLOCK:
        raise ValueError(f"cannot pack a last axis of {columns}: not a multiple of {BLOCK}")
    halves = 2 if fmt.mantissa == 1 else 1
    elements = torch.empty(*x.shape[:-1], columns // halves, dtype=torch.uint8, device=x.device)
    scales = torch.empty(*x.shape[:-1], columns // BLOCK, dtype=torch.uint8, device=x.device)
    if count:
        _pack[(triton.cdiv(count, CONFIG["TILE"]),)](
            x, elements, scales, count, **numbers, MANTISSA=fmt.mantissa, TO_CODE=2.0 ** (-126 - fmt.emin), **CONFIG
        )
    return elements, scales


def unpack(elements: Tensor, scales: Tensor, fmt: Format, dtype: torch.dtype) -> Tensor:
    """Numbers [..., n] of what `pack` wrote."""
    elements, scales = elements.contiguous(), scales.contiguous()
    out = torch.empty(*scales.shape[:-1], scales.shape[-1] * BLOCK, dtype=dtype, device=scales.device)
    if scales.numel():
        _unpack[(triton.cdiv(scales.numel(), CONFIG["TILE"]),)](
            elements, scales, out, scales.numel(), MANTISSA=fmt.mantissa, FROM_CODE=2.0 ** (126 + fmt.emin), **CONFIG
        )
    return out
