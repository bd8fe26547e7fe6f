"""The short causal depthwise convolution with SiLU, as shifted multiply-adds (grouped conv and einsum are slower)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.node import call


class _ConvSilu(Function):
    @staticmethod
    def forward(ctx: Any, window: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        taps = weight.shape[-1]
        t = window.shape[1] - taps + 1
        rows = weight.mT.contiguous()  # a strided operand would keep the CPU from vectorising
        acc = window[:, :t] * rows[0]
        for j in range(1, taps):
            acc.addcmul_(window[:, j : j + t], rows[j])
        ctx.save_for_backward(window, weight, acc)
        return torch.nn.functional.silu(acc)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        window, weight, acc = ctx.saved_tensors
        t = acc.shape[1]
        grad = torch.ops.aten.silu_backward(grad, acc)
        dwindow, rows = torch.zeros_like(window), weight.mT.contiguous()
        dweight, scratch = [], torch.empty_like(grad)
        for j, row in enumerate(rows):
            dwindow[:, j : j + t].addcmul_(grad, row)
            dweight.append(torch.mul(grad, window[:, j : j + t], out=scratch).sum((0, 1)))
        return dwindow, torch.stack(dweight, -1)


def conv_silu(window: Tensor, weight: Tensor) -> Tensor:
    """y_t = silu(sum_j weight[:, j] * window_{t+j}): window [B, W-1+T, C] (W-1 earlier inputs first), weight [C, W].

    Returns [B, T, C].
    """
    return call(_ConvSilu, window, weight)
