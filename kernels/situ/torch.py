"""SiTU-GLU: a gated unit whose gate and up branches are both softly capped (K3 report eq. 11)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.node import call


def situ_forward(gate_up: Tensor, beta: float, linear_beta: float | None) -> Tensor:
    """[beta tanh(g/beta) sigmoid(g)] * [linear_beta tanh(u/linear_beta)] of gate_up = [g | u] [..., 2I]; no grad.

    linear_beta None leaves u as it is.
    """
    g, u = gate_up.chunk(2, -1)
    out = torch.tanh(g / beta).mul_(torch.sigmoid(g))
    if linear_beta is None:
        return out.mul_(u).mul_(beta)
    return out.mul_((u / linear_beta).tanh_()).mul_(beta * linear_beta)


def situ_backward(grad: Tensor, gate_up: Tensor, beta: float, linear_beta: float | None) -> Tensor:
    """Gradient of `situ_forward` to gate_up, given the gradient of its output."""
    g, u = gate_up.chunk(2, -1)
    t, s = torch.tanh(g / beta), torch.sigmoid(g)
    c = u if linear_beta is None else torch.tanh(u / linear_beta)
    out = torch.empty_like(gate_up)
    dg, du = out.chunk(2, -1)
    grad_s = grad * s
    # d/du: beta t s (1 - c^2), without a cap beta t s
    torch.mul(grad_s, t, out=du)
    # d/dg: linear_beta c s [(1 - t^2) + beta t (1 - s)]
    inner = torch.addcmul(t, t, s, value=-1).mul_(beta).addcmul_(t, t, value=-1).add_(1.0)
    torch.mul(grad_s.mul_(c), inner, out=dg)
    if linear_beta is None:
        du.mul_(beta)
    else:
        dg.mul_(linear_beta)
        du.mul_(c.square_().neg_().add_(1.0)).mul_(beta)
    return out


class _Situ(Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, beta: float, linear_beta: float | None) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(gate_up)
        ctx.betas = (beta, linear_beta)
        return situ_forward(gate_up, beta, linear_beta)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (gate_up,) = ctx.saved_tensors
        return situ_backward(grad, gate_up, *ctx.betas), None, None


def situ_glu(gate_up: Tensor, beta: float, linear_beta: float | None) -> Tensor:
    """SiTU-GLU of [gate | up] [..., 2I] -> [..., I]: beta caps the gate, linear_beta (None: nothing) the up branch."""
    return call(_Situ, gate_up, beta, linear_beta)
