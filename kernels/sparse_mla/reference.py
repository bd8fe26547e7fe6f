"""A mask over all latents, the plain softmax in float64, and autograd."""

from __future__ import annotations

import torch
from torch import Tensor


def _shares(q: Tensor, latents: Tensor, index: Tensor, scale: float) -> Tensor:
    """Probabilities [h, T, n]."""
    seen = torch.zeros(index.shape[0], latents.shape[0] + 1, dtype=torch.bool, device=q.device)
    seen.scatter_(1, torch.where(index < 0, latents.shape[0], index).long(), True)
    scores = q.double().transpose(0, 1) @ latents.double().mT * scale
    return torch.softmax(scores.masked_fill(~seen[:, :-1], -torch.inf), -1)


def sparse_attend(q: Tensor, latents: Tensor, index: Tensor, rank: int, scale: float) -> Tensor:
    """See `kernels.sparse_mla.sparse_attend`. Float64 out."""
    return (_shares(q, latents, index, scale) @ latents[:, :rank].double()).transpose(0, 1)


def sparse_shares(q: Tensor, latents: Tensor, index: Tensor, scale: float) -> Tensor:
    """See `kernels.sparse_mla.sparse_shares`. Float64 out."""
    mean = _shares(q, latents, index, scale).mean(0)
    return mean.gather(1, index.clamp_min(0).long()).masked_fill(index < 0, 0.0)


def sparse_decode(q: Tensor, latents: Tensor, index: Tensor, rank: int, scale: float) -> Tensor:
    """See `kernels.sparse_mla.sparse_decode`, of one pool of latents. Float64 out."""
    return sparse_attend(q, latents, index, rank, scale)
