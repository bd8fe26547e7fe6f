"""Pairs of token and expert are copied, sorted, and each expert's rows are a product: two forwards, four backwards.

Moving tokens to their pairs and back are permutations and repeats, so both directions are gathers: no index_add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.node import call
from kernels.norm import rms_norm
from kernels.router.torch import expert_order
from kernels.situ.torch import situ_backward, situ_forward

DENSE_MACS = {True: 2**21, False: 2**28}
"""Multiply-adds up to which running all experts on all tokens costs less than sorting them, on a CPU or elsewhere."""


class _GroupedMlp(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        w13: Tensor,
        w2: Tensor,
        counts: Sequence[int],
        betas: tuple[float, float | None],
        quantise: Any,
    ) -> Tensor:
        gate_up = x.new_empty(x.shape[0], w13.shape[1])
        for a, b, w in zip(x.split(counts), gate_up.split(counts), w13, strict=True):
            torch.mm(a, w.mT, out=b)
        act = situ_forward(gate_up, *betas)
        if quantise is not None:
            act = quantise(act)
        out = torch.empty_like(x)
        for a, b, w in zip(act.split(counts), out.split(counts), w2, strict=True):
            torch.mm(a, w.mT, out=b)
        ctx.save_for_backward(x, w13, w2, gate_up, act)
        ctx.counts, ctx.betas = counts, betas
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, w13, w2, gate_up, act = ctx.saved_tensors
        counts = ctx.counts
        grad = grad.contiguous()
        dact, dw2 = torch.empty_like(act), torch.empty_like(w2)
        for g, a, da, w, dw in zip(grad.split(counts), act.split(counts), dact.split(counts), w2, dw2, strict=True):
            torch.mm(g, w, out=da)
            torch.mm(g.mT, a, out=dw)
        dgate_up = situ_backward(dact, gate_up, *ctx.betas)
        dx, dw13 = torch.empty_like(x), torch.empty_like(w13)
        for g, a, da, w, dw in zip(dgate_up.split(counts), x.split(counts), dx.split(counts), w13, dw13, strict=True):
            torch.mm(g, w, out=da)
            torch.mm(g.mT, a, out=dw)
        return dx, dw13, dw2, None, None, None


def grouped_situ_mlp(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    counts: Sequence[int],
    betas: tuple[float, float | None],
    quantise: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """See `kernels.experts.grouped_situ_mlp`."""
    return call(_GroupedMlp, x, w13, w2, list(counts), betas, quantise)


def dense_situ_mlp(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    weights: Tensor,
    chosen: Tensor,
    betas: tuple[float, float | None],
    quantise: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Weighted sum of the chosen experts, computed by running all of them: for few tokens, no sorting. No gradient.

    See `kernels.experts.routed_experts`.
    """
    n, experts = x.shape[0], w13.shape[0]
    act = situ_forward((x @ w13.flatten(0, 1).mT).view(n, experts, -1), *betas)
    if quantise is not None:
        act = quantise(act)
    share = torch.zeros(n, experts, dtype=weights.dtype, device=x.device).scatter_(1, chosen, weights)
    return act.mul_(share.unsqueeze(-1)).flatten(1) @ w2.mT.flatten(0, 1)


class _ToPairs(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor, k: int) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(inverse)
        ctx.k = k
        return x.index_select(0, order // k)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return grad.index_select(0, ctx.saved_tensors[0]).unflatten(0, (-1, ctx.k)).sum(1), None, None, None


class _FromPairs(Function):
    @staticmethod
    def forward(ctx: Any, pairs: Tensor, weights: Tensor, order: Tensor, inverse: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(pairs, weights, order, inverse)
        back = pairs.index_select(0, inverse).unflatten(0, weights.shape)
        return back.mul_(weights.unsqueeze(-1)).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        pairs, weights, order, inverse = ctx.saved_tensors
        back = pairs.index_select(0, inverse).unflatten(0, weights.shape)
        dweights = back.mul_(grad.unsqueeze(1)).sum(-1)
        spread = grad.index_select(0, order // weights.shape[1])
        return spread.mul_(weights.flatten()[order].unsqueeze(-1)), dweights, None, None


def to_pairs(x: Tensor, order: Tensor, inverse: Tensor, k: int) -> Tensor:
    """Rows of x [N, L] for each token-expert pair, sorted by expert: [NK, L]."""
    return call(_ToPairs, x, order, inverse, k)


def from_pairs(pairs: Tensor, weights: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Sum over k of weights [N, K] times the pairs' rows [NK, L] (sorted by expert): [N, L]."""
    return call(_FromPairs, pairs, weights, order, inverse)


def routed_experts(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    weights: Tensor,
    chosen: Tensor,
    betas: tuple[float, float | None],
    quantise: Callable[[Tensor], Tensor] | None,
    norm: tuple[Tensor, float] | None,
) -> Tensor:
    """See `kernels.experts.routed_experts`."""
    if not torch.is_grad_enabled() and x.shape[0] * w13.numel() <= DENSE_MACS[x.device.type == "cpu"]:
        out = dense_situ_mlp(x, w13, w2, weights, chosen, betas, quantise)
    else:
        order, inverse, counts = expert_order(chosen, w2.shape[0])
        pairs = to_pairs(x, order, inverse, chosen.shape[1])
        out = from_pairs(grouped_situ_mlp(pairs, w13, w2, counts.tolist(), betas, quantise), weights, order, inverse)
    return out if norm is None else rms_norm(out, *norm)


class _StraightThrough(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, *masters: Tensor) -> Tensor:  # type: ignore[override]
        ctx.sizes = [m.shape[1] for m in masters]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return None, *grad.split(ctx.sizes, 1)


def straight_through(value: Tensor, *masters: Tensor) -> Tensor:
    """`value` forwards, uncopied; its gradient goes to `masters`, whose concatenation along axis 1 it stands for."""
    return call(_StraightThrough, value, *masters)
