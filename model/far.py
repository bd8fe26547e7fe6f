"""Full attention far from a sequence's beginning: the indexer's keys are found piece by piece, and read alone.

What a masked product of all keys costs grows with the sequence: at a million tokens it is 4,000 times what top-k keys
of 256 need. Here only the indexer looks at all keys, in memory that does not grow with the number of queries.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.indexer import select_keys
from kernels.sparse_mla import sparse_attend
from model.dsa import Indexer

GROUP = 64
"""Scores of which the largest stands for all: the k-th largest of these maxima is no more than the k-th score."""


def best_keys(scores: Tensor, k: int) -> Tensor:
    """Long [min(k, S)], ascending: places of the k largest scores [S]; ties go to the smaller place.

    Exact as `model.dsa.select_topk`, in three readings of the scores.
    """
    n = len(scores)
    if n <= k:
        return torch.arange(n, device=scores.device)
    candidates = None
    if n >= 2 * GROUP * k:  # fewer have too few groups for a bound worth its price
        whole = n - n % GROUP
        bound = torch.topk(scores[:whole].view(-1, GROUP).amax(1), k, sorted=False).values.amin()
        candidates = (scores >= bound).nonzero().squeeze(1)
        scores = scores[candidates]
    best = torch.sort(scores, descending=True, stable=True).indices[:k].sort().values
    return best if candidates is None else candidates[best]


def choose_keys(q: Tensor, weights: Tensor, keys: Tensor, k: int) -> Tensor:
    """Long [k], ascending: the keys [S, d] of largest score for one query q [J, d] of the indexer, head weights [J]."""
    dots = torch.mm(q, keys.mT).relu_()
    return best_keys(torch.mv(dots.mT, weights), k)  # a common factor of all scores changes no order


def read_rows(
    indexer: Indexer,
    index_q: tuple[Tensor, Tensor],
    keys: Tensor,
    q: Tensor,
    latents: Tensor,
    rows: list[tuple[int, int]],
    out: Tensor,
    picks: Tensor | None = None,
) -> None:
    """One query of each of some rows of a batch, row by row: each reads as many keys as it has.

    index_q: the indexer's queries [n, 1, J, d] and head weights [n, 1, J]; keys [n, max_len, d] and latents [n,
    max_len, D]; q [n, heads, D], the scale included; rows: (row, its tokens). Writes these rows of `out` [n, heads,
    rank] and of picks int32 [n, top-k].
    """
    for row, tokens in rows:
        at = choose_keys(index_q[0][row, 0], index_q[1][row, 0], keys[row, :tokens], indexer.topk)
        own = latents[row].index_select(0, at)
        out[row] = torch.mm(torch.softmax(torch.mm(q[row], own.mT), 1), own[:, : out.shape[2]])
        if picks is not None:
            picks[row] = at


def read_chunk(
    indexer: Indexer,
    index_q: tuple[Tensor, Tensor],
    keys: Tensor,
    q: Tensor,
    latents: Tensor,
    rank: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """A chunk of T queries behind what is cached: (read [T, heads, rank], picks int32 [T, top-k]).

    index_q: the indexer's queries [T, J, d] and head weights [T, J]; q [T, heads, D]; keys [S, d] and latents [S, D] of
    the whole sequence, the chunk's own last.
    """
    queries, weights = index_q
    start = len(keys) - len(queries)
    picks = select_keys(queries, weights * indexer.head_dim**-0.5, keys, start, indexer.topk)
    read = sparse_attend(q, latents, picks, rank, scale)
    return read, F.pad(picks, (0, indexer.topk - picks.shape[1]), value=-1)
