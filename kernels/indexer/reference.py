"""All scores in float64, a stable sort of each row, and autograd."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def _scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """[T, n] of q [T, J, d], weights [T, J], keys [n, d]."""
    return (torch.relu(q @ keys.mT) * weights.unsqueeze(-1)).sum(1)


def select_keys(q: Tensor, weights: Tensor, keys: Tensor, start: int, k: int, bounds: list[int]) -> Tensor:
    """See `kernels.indexer.select_keys`."""
    q, weights, keys = q.double(), weights.double(), keys.double()
    rows = []
    for a, b in pairwise(bounds):
        scores = _scores(q[a:b], weights[a:b], keys[a : start + b]) if b > a else keys.new_zeros(0, 0)
        for t, row in enumerate(scores):
            best = torch.sort(row[: start + t + 1], descending=True, stable=True).indices[:k]
            rows.append(a + best.sort().values)
    width = min(k, start + max((b - a for a, b in pairwise(bounds)), default=0))
    out = torch.full((q.shape[0], width), -1, dtype=torch.int32, device=q.device)
    for t, row in enumerate(rows):
        out[t, : len(row)] = row
    return out


def index_scores(q: Tensor, weights: Tensor, keys: Tensor, index: Tensor, scale: float) -> Tensor:
    """See `kernels.indexer.index_scores`. Float64 out."""
    every = scale * _scores(q.double(), weights.double(), keys.double())
    return every.gather(1, index.clamp_min(0).long()).masked_fill(index < 0, 0.0)
