"""Normalisations as single autograd nodes: few passes over memory, statistics in at least float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.node import call


def _wide(x: Tensor) -> Tensor:
    """x in the dtype that statistics are computed in: float32, or float64 as it is."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def norm_grad(grad: Tensor, normed: Tensor, inverse: Tensor) -> Tensor:
    """Gradient through normed = x * inverse, inverse = rsqrt(mean x^2 + eps); overwrites `grad`."""
    return grad.addcmul_(normed, (grad * normed).mean(-1, keepdim=True), value=-1).mul_(inverse)


def rows_sum(x: Tensor, like: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).sum(0).to(like.dtype)


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:  # type: ignore[override]
        wide = _wide(x)
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
        ctx.save_for_backward(x, weight, inverse)
        return (wide * inverse).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, inverse = ctx.saved_tensors
        normed = _wide(x) * inverse
        dx = norm_grad(grad * weight, normed, inverse).to(x.dtype)
        return dx, rows_sum(normed.mul_(grad), weight), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight over the last axis; statistics and product in float32 at least."""
    return call(_RmsNorm, x, weight, eps)


class _L2Norm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:  # type: ignore[override]
        wide = _wide(x)
        inverse = torch.rsqrt(wide.square().sum(-1, keepdim=True).add_(1e-6))
        y = wide * inverse
        ctx.save_for_backward(y, inverse)
        ctx.scale = scale
        return (y * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        y, inverse = ctx.saved_tensors
        dx = torch.addcmul(grad, y, (grad * y).sum(-1, keepdim=True), value=-1).mul_(inverse * ctx.scale)
        return dx.to(grad.dtype), None


def l2_norm(x: Tensor, scale: float = 1.0) -> Tensor:
    """scale * x / sqrt(sum(x^2) + 1e-6) over the last axis, in float32 at least (as fla)."""
    return call(_L2Norm, x, scale)


class _GatedHeadNorm(Function):
    @staticmethod
    def forward(ctx: Any, o: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:  # type: ignore[override]
        wide = _wide(o)
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
        open_ = torch.sigmoid(gate)
        ctx.save_for_backward(o, open_, weight, inverse)
        return (wide * inverse).mul_(weight).mul_(open_).to(gate.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        o, open_, weight, inverse = ctx.saved_tensors
        normed = _wide(o) * inverse
        through = grad * open_
        dgate = (through * normed).mul_(weight)
        dw = rows_sum(through * normed, weight)
        dgate.addcmul_(dgate, open_, value=-1)
        return norm_grad(through.mul_(weight), normed, inverse).to(o.dtype), dgate, dw, None


def gated_head_norm(o: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """sigmoid(gate) * RMSNorm(o; weight): o, gate [..., H, V], weight [V] shared by the heads."""
    return call(_GatedHeadNorm, o, gate, weight, eps)
