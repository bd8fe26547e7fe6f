"""RMSNorm modules; the arithmetic is in kernels/norm.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels.norm import rms_norm


class RMSNorm(nn.Module):
    """x * rsqrt(mean(x^2) + eps) * weight over the last axis, weight starting at 1 (not 1 + w)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size]."""
        return rms_norm(x, self.weight, self.eps)


class Scale(nn.Module):
    """Holds the weight of a norm that a fused kernel applies."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class Query(nn.Module):
    """Holds a static pseudo-query [1, size] of a depth mix; zero at the start, so every mix begins as the average."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, size))
