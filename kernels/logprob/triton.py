"""The two passes over a tile of logits, each reading it once; a program takes one token's entries of the tile."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.logprob.torch import Parts, Sums
from kernels.logprob.torch import log_prob as in_tiles

CONFIG = {"num_warps": 8}
"""8192 float32 of a row are 32 registers a thread."""
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _fold(logits, target, first, scale, top, total, product, chosen, width, W: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, W)
    z = tl.load(logits + row * width + column, mask=column < width, other=float("-inf")) * scale
    old = tl.load(top + row)
    new = tl.maximum(old, tl.max(z, 0))
    shrink = tl.exp2((old - new) * _LOG2E)
    below = tl.where(column < width, z - new, 0.0)
    e = tl.where(column < width, tl.exp2(below * _LOG2E), 0.0)
    before = tl.load(total + row)
    rise = tl.where(old == float("-inf"), 0.0, old - new)  # of nothing so far, nothing has to be moved
    tl.store(product + row, (tl.load(product + row) + before * rise) * shrink + tl.sum(e * below, 0))
    tl.store(total + row, before * shrink + tl.sum(e, 0))
    tl.store(top + row, new)
    place = tl.load(target + row) - first
    if (place >= 0) & (place < width):
        tl.store(chosen + row, tl.load(logits + row * width + place) * scale)


@triton.jit
def _slope(logits, target, first, scale, lse, entropy, dlog, dentropy, out, width, W: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, W)
    z = tl.load(logits + row * width + column, mask=column < width, other=0.0) * scale
    logs = z - tl.load(lse + row)
    d = tl.load(dlog + row)
    weight = d + tl.load(dentropy + row) * (logs + tl.load(entropy + row))
    chosen = column == tl.load(target + row) - first
    grad = tl.where(chosen, d, 0.0) - tl.exp2(logs * _LOG2E) * weight
    tl.store(out + row * width + column, (grad * scale).to(out.dtype.element_ty), mask=column < width)


def fold_(logits: Tensor, target: Tensor, first: int, scale: float, sums: Sums) -> None:
    """See `kernels.logprob.torch.Parts`."""
    rows, width = logits.shape
    _fold[(rows,)](logits, target, first, scale, *sums, width, W=triton.next_power_of_2(width), **CONFIG)


def slope(
    logits: Tensor,
    target: Tensor,
    first: int,
    scale: float,
    lse: Tensor,
    entropy: Tensor,
    dlog: Tensor,
    dentropy: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """See `kernels.logprob.torch.Parts`."""
    rows, width = logits.shape
    out = torch.empty(rows, width, dtype=dtype, device=logits.device)
    block = triton.next_power_of_2(width)
    _slope[(rows,)](logits, target, first, scale, lse, entropy, dlog, dentropy, out, width, W=block, **CONFIG)
    return out


def log_prob(hidden: Tensor, weight: Tensor, target: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """See `kernels.logprob.linear_log_prob`; scale = 1 / temperature."""
    return in_tiles(hidden, weight, target, scale, Parts(fold_, slope))
