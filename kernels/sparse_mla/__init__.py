"""Attention over cached latents, which are keys and values at once: over those that a query picked, and over all.

The picks are given: live from `kernels.indexer`, or recorded in decoding and replayed. In the absorbed form the heads
of a token share one latent of `rank` values and a few dims that are keys alone.
"""

from __future__ import annotations

from torch import Tensor, bfloat16, float32, where

from kernels.paths import pick
from kernels.sparse_mla.dense import latent_attend

__all__ = ["latent_attend", "sparse_attend", "sparse_decode", "sparse_shares"]


def sparse_attend(q: Tensor, latents: Tensor, index: Tensor, rank: int, scale: float) -> Tensor:
    """softmax(scale q . c) c over the latents that `index` names: the absorbed form of latent attention.

    q [T, h, D], latents [n, D] whose first `rank` columns are the values, index Int [T, k] (-1: none, but at least one
    is named, and none twice in a row). Returns [T, h, rank]. Gradients to q and latents.
    """
    return _path("sparse_mla", q, latents).sparse_attend(q, latents, index, rank, scale)


def sparse_shares(q: Tensor, latents: Tensor, index: Tensor, scale: float) -> Tensor:
    """[T, k]: the probabilities of `sparse_attend`, averaged over heads; 0 where no latent is named. No gradient."""
    return _path("sparse_shares", q, latents).sparse_shares(q.detach(), latents.detach(), index, scale)


def sparse_decode(q: Tensor, pool: Tensor, rows: Tensor, index: Tensor, rank: int, scale: float) -> Tensor:
    """`sparse_attend` of one token for each of B sequences, whose latents lie in a pool: [B, h, rank]; no gradient.

    q [B, h, D]; pool [slots, length, D], contiguous; rows Int [B]: each sequence's slot; index Int [B, k]: positions in
    its slot (-1: none, but at least one is named). Raises ValueError for a pool that is not contiguous.
    """
    if not pool.is_contiguous():
        raise ValueError("the pool of latents is read in place: pass it contiguous")
    at = where(index < 0, -1, index + rows.unsqueeze(1) * pool.shape[1])
    path = _path("sparse_decode", q, pool)
    return path.sparse_decode(q.detach(), pool.detach().flatten(0, 1), at, rank, scale)


def _path(operator: str, q: Tensor, latents: Tensor):  # type: ignore[no-untyped-def]
    misfit = "" if q.shape[2] <= 1024 else "latents wider than 1024"
    if q.shape[1] > 128:
        misfit = "more than 128 heads"
    if q.dtype not in (float32, bfloat16) or latents.dtype != q.dtype:
        misfit = f"queries of {q.dtype} and latents of {latents.dtype}"
    path = pick(operator, q, misfit, proven=False)
    if path == "triton":
        from kernels.sparse_mla import triton

        return triton
    if path == "reference":
        from kernels.sparse_mla import reference

        return reference
    from kernels.sparse_mla import torch

    return torch
