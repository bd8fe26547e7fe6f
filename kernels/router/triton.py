"""A program a token picks its experts, a largest one after the other; pairs are put in order by a counting sort.

The counting sort is stable and knows no atomics: a pair's place is where its expert's pairs begin, plus those of
earlier blocks, plus its rank in its own block of PAIRS, which compares all pairs of the block with each other.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.router.torch import Routed
from kernels.situ.triton import _sigmoid

CONFIG = {"num_warps": 4}
"""896 scores are 7 registers a thread."""
SWEEP = [{"num_warps": w} for w in (1, 2, 4)]
PAIRS = 128
_LEAST = tl.constexpr(-3.4e38)


@triton.jit
def _route(
    logits, bias, routes, weights, chosen, scores, after, E, factor,
    K: tl.constexpr, BK: tl.constexpr, BE: tl.constexpr, REPLAY: tl.constexpr, RENORMALISE: tl.constexpr,
):  # fmt: skip
    row, column, slot = tl.program_id(0).to(tl.int64), tl.arange(0, BE), tl.arange(0, BK)
    there = column < E
    s = _sigmoid(tl.load(logits + row * E + column, mask=there, other=0.0))
    tl.store(scores + row * E + column, s, mask=there)
    rank = s + tl.load(bias + column, mask=there, other=0.0).to(tl.float32)
    rank = tl.where(rank != rank, float("inf"), tl.maximum(rank, _LEAST))  # NaN comes first, as in torch's sort
    rank = tl.where(there, rank, float("-inf"))
    picked = tl.zeros((BK,), tl.float32)
    for i in range(K):
        best = tl.argmax(rank, 0)  # of equal ones the leftmost
        rank = tl.where(column == best, float("-inf"), rank)
        if REPLAY:
            told = tl.load(routes + row * K + i).to(tl.int32)
            best = tl.where(told >= 0, told, best)
        tl.store(chosen + row * K + i, best.to(tl.int64))
        picked = tl.where(slot == i, tl.sum(tl.where(column == best, s, 0.0), 0), picked)
    tl.store(after + row, tl.max(rank, 0))
    if RENORMALISE:
        picked = picked / (tl.sum(picked, 0) + 1e-20)
    tl.store(weights + row * K + slot, picked * factor, mask=slot < K)


@triton.jit
def _route_back(
    scores, chosen, dweights, dlogits, E, factor,
    K: tl.constexpr, BK: tl.constexpr, BE: tl.constexpr, RENORMALISE: tl.constexpr,
):  # fmt: skip
    row, column, slot = tl.program_id(0).to(tl.int64), tl.arange(0, BE), tl.arange(0, BK)
    used = slot < K
    expert = tl.load(chosen + row * K + slot, mask=used, other=0)
    s = tl.load(scores + row * E + expert, mask=used, other=0.0)
    d = tl.load(dweights + row * K + slot, mask=used, other=0.0).to(tl.float32) * factor
    if RENORMALISE:
        total = tl.sum(s, 0) + 1e-20
        d = (d - tl.sum(d * s, 0) / total) / total
    d *= s * (1.0 - s)
    out = tl.zeros((BE,), tl.float32)
    for i in range(K):  # a replayed route may name an expert twice: add
        at = tl.load(chosen + row * K + i)
        out = tl.where(column == at, out + tl.sum(tl.where(slot == i, d, 0.0), 0), out)
    tl.store(dlogits + row * E + column, out, mask=column < E)


class _Route(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, logits: Tensor, bias: Tensor, k: int, routes: Tensor | None, renormalise: bool, factor: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        n, experts = logits.shape
        new = lambda *shape, dtype=torch.float32: torch.empty(*shape, dtype=dtype, device=logits.device)
        weights, chosen, scores, after = new(n, k), new(n, k, dtype=torch.int64), new(n, experts), new(n)
        if n:
            _route[(n,)](
                logits, bias, chosen if routes is None else routes.contiguous(), weights, chosen, scores, after,
                experts, factor, K=k, BK=triton.next_power_of_2(k), BE=triton.next_power_of_2(experts),
                REPLAY=routes is not None, RENORMALISE=renormalise, **CONFIG,
            )  # fmt: skip
        ctx.save_for_backward(scores, chosen)
        ctx.renormalise, ctx.factor = renormalise, factor
        ctx.mark_non_differentiable(chosen, scores, after)
        return weights, chosen, scores, after

    @staticmethod
    def backward(ctx: Any, dweights: Tensor, *_: Any) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        scores, chosen = ctx.saved_tensors
        (n, experts), k = scores.shape, chosen.shape[1]
        dlogits = torch.empty_like(scores)
        if n:
            _route_back[(n,)](
                scores, chosen, dweights.contiguous(), dlogits, experts, ctx.factor, K=k,
                BK=triton.next_power_of_2(k), BE=triton.next_power_of_2(experts), RENORMALISE=ctx.renormalise,
                **CONFIG,
            )  # fmt: skip
        return dlogits, None, None, None, None, None


def route(logits: Tensor, bias: Tensor, k: int, routes: Tensor | None, renormalise: bool, factor: float) -> Routed:
    """See `kernels.router.route`."""
    return Routed(*_Route.apply(logits.contiguous(), bias.contiguous(), k, routes, renormalise, factor))


@triton.jit
def _rank(chosen, inverse, counts, pairs, E, B: tl.constexpr):
    """Each pair's rank among its expert's pairs of this block, and how many each expert has of it."""
    block, place = tl.program_id(0), tl.arange(0, B)
    pair = block * B + place
    expert = tl.load(chosen + pair, mask=pair < pairs, other=-1).to(tl.int32)
    same = expert[:, None] == expert[None, :]
    before = tl.sum(tl.where(same & (place[None, :] < place[:, None]), 1, 0), 1)
    behind = tl.sum(tl.where(same & (place[None, :] > place[:, None]), 1, 0), 1)
    tl.store(inverse + pair, before, mask=pair < pairs)
    tl.store(counts + block * E + expert, before + 1, mask=(pair < pairs) & (behind == 0))


@triton.jit
def _place(chosen, inverse, order, base, pairs, E, B: tl.constexpr):
    block = tl.program_id(0)
    pair = block * B + tl.arange(0, B)
    there = pair < pairs
    expert = tl.load(chosen + pair, mask=there, other=0).to(tl.int32)
    place = tl.load(inverse + pair, mask=there, other=0) + tl.load(base + block * E + expert, mask=there, other=0)
    tl.store(inverse + pair, place, mask=there)
    tl.store(order + place, pair, mask=there)


def expert_order(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `kernels.router.expert_order`."""
    chosen = chosen.contiguous()
    pairs = chosen.numel()
    blocks = triton.cdiv(pairs, PAIRS)
    inverse = torch.empty(pairs, dtype=torch.int32, device=chosen.device)
    order = torch.empty_like(inverse)
    counts = torch.zeros(blocks, experts, dtype=torch.int32, device=chosen.device)
    if pairs:
        _rank[(blocks,)](chosen, inverse, counts, pairs, experts, B=PAIRS)
    total = counts.sum(0, dtype=torch.int32)
    base = counts.cumsum(0, dtype=torch.int32) - counts + (total.cumsum(0, dtype=torch.int32) - total)
    if pairs:
        _place[(blocks,)](chosen, inverse, order, base, pairs, experts, B=PAIRS)
    return order, inverse, total
