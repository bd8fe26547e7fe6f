"""Moving tokens between packed [N, ...] and padded [B, T, ...] form, and between tokens and their experts.

All moves are permutations or repeats, so both directions are gathers: no index_add.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.node import call


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, rows: int) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(index)
        return x.new_zeros(rows, *x.shape[1:]).index_copy_(0, index, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(index)
        ctx.rows = x.shape[0]
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad.new_zeros(ctx.rows, *grad.shape[1:]).index_copy_(0, ctx.saved_tensors[0], grad), None


def scatter_rows(x: Tensor, index: Tensor, rows: int) -> Tensor:
    """[rows, ...] with x [N, ...] at `index` (distinct) and zeros elsewhere."""
    return call(_Scatter, x, index, rows)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """x[index] for distinct indices [N]."""
    return call(_Gather, x, index)


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


def expert_order(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """(order [NK], inverse [NK], counts [E]): `order` sorts the pairs of chosen [N, K] by expert, stably."""
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.shape[0], device=order.device)
    return order, inverse, torch.bincount(flat, minlength=experts)


def to_pairs(x: Tensor, order: Tensor, inverse: Tensor, k: int) -> Tensor:
    """Rows of x [N, L] for each token-expert pair, sorted by expert: [NK, L]."""
    return call(_ToPairs, x, order, inverse, k)


def from_pairs(pairs: Tensor, weights: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Sum over k of weights [N, K] times the pairs' rows [NK, L] (sorted by expert): [N, L]."""
    return call(_FromPairs, pairs, weights, order, inverse)
