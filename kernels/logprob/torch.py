"""The loop over tiles of the vocabulary, and its elementwise passes in torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

TILE = {True: 1024, False: 8192}
"""Entries of a tile, on a CPU or not: 8192 tokens' logits of 8192 entries are 256 MiB of float32."""


class Sums(NamedTuple):
    """What is known of each token's softmax so far, float32 [N]."""

    top: Tensor
    """The largest logit."""
    total: Tensor
    """Sum of exp(logit - top)."""
    product: Tensor
    """Sum of exp(logit - top) (logit - top): a sure token's entropy is small beside its logit."""
    chosen: Tensor
    """The target's logit, once its tile has come."""


class Parts(NamedTuple):
    """The two passes over a tile of unscaled float32 logits [N, W] of the entries from `first` on."""

    fold_: Any
    """(logits, target, first, scale, sums): adds the tile to the sums, in place."""
    slope: Any
    """(logits, target, first, scale, lse, entropy, dlog, dentropy, dtype): the tile's gradient, in dtype."""


def fold_(logits: Tensor, target: Tensor, first: int, scale: float, sums: Sums) -> None:
    """See `Parts`."""
    z = logits * scale
    top = torch.maximum(sums.top, z.amax(1))
    shrink = torch.exp(sums.top - top)
    below = z - top.unsqueeze(1)
    e = torch.exp(below)
    rise = torch.nan_to_num(sums.top - top, neginf=0.0)  # of nothing so far, nothing has to be moved
    sums.product.addcmul_(sums.total, rise).mul_(shrink).add_((e * below).sum(1))
    sums.total.mul_(shrink).add_(e.sum(1))
    sums.top.copy_(top)
    row = ((target >= first) & (target < first + z.shape[1])).nonzero().squeeze(1)
    sums.chosen[row] = z[row, target[row] - first]


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
    """See `Parts`."""
    logs = logits * scale - lse.unsqueeze(1)
    weight = dlog.unsqueeze(1) + dentropy.unsqueeze(1) * (logs + entropy.unsqueeze(1))
    grad = logs.exp().mul_(weight).neg_()
    row = ((target >= first) & (target < first + logs.shape[1])).nonzero().squeeze(1)
    grad[row, target[row] - first] += dlog[row]
    return grad.mul_(scale).to(dtype)


PARTS = Parts(fold_, slope)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32 (float64 if they are): bfloat16 factors are not rounded again."""
    if a.is_cuda and a.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(a, b, out_dtype=torch.float32)
    return (a @ b).to(torch.promote_types(a.dtype, torch.float32))


class _LogProb(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, scale: float, parts: Parts
    ) -> tuple[Tensor, Tensor]:
        n, tile = hidden.shape[0], TILE[hidden.device.type == "cpu"]
        new = lambda value: torch.full(
            (n,), value, dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device
        )
        sums = Sums(new(-torch.inf), new(0.0), new(0.0), new(0.0))
        if n:
            for first in range(0, weight.shape[0], tile):
                parts.fold_(_product(hidden, weight[first : first + tile].mT), target, first, scale, sums)
        log_total = sums.total.log()
        entropy = log_total - sums.product / sums.total
        lse = sums.top + log_total
        ctx.save_for_backward(hidden, weight, target, lse, entropy)
        ctx.scale, ctx.parts = scale, parts
        return (sums.chosen - sums.top) - log_total, entropy

    @staticmethod
    def backward(ctx: Any, dlog: Tensor, dentropy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, target, lse, entropy = ctx.saved_tensors
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        tile = TILE[hidden.device.type == "cpu"]
        dhidden = torch.zeros(hidden.shape, dtype=lse.dtype, device=hidden.device) if need_hidden else None
        dweight = torch.zeros_like(weight) if need_weight else None
        dlog, dentropy = dlog.contiguous(), dentropy.contiguous()
        for first in range(0, weight.shape[0] if hidden.shape[0] else 0, tile):
            some = weight[first : first + tile]
            logits = _product(hidden, some.mT)
            grad = ctx.parts.slope(logits, target, first, ctx.scale, lse, entropy, dlog, dentropy, hidden.dtype)
            del logits
            if dhidden is not None:
                dhidden += _product(grad, some)
            if dweight is not None:
                torch.mm(grad.mT, hidden, out=dweight[first : first + tile])
        return None if dhidden is None else dhidden.to(hidden.dtype), dweight, None, None, None


def log_prob(
    hidden: Tensor, weight: Tensor, target: Tensor, scale: float, parts: Parts = PARTS
) -> tuple[Tensor, Tensor]:
    """See `kernels.logprob.linear_log_prob`; scale = 1 / temperature."""
    return _LogProb.apply(hidden.contiguous(), weight, target.contiguous(), scale, parts)
