"""Attention over selected latents: every query reads its own few of all cached ones, shared by keys and values.

The gathered latents [T, k, D] are made in pieces and again in the backward pass, never whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.node import call

CELLS = {True: 2**19, False: 2**28}
"""Gathered values at once: 2 MiB of float32 on a CPU, so that they stay in its cache; 1 GiB elsewhere."""


def _parts(index: Tensor, width: int) -> list[slice]:
    step = max(1, CELLS[index.device.type == "cpu"] // (index.shape[1] * width))
    return [slice(i, i + step) for i in range(0, index.shape[0], step)]


def _read(latents: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(latents [t, k, D], what is added to the scores [t, 1, k]: -inf where there is none, their places Long [t k]).

    A place that names none reads the first. Long, because `index_add_` takes five times as long by int32 on a CPU.
    """
    at = index.clamp_min(0).flatten().long()
    none = torch.zeros(index.shape, dtype=latents.dtype, device=latents.device)
    none = none.masked_fill_(index < 0, -torch.inf).unsqueeze(1)
    return latents.index_select(0, at).view(*index.shape, -1), none, at


class _Sparse(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, latents: Tensor, index: Tensor, rank: int, scale: float) -> Tensor:  # type: ignore[override]
        out = q.new_empty(*q.shape[:2], rank)
        for part in _parts(index, latents.shape[1]):
            read, none, _ = _read(latents, index[part])
            p = torch.softmax(torch.baddbmm(none, q[part], read.mT, alpha=scale), -1)
            torch.bmm(p, read[..., :rank], out=out[part])
        ctx.save_for_backward(q, latents, index)
        ctx.rank, ctx.scale = rank, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, latents, index = ctx.saved_tensors
        rank, scale = ctx.rank, ctx.scale
        dq, dlatents = torch.empty_like(q), torch.zeros_like(latents)
        # What each head hands to a latent: its share of the scores times the query, its probability times the gradient.
        wide = torch.cat((grad, grad.new_zeros(*grad.shape[:2], latents.shape[1] - rank)), -1)
        for part in _parts(index, latents.shape[1]):
            read, none, at = _read(latents, index[part])
            p = torch.softmax(torch.baddbmm(none, q[part], read.mT, alpha=scale), -1)
            dp = torch.bmm(grad[part], read[..., :rank].mT)
            ds = dp.sub_((p * dp).sum(-1, keepdim=True)).mul_(p).mul_(scale)
            torch.bmm(ds, read, out=dq[part])
            handed = torch.bmm(torch.cat((ds, p), 1).mT, torch.cat((q[part], wide[part]), 1))
            # A place without a latent has p = ds = 0: it adds zeros to the first one.
            dlatents.index_add_(0, at, handed.flatten(0, 1))
        return dq, dlatents, None, None, None


def sparse_attend(q: Tensor, latents: Tensor, index: Tensor, rank: int, scale: float) -> Tensor:
    """See `kernels.sparse_mla.sparse_attend`."""
    return call(_Sparse, q, latents, index, rank, scale)


@torch.no_grad()
def sparse_shares(q: Tensor, latents: Tensor, index: Tensor, scale: float) -> Tensor:
    """See `kernels.sparse_mla.sparse_shares`."""
    out = []
    for part in _parts(index, latents.shape[1]):
        read, none, _ = _read(latents, index[part])
        out.append(torch.softmax(torch.baddbmm(none, q[part], read.mT, alpha=scale), -1).mean(1))
    return torch.cat(out)


@torch.no_grad()
def sparse_decode(q: Tensor, latents: Tensor, index: Tensor, rank: int, scale: float) -> Tensor:
    """See `kernels.sparse_mla.sparse_decode`, of one pool of latents."""
    return sparse_attend(q, latents, index, rank, scale)
