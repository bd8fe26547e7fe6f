"""K3.1's indexer: which keys a query attends to, and the scores by which the indexer itself is trained.

    I[t, s] = sum_j w[t, j] ReLU(q[t, j] . k[s])        ties go to the smaller s, as in `model.dsa.select_topk`

Scores are made tile by tile and the best kept, in O(T k) memory: there is no matrix of all scores. The loss over the
chosen keys needs their scores alone, [T, k].
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, bfloat16, float32

from kernels.paths import pick


def select_keys(
    q: Tensor, weights: Tensor, keys: Tensor, start: int, k: int, bounds: list[int] | None = None
) -> Tensor:
    """Int [T, min(k, n)]: each query's best keys, ascending, -1 behind the last; query t sees keys 0 .. start + t.

    q [T, J, d] and weights [T, J] (scores' scale included) of the indexer's heads, keys [n, d], n >= start + T.
    bounds: N + 1 ascending positions, 0 first, T last: packed sequences with `start` 0, each token sees its own
    sequence's keys from there to itself, n is the longest one's length. Exact for the scores of the path that runs; no
    gradient. Raises ValueError for bounds that do not fit or k < 1.
    """
    tokens = q.shape[0]
    bounds = [0, tokens] if bounds is None else bounds
    if bounds[0] != 0 or bounds[-1] != tokens or any(a > b for a, b in pairwise(bounds)):
        raise ValueError(f"bounds must ascend from 0 to {tokens}, the number of tokens: {bounds}")
    if start and len(bounds) > 2:
        raise ValueError(f"start {start}: of packed sequences each starts at 0")
    if k < 1:
        raise ValueError(f"k is {k}: a query has at least one key")
    return _path("indexer", q, keys).select_keys(q, weights, keys, start, k, bounds)


def index_scores(q: Tensor, weights: Tensor, keys: Tensor, index: Tensor, scale: float) -> Tensor:
    """scale I[t, s] [T, k] of each query's own keys: q [T, J, d], weights [T, J], keys [n, d], index Int [T, k].

    index: -1 is no key, whose score means nothing (but is finite, and its gradient is dropped); no key twice in a row.
    Gradients to q, weights and keys.
    """
    return _path("index_scores", q, keys).index_scores(q, weights, keys, index, scale)


def _path(operator: str, q: Tensor, keys: Tensor):  # type: ignore[no-untyped-def]
    misfit = "" if q.shape[2] <= 256 else "heads wider than 256"
    if q.dtype not in (float32, bfloat16) or keys.dtype != q.dtype:
        misfit = f"queries of {q.dtype} and keys of {keys.dtype}"
    path = pick(operator, q, misfit, proven=False)
    if path == "triton":
        from kernels.indexer import triton

        return triton
    if path == "reference":
        from kernels.indexer import reference

        return reference
    from kernels.indexer import torch

    return torch
