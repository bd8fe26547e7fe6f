"""Context parallelism: segments of a sequence computed apart, their states by a prefix scan of affine maps.

Over a segment the state goes S -> M S + L: M [K, K] is the product of all (I - beta k k^T) Diag(exp g), L the state
from zero (K3 report eq. 13), and a token's output is o = o_from_zero + (M_t^T q_t)^T S. L and o_from_zero are the
recurrence from a zero state; M and M_t^T q_t are the same recurrence of values of 0 from the identity. So every rank
runs `segment`, all ranks exchange (M, L) once, K (K + V) numbers a head and sequence, `scan` makes of them each
segment's starting state, and `finish` adds its part with one product. Gradients go through all of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.kda import kda_attend


class Segment(NamedTuple):
    """What a segment of N packed sequences is before their starting states are known."""

    o: Tensor
    """[T, H, V]: outputs from zero states."""
    seen: Tensor
    """[T, H, K]: what each output reads of the starting state."""
    last: Tensor
    """[N, H, K, V]: L."""
    carry: Tensor
    """[N, H, K, K]: M."""


def segment(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    z: Tensor,
    b: Tensor,
    a_log: Tensor,
    bias: Tensor,
    bounds: list[int],
    lower: float = -5.0,
) -> Segment:
    """One segment, as `kernels.kda.kda_attend` takes it."""
    rest = (z, b, a_log, bias, bounds)
    o, last = kda_attend(q, k, v, *rest, None, lower)
    eye = torch.eye(k.shape[-1], dtype=last.dtype, device=last.device)
    seen, carry = kda_attend(q, k, torch.zeros_like(k), *rest, eye.expand(len(bounds) - 1, k.shape[1], -1, -1), lower)
    return Segment(o, seen, last, carry)


def scan(carries: Tensor, lasts: Tensor, start: Tensor | None = None) -> Tensor:
    """States before each of R segments and after the last one [R + 1, .., K, V], in log2(R) rounds of products.

    carries [R, .., K, K], lasts [R, .., K, V], start [.., K, V] or None for zeros.
    """
    step, segments = 1, carries.shape[0]
    while step < segments:
        # Each map after the one that ends where it begins: (M, L) after (M', L') is (M M', M L' + L).
        later = carries[step:]
        lasts = torch.cat((lasts[:step], later @ lasts[:-step] + lasts[step:]))
        carries = torch.cat((carries[:step], later @ carries[:-step]))
        step *= 2
    first = torch.zeros_like(lasts[:1]) if start is None else start.unsqueeze(0)
    return torch.cat((first, lasts if start is None else carries @ start + lasts))


def finish(part: Segment, start: Tensor, bounds: list[int]) -> Tensor:
    """o [T, H, V] of a segment whose sequences begin with `start` [N, H, K, V]."""
    rest = [
        torch.einsum("thk,hkv->thv", part.seen[lo:hi].to(start), start[i])
        for i, (lo, hi) in enumerate(pairwise(bounds))
    ]
    return part.o + torch.cat(rest).to(part.o)
