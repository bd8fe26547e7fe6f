"""Kimi Delta Attention's recurrence, one token after the other, in the inputs' dtype: float64 is the oracle."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from kernels.kda.torch import prepare


def kda_recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Reference: one token after the other, in the inputs' dtype.

    q, k, g [B, T, H, K]; v [B, T, H, V]; beta [B, T, H]; state [B, H, K, V] or None for zeros.
    Returns (o [B, T, H, V], state after the last token).
    """
    b, t, h, kd = k.shape
    s = k.new_zeros(b, h, kd, v.shape[-1]) if state is None else state
    out = []
    for i in range(t):
        s = s * g[:, i].exp().unsqueeze(-1)
        delta = beta[:, i].unsqueeze(-1) * (v[:, i] - (s * k[:, i].unsqueeze(-1)).sum(-2))
        s = s + k[:, i].unsqueeze(-1) * delta.unsqueeze(-2)
        out.append((s * q[:, i].unsqueeze(-1)).sum(-2))
    return torch.stack(out, 1), s


def attend(inputs: tuple[Tensor, ...], bounds: list[int], state: Tensor | None, lower: float) -> tuple[Tensor, Tensor]:
    """See `kernels.kda.kda_attend`: float64 within, whatever the inputs are."""
    wide = tuple(x.double() for x in inputs)
    q, k, g, beta = (x.unsqueeze(0) for x in prepare(wide, lower))
    v = wide[2].unsqueeze(0)
    outs, states = [v[:, :0]], []
    for i, (lo, hi) in enumerate(pairwise(bounds)):
        start = v.new_zeros(1, *k.shape[2:], v.shape[-1]) if state is None else state[i : i + 1].double()
        if hi > lo:
            at = slice(lo, hi)
            o, start = kda_recurrent(q[:, at], k[:, at], v[:, at], g[:, at], beta[:, at], start)
            outs.append(o)
        states.append(start)
    return torch.cat(outs, 1)[0].to(inputs[2]), torch.cat(states)


def step_(inputs: tuple[Tensor, ...], state: Tensor, index: Tensor, lower: float) -> Tensor:
    """See `kernels.kda.kda_decode_`."""
    o = torch.zeros_like(inputs[2])
    for i, slot in enumerate(index.tolist()):
        if slot >= 0:
            one = (*(x[i : i + 1] for x in inputs[:5]), *inputs[5:])
            out, last = attend(one, [0, 1], state[slot : slot + 1], lower)
            o[i], state[slot] = out[0], last[0].to(state)
    return o


def scan(carries: Tensor, lasts: Tensor, start: Tensor | None = None) -> Tensor:
    """See `kernels.kda.segments.scan`: one segment after the other, in float64."""
    state = torch.zeros_like(lasts[0], dtype=torch.float64) if start is None else start.double()
    states = [state]
    for carry, last in zip(carries.double(), lasts.double(), strict=True):
        state = carry @ state + last
        states.append(state)
    return torch.stack(states)
