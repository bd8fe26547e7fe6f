"""The short causal depthwise convolution with SiLU, as shifted multiply-adds (a grouped conv or einsum is far slower)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class _ConvSilu(Function):
    @staticmethod
    def forward(ctx: Any, window: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        taps = weight.shape[-1]
        t = window.shape[1] - taps + 1
        acc = window[:, :t] * weight[:, 0]
        for j in range(1, taps):
            acc.addcmul_(window[:, j : j + t], weight[:, j])
        ctx.save_for_backward(window, weight, acc)
        return torch.nn.functional.silu(acc)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        window, weight, acc = ctx.saved_tensors
        t = acc.shape[1]
        grad = torch.ops.aten.silu_backward(grad, acc)
        dwindow = torch.zeros_like(window)
        dweight = []
        for j in range(weight.shape[-1]):
            dwindow[:, j : j + t].addcmul_(grad, weight[:, j])
            dweight.append((grad * window[:, j : j + t]).sum((0, 1)))
        return dwindow, torch.stack(dweight, -1)


def conv_silu(window: Tensor, weight: Tensor) -> Tensor:
    """y_t = silu(sum_j weight[:, j] * window_{t+j}): window [B, W-1+T, C] (W-1 earlier inputs first), weight [C, W].

    Returns [B, T, C].
    """
    return _ConvSilu.apply(window, weight)
