"""Expert MLPs over tokens sorted by expert, one autograd node: two products forwards and four backwards per expert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.node import call
from kernels.situ import situ_backward, situ_forward


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
    """W2_e SiTU(W1_e x, W3_e x) of rows sorted by expert: x [P, L], w13 [E, 2I, L], w2 [E, L, I], counts [E] (sum P).

    `quantise` rounds the input of W2, straight-through. An expert without rows gets a zero gradient, not none.
    Returns [P, L].
    """
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

    x [N, L], weights and chosen [N, K]; the rest as `grouped_situ_mlp`. Returns [N, L].
    """
    n, experts = x.shape[0], w13.shape[0]
    act = situ_forward((x @ w13.flatten(0, 1).mT).view(n, experts, -1), *betas)
    if quantise is not None:
        act = quantise(act)
    share = torch.zeros(n, experts, dtype=weights.dtype, device=x.device).scatter_(1, chosen, weights)
    return act.mul_(share.unsqueeze(-1)).flatten(1) @ w2.mT.flatten(0, 1)


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
