"""MX block formats: MXFP4 (E2M1) and MXFP8 (E4M3) with one shared E8M0 scale per 32 values of the last axis.

Scale rules (OCP MX v1.0 and compressed-tensors): `floor`: e = floor(log2 amax) - emax, so a block maximum above the
largest element saturates; `even`: the same, one more when amax has a mantissa >= 1.75 (what compressed-tensors writes).
The exponent is read from the float32 bits; elements round to nearest even and saturate. A block that holds NaN or Inf
becomes NaN as a whole and touches no other block. A tail shorter than 32 is a block of its own.
Scales lie in 2^-126 .. 2^(127 - emax), so that they, their inverses and every product are normal float32 numbers; a
block with a smaller maximum is rounded to multiples of the smallest step, down to zero.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 32
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of codes 0..7; bit 3 is the sign."""


class Format(NamedTuple):
    """An element format: largest value, its exponent, smallest normal exponent and mantissa bits."""

    largest: float
    emax: int
    emin: int
    mantissa: int


MXFP4 = Format(6.0, 2, 0, 1)
MXFP8 = Format(448.0, 8, -6, 3)
_EXPONENT = 0x7F800000
_INVERSE = 254 << 23
"""Bits of 2^-e are this minus the bits of 2^e."""


def _check_rule(rule: str) -> None:
    if rule not in ("even", "floor"):
        raise ValueError(f"unknown MX scale rule {rule!r}: even or floor")


def _scale_bits(amax: Tensor, fmt: Format, rule: str) -> Tensor:
    """float32 bits (int32) of the power-of-two scales of block maxima (float32 >= 0); any scale if not finite."""
    bits = amax.view(torch.int32)
    if rule == "even":
        bits = bits + 0x200000  # carries into the exponent exactly when the mantissa is >= 1.75
    return (bits & _EXPONENT).sub_(fmt.emax << 23).clamp_(1 << 23, (254 - fmt.emax) << 23)


def _blocks(x: Tensor) -> Tensor:
    """x as float32 [..., blocks, 32]; a tail is filled with zeros, which never raise a block's maximum."""
    x = x if x.dtype == torch.float32 else x.float()
    n = x.shape[-1]
    if n % BLOCK:
        x = F.pad(x, (0, -n % BLOCK))
    return x.unflatten(-1, (-1, BLOCK))


def _scaled(blocks: Tensor, fmt: Format, rule: str) -> tuple[Tensor, Tensor, Tensor]:
    """(elements in units of the block scale, rounded and saturated; bits of the scale; amax); last axis 32, 1, 1."""
    amax = blocks.abs().amax(-1, keepdim=True)
    bits = _scale_bits(amax, fmt, rule)
    y = blocks * (_INVERSE - bits).view(torch.float32)
    y = y.clamp_(-fmt.largest, fmt.largest)
    # Adding and removing 1.5 x 2^(23 + step) rounds to a multiple of 2^step, ties to even.
    top = (y.view(torch.int32) & _EXPONENT).view(torch.float32).clamp_min_(2.0**fmt.emin)
    top *= 1.5 * 2.0 ** (23 - fmt.mantissa)
    return y.add_(top).sub_(top), bits, amax


def _fake_quantise(x: Tensor, fmt: Format, rule: str) -> Tensor:
    _check_rule(rule)
    if x.numel() == 0:
        return x.clone()
    y, bits, amax = _scaled(_blocks(x), fmt, rule)
    # amax * 0 is NaN exactly where the block is not finite.
    y = y.mul_(torch.add(bits.view(torch.float32), amax * 0.0)).flatten(-2)
    if y.shape[-1] != x.shape[-1]:
        y = y[..., : x.shape[-1]]
    return y if x.dtype == torch.float32 else y.to(x.dtype)


def fake_quantise_mxfp4(x: Tensor, rule: str = "even") -> Tensor:
    """Values that MXFP4 stores for x, same shape and dtype; no gradient. Raises ValueError for an unknown rule."""
    return _fake_quantise(x.detach(), MXFP4, rule)


def fake_quantise_mxfp8(x: Tensor, rule: str = "even") -> Tensor:
    """Values that MXFP8 stores for x, same shape and dtype; no gradient. Raises ValueError for an unknown rule."""
    return _fake_quantise(x.detach(), MXFP8, rule)


class RoundMxfp8:
    """`fake_quantise_mxfp8` in half the passes, for decoding: the same bits for block maxima 0 and 2^-112 .. 2^106.

    A block with a larger maximum becomes NaN, one with a smaller maximum may keep more bits. Elements are rounded in
    their own units, not in those of the scale, so that no scaling could overflow or lose a bit but at these ends.
    Constants are tensors, which torch need not convert in every call. Raises ValueError for an unknown rule.
    """

    def __init__(self, rule: str = "even", device: torch.device | str = "cpu") -> None:
        _check_rule(rule)
        self._even = rule == "even"
        ints, floats = partial(torch.tensor, dtype=torch.int32, device=device), partial(torch.tensor, device=device)
        self._exponent, self._magnitude, self._carry = ints(_EXPONENT), ints(0x7FFFFFFF), ints(0x200000)
        # As in _scaled: 1.5 x 2^23 steps of an element, the smallest of which is that of the format's subnormal ones.
        steps = 1.5 * 2.0 ** (23 - MXFP8.mantissa)
        self._steps, self._subnormal = floats(steps), floats(steps * 2.0 ** (MXFP8.emin - MXFP8.emax))
        self._largest = floats(MXFP8.largest * 2.0**-MXFP8.emax)

    def __call__(self, x: Tensor) -> Tensor:
        """Values that MXFP8 stores for x [..., n], float32; no gradient."""
        n = x.shape[-1]
        blocks = (x if n % BLOCK == 0 else F.pad(x, (0, -n % BLOCK))).reshape(-1, BLOCK)
        bits = torch.bitwise_and(blocks.view(torch.int32), self._magnitude)
        amax = bits.amax(1, keepdim=True)
        if self._even:
            amax.add_(self._carry)
        power = amax.bitwise_and_(self._exponent).view(torch.float32)  # of the maximum; inf if that is not finite
        top = bits.bitwise_and_(self._exponent).view(torch.float32).mul_(self._steps)
        torch.maximum(top, power * self._subnormal, out=top)
        y = torch.add(blocks, top).sub_(top)
        if not self._even:
            limit = power.mul_(self._largest)
            y = torch.clamp(y, -limit, limit)
        return y.view(x.shape) if n % BLOCK == 0 else y.view(*x.shape[:-1], -1)[..., :n].contiguous()


def pack_mxfp4(x: Tensor, rule: str = "even") -> tuple[Tensor, Tensor]:
    """Stored form of x [..., n], n a multiple of 32: (packed uint8 [..., n/2], scales uint8 [..., n/32]).

    The LOW nibble is the even column; a scale s means 2^(s - 127), 255 is NaN (compressed-tensors).
    Raises ValueError if n is not a multiple of 32.
    """
    _check_rule(rule)
    if x.shape[-1] % BLOCK:
        raise ValueError(f"cannot pack a last axis of {x.shape[-1]}: not a multiple of {BLOCK}")
    y, bits, amax = _scaled(_blocks(x.detach()), MXFP4, rule)
    table = torch.tensor(E2M1_VALUES, device=x.device)
    codes = torch.searchsorted(table, y.abs().nan_to_num_(0.0)) + 8 * torch.signbit(y)
    codes = codes.to(torch.uint8).flatten(-2)
    scales = torch.where(amax.isfinite(), bits >> 23, 255).to(torch.uint8).squeeze(-1)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), scales


def unpack_mxfp4(packed: Tensor, scales: Tensor) -> Tensor:
    """float32 [..., n] of what `pack_mxfp4` stored; a scale of 255 gives NaN."""
    table = torch.tensor((*E2M1_VALUES, *(-v for v in E2M1_VALUES)), device=packed.device)
    values = table[torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()]
    scale = torch.exp2(scales.unsqueeze(-1).double() - 127.0)
    scale = torch.where(scales.unsqueeze(-1) == 255, torch.nan, scale)
    return (values.unflatten(-1, (-1, BLOCK)) * scale).float().flatten(-2)


def nonfinite_blocks(x: Tensor) -> int:
    """Number of blocks of x that hold NaN or Inf, so become NaN; a metric of the learner."""
    return int((~_blocks(x.detach()).isfinite()).any(-1).sum())
