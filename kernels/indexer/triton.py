"""The k best keys of each query on a GPU, and the scores of those alone with gradients.

`_filter` makes the scores of a block of queries and a tile of keys, head by head in registers, and keeps of them what
exceeds each query's bound: these go to the query's buffer of CAP places, in no order, as integers that order like the
scores. `_cut` takes a buffer back to its k best, or a few more, by halving the interval in which the k-th lies, and
raises the bound to it. Keys come in spans: the first fits the buffers whatever the scores, each later one doubles what
was seen, so that of scores in random order k exceed the bound. A query whose buffer still runs over is lost and starts
again, with spans that always fit: the answer is exact for any scores. Of equal scores the smaller key stays: later
spans hold larger keys, and within a span `_cut` looks at the keys. Nothing depends on the order in which programs run.

NaN counts as -inf. A query that sees at most k keys has no scores made: it takes all.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.by_key import by_key, sum_by_key_

FILTER = {"BQ": 64, "BK": 128, "num_warps": 4, "num_stages": 3}
"""A tile of 64 queries and 128 keys: the keys stay in shared memory, the queries of each head come from the second
cache, and a multiprocessor holds two or three programs, one's matrix product beside another's sum over heads."""
FILTER_SWEEP: list[dict[str, int]] = [
    {"BQ": q, "BK": k, "num_warps": w, "num_stages": s}
    for q, k, w, s in ((64, 128, 4, 3), (64, 128, 4, 4), (128, 128, 8, 3), (64, 256, 8, 3), (64, 64, 4, 3))
]
CUT = {"num_warps": 8, "maxnreg": 128}
"""8192 candidates are 32 registers a thread; two programs fit a multiprocessor."""
PLACES = 4
"""Length of a query's buffer in multiples of k."""
ROWS = 8192
"""Queries at once: their buffers take 512 MiB at k = 2048, as much as the answer for 65,536 tokens, and their places
fit 32 bits."""
OWN = {"BK": 128, "num_warps": 4}
OWN_BACK = {"BK": 64, "num_warps": 4}
CELLS = 2**28
"""Values of the entries that the gradient of the keys is summed from, at once: 512 MiB of bfloat16."""
_NEVER = tl.constexpr(-(2**31))
"""Below every score."""


@triton.jit(do_not_specialize=["begin", "tiles"])
def _filter(
    q, w, keys, first, count, low, own, value, index, fill, least, lost, begin, tiles, tokens, J, k,
    D: tl.constexpr, BD: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, CAP: tl.constexpr, AGAIN: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    block, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    start, live = tl.load(first + block).to(tl.int64), tl.load(count + block)
    lo, at = tl.load(low + block), tl.load(own + block)  # keys that queries see from, and the first query's own
    row, column = tl.arange(0, BQ), tl.arange(0, BD)
    local = block * BQ + row
    active = (row < live) & (tl.load(lost + local) == AGAIN)
    key = lo + begin + tile * BK + tl.arange(0, BK)
    useful = (lo + begin + tile * BK < at + live) & (at + live - lo > k)
    if useful & (tl.max(active.to(tl.int32), 0) > 0):
        there = (key < at + live)[None, :] & (column < D)[:, None]
        tile_of_keys = tl.load(keys + key.to(tl.int64)[None, :] * D + column[:, None], mask=there, other=0.0)
        scores = tl.zeros((BQ, BK), tl.float32)
        queries = q + (start + row)[:, None] * J * D + column[None, :]
        own_queries = (row < live)[:, None] & (column < D)[None, :]
        for head in range(0, J):
            some = tl.load(queries + head * D, mask=own_queries, other=0.0)
            dots = tl.dot(some, tile_of_keys, input_precision=EXACT)
            weight = tl.load(w + head * tokens + start + row, mask=row < live, other=0.0)
            scores += weight[:, None] * tl.maximum(dots, 0.0)
        scores = tl.where(scores == scores, scores, float("-inf"))
        bits = scores.to(tl.int32, bitcast=True)
        order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        bound = tl.load(least + local)
        hit = (active[:, None] & (key[None, :] <= (at + row)[:, None]) & (order > bound[:, None])).to(tl.int32)
        n = tl.sum(hit, 1)
        base = tl.atomic_add(fill + local, n, mask=n > 0, sem="relaxed")
        place = base[:, None] + tl.cumsum(hit, 1) - 1
        kept = (hit > 0) & (place < CAP)
        to = local[:, None] * CAP + place
        tl.store(value + to, order, mask=kept)
        tl.store(index + to, tl.broadcast_to(key[None, :], (BQ, BK)), mask=kept)


@triton.jit
def _cut(
    value, index, fill, least, lost, first, count, out, k, slack, width,
    BQ: tl.constexpr, CAP: tl.constexpr, AGAIN: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block, within = row // BQ, row % BQ
    n = tl.load(fill + row)
    if (tl.load(lost + row) == AGAIN) & (within < tl.load(count + block)) & ((n > k) | LAST):
        if n > CAP:
            tl.debug_barrier()  # all have read what is changed
            tl.store(lost + row, 1)
            tl.store(fill + row, 0)  # its bound holds: more than k exceed it
        else:
            place = tl.arange(0, CAP)
            v = tl.load(value + row * CAP + place, mask=place < n, other=_NEVER)
            key = tl.load(index + row * CAP + place, mask=place < n, other=0)
            # count(v > lo) >= k > count(v > hi) unless there are fewer than k.
            lo, hi, over = tl.load(least + row), tl.max(v, 0), n
            lo = tl.where(lo == _NEVER, lo, lo - 1)
            while (over > k + slack) & (hi - 1 > lo):
                middle = (lo & hi) + ((lo ^ hi) >> 1)
                above = tl.sum((v > middle).to(tl.int32), 0)
                enough = above >= k
                lo, hi, over = tl.where(enough, middle, lo), tl.where(enough, hi, middle), tl.where(enough, above, over)
            # Too many are left only if the k-th score, `hi`, has equals: of those the smaller keys.
            tied = over > k + slack
            bound = tl.where(tied, hi, lo)
            above = v > bound
            equal = (v == bound) & tied
            room = k - tl.sum(above.to(tl.int32), 0)
            before, until = -1, tl.where(tied, tl.max(key, 0), -1)
            while until - 1 > before:
                middle = (before + until) // 2
                enough = tl.sum((equal & (key <= middle)).to(tl.int32), 0) >= room
                before, until = tl.where(enough, before, middle), tl.where(enough, middle, until)
            kept = (above | (equal & (key <= until))).to(tl.int32)
            to = tl.cumsum(kept, 0) - 1
            if LAST:
                token = tl.load(first + block).to(tl.int64) + within
                tl.store(out + token * width + to, key, mask=kept > 0)
            else:
                tl.debug_barrier()  # all have read the buffer
                tl.store(value + row * CAP + to, v, mask=kept > 0)
                tl.store(index + row * CAP + to, key, mask=kept > 0)
                tl.store(least + row, bound)
            tl.store(fill + row, tl.sum(kept, 0))


@triton.jit
def _order(out, first, count, low, own, fill, k, width, BQ: tl.constexpr, BLOCK: tl.constexpr):
    """A query's chosen keys ascending, -1 behind them; all that it sees, where that is at most k."""
    row = tl.program_id(0).to(tl.int64)
    block, within = row // BQ, (row % BQ).to(tl.int32)
    if within < tl.load(count + block):
        place = tl.arange(0, BLOCK)
        lo, seen = tl.load(low + block), tl.load(own + block) + within + 1 - tl.load(low + block)
        line = out + (tl.load(first + block).to(tl.int64) + within) * width
        if seen <= k:
            tl.store(line + place, tl.where(place < seen, lo + place, -1), mask=place < width)
        else:
            n = tl.load(fill + row)
            key = tl.load(line + place, mask=place < n, other=2**31 - 1)
            key = tl.sort(key)
            tl.debug_barrier()  # all have read the line
            tl.store(line + place, tl.where(place < n, key, -1), mask=place < width)


class _Blocks:
    """Queries in blocks that no sequence's end divides: first token, number, first key and own key of each."""

    def __init__(self, bounds: list[int], start: int, size: int, device: torch.device) -> None:
        starts = [(lo, a, min(a + size, hi)) for lo, hi in pairwise(bounds) for a in range(lo, hi, size)]
        new = lambda x: torch.tensor(x, dtype=torch.int32, device=device)
        self.first, self.count = new([a for _, a, _ in starts]), new([b - a for _, a, b in starts])
        self.low, self.own = new([lo for lo, _, _ in starts]), new([start + a for _, a, _ in starts])
        self.seen = [start + b - lo for lo, _, b in starts]
        """Keys that a block's last query sees."""


def _spans(
    longest: int, k: int, slack: int, cap: int, tile: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Spans of keys, in whole tiles: doubling ones, and ones that fit a buffer which holds k + slack already."""
    edges = [0, cap // tile * tile]
    while edges[-1] < longest:
        edges.append(2 * edges[-1])
    safe = (cap - k - slack) // tile * tile
    return list(pairwise(edges)), [(a, a + safe) for a in range(0, longest, safe)] if len(edges) > 2 else []


@torch.no_grad()
def select_keys(q: Tensor, weights: Tensor, keys: Tensor, start: int, k: int, bounds: list[int]) -> Tensor:
    """See `kernels.indexer.select_keys`."""
    tokens, heads, d = q.shape
    size, tile = FILTER["BQ"], FILTER["BK"]
    slack = k // 4
    cap = triton.next_power_of_2(max(PLACES * k, 4 * tile))
    blocks = _Blocks(bounds, start, size, q.device)
    width = min(k, max(blocks.seen, default=0))
    out = torch.empty(tokens, width, dtype=torch.int32, device=q.device)
    q, keys, w = q.contiguous(), keys.contiguous(), weights.float().mT.contiguous()
    exact = "ieee" if q.dtype == torch.float32 else "tf32"
    sizes = {"D": d, "BD": max(16, triton.next_power_of_2(d)), "EXACT": exact}
    together = max(1, ROWS // size)
    new = lambda *shape: torch.empty(*shape, dtype=torch.int32, device=q.device)
    rows = min(together, len(blocks.seen)) * size
    value, index = new(rows, cap), new(rows, cap)
    for b in range(0, len(blocks.seen), together):
        seen = blocks.seen[b : b + together]
        first, count, low, own = (
            x[b : b + together].clone() for x in (blocks.first, blocks.count, blocks.low, blocks.own)
        )
        n = len(seen)
        fill, lost = torch.zeros(2, n * size, dtype=torch.int32, device=q.device)
        least = torch.full((n * size,), _NEVER.value, dtype=torch.int32, device=q.device)
        if max(seen) > k:
            for again, spans in enumerate(_spans(max(seen), k, slack, cap, tile)):
                for begin, stop in spans:
                    last = stop >= max(seen)
                    tiles = triton.cdiv(min(stop, max(seen)) - begin, tile)
                    _filter[(n * tiles,)](
                        q, w, keys, first, count, low, own, value, index, fill, least, lost, begin, tiles, tokens,
                        heads, k, **sizes, CAP=cap, AGAIN=again, **FILTER,
                    )  # fmt: skip
                    _cut[(n * size,)](
                        value, index, fill, least, lost, first, count, out, k, 0 if last else slack, width,
                        BQ=size, CAP=cap, AGAIN=again, LAST=last, **CUT,
                    )  # fmt: skip
        block = max(16, triton.next_power_of_2(width))
        _order[(n * size,)](out, first, count, low, own, fill, k, width, BQ=size, BLOCK=block, num_warps=4)
    return out


# --- the scores of chosen keys ------------------------------------------------------------------------------------


@triton.jit
def _own(
    q, w, keys, index, out, J, K, scale,
    D: tl.constexpr, BD: tl.constexpr, BJ: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, BJ), tl.arange(0, BD)
    those = (head < J)[:, None] & (column < D)[None, :]
    queries = tl.trans(tl.load(q + (t * J + head)[:, None] * D + column[None, :], mask=those, other=0.0))
    weight = tl.load(w + t * J + head, mask=head < J, other=0.0).to(tl.float32) * scale
    for begin in range(0, K, BK):
        slot = begin + tl.arange(0, BK)
        key = tl.load(index + t * K + slot, mask=slot < K, other=-1)
        there = (key >= 0)[:, None] & (column < D)[None, :]
        some = tl.load(keys + key.to(tl.int64)[:, None] * D + column[None, :], mask=there, other=0.0)
        dots = tl.maximum(tl.dot(some, queries, input_precision=EXACT), 0.0)
        tl.store(out + t * K + slot, tl.sum(dots * weight[None, :], 1), mask=slot < K)


@triton.jit
def _own_back(
    q, w, keys, index, place, grad, dq, dw, entries, J, K, scale,
    D: tl.constexpr, BD: tl.constexpr, BJ: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    kind = q.dtype.element_ty
    head, column = tl.arange(0, BJ), tl.arange(0, BD)
    those = (head < J)[:, None] & (column < D)[None, :]
    queries = tl.load(q + (t * J + head)[:, None] * D + column[None, :], mask=those, other=0.0)
    weight = tl.load(w + t * J + head, mask=head < J, other=0.0).to(tl.float32) * scale
    to_queries = tl.zeros((BD, BJ), tl.float32)
    to_weights = tl.zeros((BJ,), tl.float32)
    for begin in range(0, K, BK):
        slot = begin + tl.arange(0, BK)
        key = tl.load(index + t * K + slot, mask=slot < K, other=-1)
        there = (key >= 0)[:, None] & (column < D)[None, :]
        some = tl.load(keys + key.to(tl.int64)[:, None] * D + column[None, :], mask=there, other=0.0)
        dots = tl.dot(some, tl.trans(queries), input_precision=EXACT)
        d = tl.load(grad + t * K + slot, mask=key >= 0, other=0.0).to(tl.float32)
        to_weights += tl.sum(d[:, None] * tl.maximum(dots, 0.0), 0)
        to_dots = tl.where(dots > 0.0, d[:, None] * weight[None, :], 0.0).to(kind)
        to_queries = tl.dot(tl.trans(some), to_dots, to_queries, input_precision=EXACT)
        row = tl.load(place + t * K + slot, mask=key >= 0, other=0).to(tl.int64)
        entry = tl.dot(to_dots, queries, input_precision=EXACT)
        tl.store(entries + row[:, None] * D + column[None, :], entry.to(kind), mask=there)
    at = (t * J + head)[None, :] * D + column[:, None]
    tl.store(dq + at, to_queries.to(kind), mask=(head < J)[None, :] & (column < D)[:, None])
    tl.store(dw + t * J + head, (to_weights * scale).to(dw.dtype.element_ty), mask=head < J)


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, weights: Tensor, keys: Tensor, index: Tensor, scale: float) -> Tensor:  # type: ignore[override]
        tokens, heads, _ = q.shape
        k = index.shape[1]
        out = torch.empty(tokens, k, dtype=torch.float32, device=q.device)
        if out.numel():
            _own[(tokens,)](q, weights, keys, index, out, heads, k, scale, **_sizes(q), **OWN)
        ctx.save_for_backward(q, weights, keys, index)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, weights, keys, index = ctx.saved_tensors
        (tokens, heads, d), k = q.shape, index.shape[1]
        dq, dweights = torch.empty_like(q), torch.empty_like(weights)
        dkeys = torch.zeros(keys.shape, dtype=torch.float32, device=q.device)
        grad = grad.contiguous()
        step = max(1, CELLS // (k * d))
        entries = torch.empty(min(step, tokens) * k, d, dtype=q.dtype, device=q.device)
        for a in range(0, tokens, step):
            part = slice(a, a + step)
            turned = by_key(index[part], keys.shape[0])
            mine = (q[part], weights[part], keys, index[part], turned.place, grad[part], dq[part], dweights[part])
            _own_back[(mine[0].shape[0],)](*mine, entries, heads, k, ctx.scale, **_sizes(q), **OWN_BACK)
            sum_by_key_(dkeys, entries, turned.first)
        return dq, dweights, dkeys.to(keys.dtype), None, None


def _sizes(q: Tensor) -> dict[str, Any]:
    heads, d = q.shape[1:]
    padded = [max(16, triton.next_power_of_2(x)) for x in (heads, d)]
    return {"D": d, "BJ": padded[0], "BD": padded[1], "EXACT": "ieee" if q.dtype == torch.float32 else "tf32"}


def index_scores(q: Tensor, weights: Tensor, keys: Tensor, index: Tensor, scale: float) -> Tensor:
    """See `kernels.indexer.index_scores`. Float32 out."""
    return _Own.apply(q.contiguous(), weights.contiguous(), keys.contiguous(), index.int().contiguous(), scale)
