"""MX rounding in torch, any device: MXFP4 and MXFP8 with one shared E8M0 scale per 32 values of the last axis.

Scale rules (OCP MX v1.0 and compressed-tensors): `floor`: e = floor(log2 amax) - emax, so a block maximum above the
largest element saturates; `even`: the same, one more when amax has a mantissa >= 1.75 (what compressed-tensors writes).
The exponent is read from the float32 bits (other dtypes become float32 first); elements round to nearest even and
saturate. A block that holds NaN or Inf becomes NaN as a whole and touches no other block. A tail shorter than 32 is a
block of its own. Scales lie in 2^-127 .. 2^(127 - emax): a block with a smaller maximum is rounded to multiples of the
smallest step, down to zero. MXFP4 keeps the sign of what becomes zero, as its stored form does (`kernels.mx_pack`).
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
"""E4M3: no infinity, one NaN."""
MXFP8_E5M2 = Format(57344.0, 15, -14, 2)
_EXPONENT = 0x7F800000
_INVERSE = 254 << 23
"""Bits of 2^-e are this minus the bits of 2^e."""


def check_rule(rule: str) -> None:
    """Raises ValueError for an unknown scale rule."""
    if rule not in ("even", "floor"):
        raise ValueError(f"unknown MX scale rule {rule!r}: even or floor")


def _scale_bits(amax: Tensor, fmt: Format, rule: str) -> Tensor:
    """E8M0 codes, shifted left by 23, of the scales of block maxima (float32 >= 0), int32; any if not finite."""
    bits = amax.view(torch.int32)
    if rule == "even":
        bits = bits + 0x200000  # carries into the exponent exactly when the mantissa is >= 1.75
    return (bits & _EXPONENT).sub_(fmt.emax << 23).clamp_(0, (254 - fmt.emax) << 23)


def blocks(x: Tensor) -> Tensor:
    """x as float32 [..., blocks, 32]; a tail is filled with zeros, which never raise a block's maximum."""
    x = x if x.dtype == torch.float32 else x.float()
    n = x.shape[-1]
    if n % BLOCK:
        x = F.pad(x, (0, -n % BLOCK))
    return x.unflatten(-1, (-1, BLOCK))


def scaled(x: Tensor, fmt: Format, rule: str) -> tuple[Tensor, Tensor, Tensor]:
    """(elements in units of the block scale, rounded and saturated; E8M0 code << 23; amax); last axis 32, 1, 1."""
    amax = x.abs().amax(-1, keepdim=True)
    code = _scale_bits(amax, fmt, rule)
    y = x * (_INVERSE - code).view(torch.float32)
    y = y.clamp_(-fmt.largest, fmt.largest)
    # Adding and removing 1.5 x 2^(23 + step) rounds to a multiple of 2^step, ties to even.
    top = (y.view(torch.int32) & _EXPONENT).view(torch.float32).clamp_min_(2.0**fmt.emin)
    top *= 1.5 * 2.0 ** (23 - fmt.mantissa)
    return y.add_(top).sub_(top), code, amax


def fake_quantise(x: Tensor, fmt: Format, rule: str) -> Tensor:
    """Values that the format stores for x, same shape and dtype; no gradient. Raises ValueError for an unknown rule."""
    check_rule(rule)
    x = x.detach()
    if x.numel() == 0:
        return x.clone()
    given = blocks(x)
    y, code, amax = scaled(given, fmt, rule)
    # The code's bits are those of its scale, but for code 0, which is 2^-127.
    # amax * 0 is NaN exactly where the block is not finite.
    y = y.mul_(torch.add(code.clamp_min_(1 << 22).view(torch.float32), amax * 0.0))
    y = (y.copysign_(given) if fmt is MXFP4 else y).flatten(-2)
    if y.shape[-1] != x.shape[-1]:
        y = y[..., : x.shape[-1]]
    return y if x.dtype == torch.float32 else y.to(x.dtype)


class RoundMxfp8:
    """`fake_quantise_mxfp8` in half the passes, for decoding: the same bits for block maxima 0 and 2^-112 .. 2^106.

    A block with a larger maximum becomes NaN, one with a smaller maximum may keep more bits. Elements are rounded in
    their own units, not in those of the scale, so that no scaling could overflow or lose a bit but at these ends.
    Constants are tensors, which torch need not convert in every call. Raises ValueError for an unknown rule.
    """

    def __init__(self, rule: str = "even", device: torch.device | str = "cpu", fmt: Format = MXFP8) -> None:
        check_rule(rule)
        self._even = rule == "even"
        ints, floats = partial(torch.tensor, dtype=torch.int32, device=device), partial(torch.tensor, device=device)
        self._exponent, self._magnitude, self._carry = ints(_EXPONENT), ints(0x7FFFFFFF), ints(0x200000)
        # As in `scaled`: 1.5 x 2^23 steps of an element, the smallest of which is that of the format's subnormal ones.
        steps = 1.5 * 2.0 ** (23 - fmt.mantissa)
        self._steps, self._subnormal = floats(steps), floats(steps * 2.0 ** (fmt.emin - fmt.emax))
        self._largest = floats(fmt.largest * 2.0**-fmt.emax)

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


def nonfinite_blocks(x: Tensor) -> int:
    """Number of blocks of x that hold NaN or Inf, so become NaN; a metric of the learner."""
    return int((~blocks(x.detach()).isfinite()).any(-1).sum())
