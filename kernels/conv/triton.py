"""The short convolution in one pass over memory, each way; what a tile's taps share comes from the cache."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

CONFIG = {"ROWS": 32, "COLUMNS": 128, "num_warps": 4}
SWEEP = [
    {"ROWS": r, "COLUMNS": c, "num_warps": w} for r, c, w in ((16, 256, 4), (32, 128, 4), (64, 64, 4), (64, 128, 8))
]
"""Tokens and channels of a program."""
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows(x, base, t, limit, column, C):
    """Rows t of x [.., C] from `base` on as float32 [ROWS, COLUMNS]; 0 outside 0 .. limit."""
    there = ((t >= 0) & (t < limit))[:, None] & (column < C)[None, :]
    return tl.load(x + base + t[:, None] * C + column[None, :], mask=there, other=0.0).to(tl.float32)


@triton.jit
def _sum(window, weight, base, t, length, column, C, W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The convolution at tokens t, before SiLU."""
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for j in tl.static_range(W):
        w = tl.load(weight + column * W + j, mask=column < C, other=0.0).to(tl.float32)
        acc += w[None, :] * _rows(window, base, t + j, length, column, C)
    return acc


@triton.jit
def _forward(window, weight, out, T, C, W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    batch = tl.program_id(2).to(tl.int64)
    t, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    acc = _sum(window, weight, batch * (T + W - 1) * C, t, T + W - 1, column, C, W, ROWS, COLUMNS)
    y = acc / (1.0 + tl.exp2(-acc * _LOG2E))
    there = (t < T)[:, None] & (column < C)[None, :]
    tl.store(out + batch * T * C + t[:, None] * C + column[None, :], y.to(out.dtype.element_ty), mask=there)


@triton.jit
def _backward(window, weight, grad, dwindow, partial, T, C, W: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    batch, block = tl.program_id(2).to(tl.int64), tl.program_id(1)
    t, column = block * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    base, length = batch * (T + W - 1) * C, T + W - 1
    dx = tl.zeros((ROWS, COLUMNS), tl.float32)
    for s in tl.static_range(W):  # token t - s reads row t of the window by its tap s
        acc = _sum(window, weight, base, t - s, length, column, C, W, ROWS, COLUMNS)
        gate = 1.0 / (1.0 + tl.exp2(-acc * _LOG2E))
        d = _rows(grad, batch * T * C, t - s, T, column, C) * gate * (1.0 + acc * (1.0 - gate))
        w = tl.load(weight + column * W + s, mask=column < C, other=0.0).to(tl.float32)
        dx += w[None, :] * d
        if s == 0:
            for j in tl.static_range(W):
                share = tl.sum(d * _rows(window, base, t + j, length, column, C), 0)
                at = (batch * tl.num_programs(1) + block) * W * C + j * C + column
                tl.store(partial + at, share, mask=column < C)
    there = (t < length)[:, None] & (column < C)[None, :]
    tl.store(dwindow + base + t[:, None] * C + column[None, :], dx.to(dwindow.dtype.element_ty), mask=there)


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, window: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(window, weight)
        batch, length, channels = window.shape
        t = length - weight.shape[1] + 1
        out = torch.empty(batch, t, channels, dtype=window.dtype, device=window.device)
        if out.numel():
            grid = (triton.cdiv(channels, CONFIG["COLUMNS"]), triton.cdiv(t, CONFIG["ROWS"]), batch)
            _forward[grid](window, weight, out, t, channels, W=weight.shape[1], **CONFIG)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        window, weight = ctx.saved_tensors
        batch, length, channels = window.shape
        taps = weight.shape[1]
        dwindow = torch.empty_like(window)
        blocks = triton.cdiv(length, CONFIG["ROWS"])
        partial = torch.empty(batch * blocks, taps, channels, dtype=torch.float32, device=window.device)
        if window.numel():
            _backward[(triton.cdiv(channels, CONFIG["COLUMNS"]), blocks, batch)](
                window, weight, grad.contiguous(), dwindow, partial, length - taps + 1, channels, W=taps, **CONFIG
            )
        return dwindow, partial.sum(0).mT.to(weight.dtype)


def conv_silu(window: Tensor, weight: Tensor) -> Tensor:
    """See `kernels.conv.conv_silu`."""
    return _Conv.apply(window.contiguous(), weight.contiguous())
