"""SiTU-GLU in one pass over memory, each way; a program takes BLOCK places of one row."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SWEEP = [{"BLOCK": n, "num_warps": w} for n, w in ((512, 4), (1024, 4), (2048, 8))]
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(-x * _LOG2E))


@triton.jit
def _tanh(x):
    # 2 sigmoid(2x) - 1 cancels near zero, where the series is exact to float32.
    y = x * x
    return tl.where(y < 0.01, x * (1.0 - y * (1.0 / 3.0 - y * (2.0 / 15.0))), 2.0 * _sigmoid(2.0 * x) - 1.0)


@triton.jit
def _unit(g, u, beta, cap, CAPPED: tl.constexpr):
    if CAPPED:
        u = cap * _tanh(u / cap)
    return beta * _tanh(g / beta) * _sigmoid(g) * u


@triton.jit
def _slopes(d, g, u, beta, cap, CAPPED: tl.constexpr):
    """Gradients of gate and up branch, given the unit's d."""
    t, s = _tanh(g / beta), _sigmoid(g)
    slope = tl.full(u.shape, 1.0, tl.float32)
    if CAPPED:
        c = _tanh(u / cap)
        u, slope = cap * c, 1.0 - c * c
    return d * u * s * ((1.0 - t * t) + beta * t * (1.0 - s)), d * beta * t * s * slope


@triton.jit
def _forward(x, out, width, parts, beta, cap, CAPPED: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // parts).to(tl.int64)
    column = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    there = column < width
    g = tl.load(x + row * 2 * width + column, mask=there, other=0.0).to(tl.float32)
    u = tl.load(x + row * 2 * width + width + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, _unit(g, u, beta, cap, CAPPED).to(out.dtype.element_ty), mask=there)


@triton.jit
def _backward(x, grad, dx, width, parts, beta, cap, CAPPED: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // parts).to(tl.int64)
    column = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    there = column < width
    g = tl.load(x + row * 2 * width + column, mask=there, other=0.0).to(tl.float32)
    u = tl.load(x + row * 2 * width + width + column, mask=there, other=0.0).to(tl.float32)
    d = tl.load(grad + row * width + column, mask=there, other=0.0).to(tl.float32)
    dg, du = _slopes(d, g, u, beta, cap, CAPPED)
    tl.store(dx + row * 2 * width + column, dg.to(dx.dtype.element_ty), mask=there)
    tl.store(dx + row * 2 * width + width + column, du.to(dx.dtype.element_ty), mask=there)


class _Situ(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, beta: float, linear_beta: float | None) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        ctx.betas = beta, linear_beta
        out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device)
        _launch(_forward, (x, out), beta, linear_beta)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        _launch(_backward, (x, grad.contiguous(), dx), *ctx.betas)
        return dx, None, None


def _launch(kernel: Any, tensors: tuple[Tensor, ...], beta: float, linear_beta: float | None) -> None:
    x = tensors[0]
    width = x.shape[-1] // 2
    if x.numel():
        parts = triton.cdiv(width, CONFIG["BLOCK"])
        cap = 1.0 if linear_beta is None else linear_beta
        rows = x.numel() // (2 * width)
        kernel[(rows * parts,)](*tensors, width, parts, beta, cap, CAPPED=linear_beta is not None, **CONFIG)


def situ_glu(gate_up: Tensor, beta: float, linear_beta: float | None) -> Tensor:
    """See `kernels.situ.situ_glu`."""
    return _Situ.apply(gate_up.contiguous(), beta, linear_beta)
