"""Moving tokens between packed [N, ...] and padded [B, T, ...] form: permutations, so both directions are gathers."""

from __future__ import annotations

from typing import Any

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
