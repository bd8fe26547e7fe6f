"""The sum, tap by tap, in float64, and autograd."""

from __future__ import annotations

import torch
from torch import Tensor


def conv_silu(window: Tensor, weight: Tensor) -> Tensor:
    """See `kernels.conv.conv_silu`."""
    x, w = window.double(), weight.double()
    t = x.shape[1] - w.shape[1] + 1
    total = torch.stack([w[:, j] * x[:, j : j + t] for j in range(w.shape[1])]).sum(0)
    return torch.nn.functional.silu(total).to(window.dtype)
