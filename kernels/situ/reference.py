"""The formula in float64, and autograd."""

from __future__ import annotations

import torch
from torch import Tensor


def situ_glu(gate_up: Tensor, beta: float, linear_beta: float | None) -> Tensor:
    """See `kernels.situ.situ_glu`."""
    g, u = gate_up.double().chunk(2, -1)
    u = u if linear_beta is None else linear_beta * torch.tanh(u / linear_beta)
    return (beta * torch.tanh(g / beta) * torch.sigmoid(g) * u).to(gate_up.dtype)
