"""Attention over selected latents on a GPU: the absorbed form, a token's heads sharing what it gathers.

Forwards one program takes a token and up to 64 heads, gathers its latents tile by tile once for keys and values, and
keeps their [64, 512] sums in registers (online softmax); with few tokens the picks are split over programs and their
sums joined afterwards. Backwards, for a few hundred tokens at a time:

    `_of_scores`   P and dS = P (dP - delta), again from each head's log-sum
    `_of_queries`  the queries' gradient dQ = dS C
    `_of_picks`    what a token hands to each latent that it picked, dS^T Q + P^T dO, written where the latent's lie
    `by_key`       their sum for each latent, in the tokens' order: no float is added atomically

A product whose result another one reads has, in Triton, all its warps along its rows: of 64 heads two warpgroups would
make the same scores twice, as they do forwards, where the sums need the registers of both. So backwards products are
kept apart, or a program is one warpgroup, at the price of a third way to the latents.

A head's log-sum is kept in powers of two, over the scores times log2(e).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.by_key import by_key, sum_by_key_

FORWARD = {"BK": 64, "num_warps": 8, "num_stages": 2}
FORWARD_SWEEP: list[dict[str, int]] = [
    {"BK": k, "num_warps": w, "num_stages": s} for k, w, s in ((64, 8, 2), (32, 8, 3), (32, 8, 2))
]
"""64 gathered latents of 576 bfloat16 are 72 KiB: two of them and the queries fill a multiprocessor."""
SCORES = {"BK": 32, "num_warps": 4, "num_stages": 2}
SCORES_SWEEP = [{"BK": k, "num_warps": w, "num_stages": s} for k, w, s in ((32, 4, 2), (32, 8, 2), (64, 4, 1))]
QUERIES = {"BN": 256, "BK": 64, "num_warps": 8, "num_stages": 3}
QUERIES_SWEEP = [
    {"BN": n, "BK": k, "num_warps": w, "num_stages": s}
    for n, k, w, s in ((256, 64, 8, 3), (256, 32, 8, 4), (128, 64, 4, 3), (256, 128, 8, 2))
]
"""BN columns of the latents are gathered for all heads at once: [128, 256] sums are 128 registers of 256 threads."""
PICKS = {"BN": 128, "BK": 64, "num_warps": 4, "num_stages": 2}
PICKS_SWEEP = [
    {"BN": n, "BK": k, "num_warps": w, "num_stages": s}
    for n, k, w, s in ((128, 64, 4, 2), (128, 128, 8, 2), (256, 64, 8, 2), (256, 64, 4, 2))
]
"""BN columns of 96 heads' queries and gradients stay in shared memory: 48 KiB of 128 columns."""
HEADS = 64
"""Rows of one warpgroup's matrix product."""
PROGRAMS = 264
"""Picks are split to have so many, two for each of an H200's 132 multiprocessors."""
BYTES = 2**31
"""Memory of the backward pass's entries, probabilities and their gradients, at once; 32 bits count their places."""
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows(x, row, there, first, D: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Columns first .. first + WIDTH of rows of x [., D]: [rows, BLOCK]; 0 where there is none."""
    column = tl.arange(0, BLOCK)
    at = row.to(tl.int64)[:, None] * D + (first + column)[None, :]
    return tl.load(x + at, mask=there[:, None] & (column < WIDTH)[None, :], other=0.0)


@triton.jit
def _attend(
    q, latents, index, o, log_sum, H, K, scale, tiles,
    D: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, BH: tl.constexpr,
    BK: tl.constexpr, VALUES: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """o [splits, T, h, R] and log-sums [splits, T, h] of token t's picks from the split's `tiles` tiles."""
    parts = (H + BH - 1) // BH
    t, h = tl.program_id(0) // parts, tl.program_id(0) % parts * BH + tl.arange(0, BH)
    split, tokens = tl.program_id(1), tl.num_programs(0) // parts
    kind = latents.dtype.element_ty
    live = h < H
    row = t.to(tl.int64) * H + h
    main = _rows(q, row, live, 0, D, R, BR)
    if E > 0:
        extra = _rows(q, row, live, R, D, E, BE)
    top, total = tl.full((BH,), float("-inf"), tl.float32), tl.zeros((BH,), tl.float32)
    mixed = tl.zeros((BH, BR), tl.float32)
    for begin in range(split * tiles * BK, tl.minimum(K, (split + 1) * tiles * BK), BK):
        slot = begin + tl.arange(0, BK)
        at = tl.load(index + t.to(tl.int64) * K + slot, mask=slot < K, other=-1)
        named = at >= 0
        c = _rows(latents, at, named, 0, D, R, BR)
        s = tl.dot(main, tl.trans(c), input_precision=EXACT)
        if E > 0:
            s = tl.dot(extra, tl.trans(_rows(latents, at, named, R, D, E, BE)), s, input_precision=EXACT)
        s = tl.where(named[None, :], s * (scale * _LOG2E), float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # nothing is named so far
        p, shrink = tl.exp2(s - level[:, None]), tl.exp2(top - level)
        total = total * shrink + tl.sum(p, 1)
        top = higher
        if VALUES:
            mixed = tl.dot(p.to(kind), c, mixed * shrink[:, None], input_precision=EXACT)
    row += split.to(tl.int64) * tokens * H
    tl.store(log_sum + row, top + tl.log2(total), mask=live)
    if VALUES:
        column = tl.arange(0, BR)
        mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
        there = live[:, None] & (column < R)[None, :]
        tl.store(o + row[:, None] * R + column[None, :], mixed.to(o.dtype.element_ty), mask=there)


@triton.jit
def _join(parts, sums, o, log_sum, SPLITS, rows, R: tl.constexpr, BR: tl.constexpr):
    """o [rows, R] of the splits' parts, each weighted by its share of the whole sum, and that sum's logarithm."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BR)
    top = float("-inf")
    for split in range(0, SPLITS):
        top = tl.maximum(top, tl.load(sums + split * rows + row))
    total, mixed = 0.0, tl.zeros((BR,), tl.float32)
    for split in range(0, SPLITS):
        share = tl.exp2(tl.load(sums + split * rows + row) - top)
        total += share
        mixed += share * tl.load(parts + (split * rows + row) * R + column, mask=column < R, other=0.0)
    tl.store(log_sum + row, top + tl.log2(total))
    tl.store(o + row * R + column, (mixed / total).to(o.dtype.element_ty), mask=column < R)


@triton.jit
def _of_scores(
    q, latents, index, o, log_sum, do, p_out, ds_out, H, K, scale,
    D: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, BH: tl.constexpr,
    BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    parts = (H + BH - 1) // BH
    t, h = tl.program_id(0) // parts, tl.program_id(0) % parts * BH + tl.arange(0, BH)
    kind = latents.dtype.element_ty
    live = h < H
    row = t * H + h
    delta = tl.zeros((BH,), tl.float32)
    for first in range(0, BR, 16):
        column = first + tl.arange(0, 16)
        at, there = row[:, None] * R + column[None, :], live[:, None] & (column < R)[None, :]
        some = tl.load(do + at, mask=there, other=0.0).to(tl.float32)
        delta += tl.sum(some * tl.load(o + at, mask=there, other=0.0).to(tl.float32), 1)
    grad = _rows(do, row, live, 0, R, R, BR)
    main = _rows(q, row, live, 0, D, R, BR)
    if E > 0:
        extra = _rows(q, row, live, R, D, E, BE)
    lse = tl.load(log_sum + row, mask=live, other=0.0)
    for begin in range(0, K, BK):
        slot = begin + tl.arange(0, BK)
        at = tl.load(index + t * K + slot, mask=slot < K, other=-1)
        named = at >= 0
        c = tl.trans(_rows(latents, at, named, 0, D, R, BR))
        s = tl.dot(main, c, input_precision=EXACT)
        if E > 0:  # a sum of two products, not a product added to one
            s += tl.dot(extra, tl.trans(_rows(latents, at, named, R, D, E, BE)), input_precision=EXACT)
        p = tl.where(named[None, :] & live[:, None], tl.exp2(s * (scale * _LOG2E) - lse[:, None]), 0.0)
        ds = p * (tl.dot(grad, c, input_precision=EXACT) - delta[:, None]) * scale
        to = row[:, None] * K + slot[None, :]
        there = live[:, None] & (slot < K)[None, :]
        tl.store(p_out + to, p.to(kind), mask=there)
        tl.store(ds_out + to, ds.to(kind), mask=there)


@triton.jit
def _of_queries(
    ds, latents, index, dq, H, K, D: tl.constexpr, BN: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """BN columns of a token's dQ for all of its heads at once."""
    t, h = tl.program_id(0), tl.arange(0, BH)
    first = tl.program_id(1) * BN
    column = first + tl.arange(0, BN)
    row = t * H + h
    total = tl.zeros((BH, BN), tl.float32)
    for begin in range(0, K, BK):
        slot = begin + tl.arange(0, BK)
        at = tl.load(index + t * K + slot, mask=slot < K, other=-1)
        there = (at >= 0)[:, None] & (column < D)[None, :]
        c = tl.load(latents + at.to(tl.int64)[:, None] * D + column[None, :], mask=there, other=0.0)
        there = (h < H)[:, None] & (slot < K)[None, :]
        some = tl.load(ds + row[:, None] * K + slot[None, :], mask=there, other=0.0)
        total = tl.dot(some, c, total, input_precision=EXACT)
    there = (h < H)[:, None] & (column < D)[None, :]
    tl.store(dq + row[:, None] * D + column[None, :], total.to(dq.dtype.element_ty), mask=there)


@triton.jit
def _handed(p, ds, slot, there, h0, t, H, K, H0: tl.constexpr):
    """Transposed tiles [slots, H0] of p and ds [T, H, K], of the heads from h0 on."""
    h = h0 + tl.arange(0, H0)
    at = (t * H + h)[:, None] * K + slot[None, :]
    there = there[None, :] & (h < H)[:, None]
    return tl.trans(tl.load(p + at, mask=there, other=0.0)), tl.trans(tl.load(ds + at, mask=there, other=0.0))


@triton.jit
def _of_picks(
    q, do, p, ds, place, index, entries, H, K, first,
    D: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, E: tl.constexpr, BE: tl.constexpr,
    HA: tl.constexpr, HB: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Columns `first` + BN times the program's of what a token hands to its picks, and the E > 0 behind the rank.

    The heads come as HA and, if that is not all, HB: both are sizes of tensors, 64 and 32 of 96.
    """
    t, begin_column = tl.program_id(0), first + tl.program_id(1) * BN
    column, ecolumn = begin_column + tl.arange(0, BN), tl.arange(0, BE)
    kind = q.dtype.element_ty
    h = tl.arange(0, HA)
    row = t * H + h
    qa = tl.load(q + row[:, None] * D + column[None, :], mask=(h < H)[:, None] & (column < R)[None, :], other=0.0)
    da = tl.load(do + row[:, None] * R + column[None, :], mask=(h < H)[:, None] & (column < R)[None, :], other=0.0)
    if E > 0:
        ea = _rows(q, row, h < H, R, D, E, BE)
    if HB > 0:
        h = HA + tl.arange(0, HB)
        row = t * H + h
        qb = tl.load(q + row[:, None] * D + column[None, :], mask=(h < H)[:, None] & (column < R)[None, :], other=0.0)
        db = tl.load(do + row[:, None] * R + column[None, :], mask=(h < H)[:, None] & (column < R)[None, :], other=0.0)
        if E > 0:
            eb = _rows(q, row, h < H, R, D, E, BE)
    for begin in range(0, K, BK):
        slot = begin + tl.arange(0, BK)
        at = t * K + slot
        named = tl.load(index + at, mask=slot < K, other=-1) >= 0
        to = tl.load(place + at, mask=named, other=0) * D
        pa, sa = _handed(p, ds, slot, slot < K, 0, t, H, K, HA)
        entry = tl.dot(sa, qa, input_precision=EXACT)
        entry = tl.dot(pa, da, entry, input_precision=EXACT)
        if E > 0:
            more = tl.dot(sa, ea, input_precision=EXACT)
        if HB > 0:
            pb, sb = _handed(p, ds, slot, slot < K, HA, t, H, K, HB)
            entry = tl.dot(sb, qb, entry, input_precision=EXACT)
            entry = tl.dot(pb, db, entry, input_precision=EXACT)
            if E > 0:
                more = tl.dot(sb, eb, more, input_precision=EXACT)
        there = named[:, None] & (column < R)[None, :]
        tl.store(entries + to[:, None] + column[None, :], entry.to(kind), mask=there)
        if E > 0:
            there = named[:, None] & (ecolumn < E)[None, :]
            tl.store(entries + to[:, None] + R + ecolumn[None, :], more.to(kind), mask=there)


@triton.jit
def _shares(
    q, latents, index, log_sum, out, H, K, scale,
    D: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, BH: tl.constexpr,
    BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The mean over a token's heads of their probabilities; `out` is summed in place, block of heads by block."""
    t = tl.program_id(0).to(tl.int64)
    for first in range(0, H, BH):
        h = first + tl.arange(0, BH)
        live = h < H
        row = t * H + h
        main = _rows(q, row, live, 0, D, R, BR)
        if E > 0:
            extra = _rows(q, row, live, R, D, E, BE)
        lse = tl.load(log_sum + row, mask=live, other=0.0)
        tl.debug_barrier()  # what the last block of heads stored is read again
        for begin in range(0, K, BK):
            slot = begin + tl.arange(0, BK)
            at = tl.load(index + t * K + slot, mask=slot < K, other=-1)
            named = at >= 0
            s = tl.dot(main, tl.trans(_rows(latents, at, named, 0, D, R, BR)), input_precision=EXACT)
            if E > 0:
                s = tl.dot(extra, tl.trans(_rows(latents, at, named, R, D, E, BE)), s, input_precision=EXACT)
            p = tl.where(named[None, :] & live[:, None], tl.exp2(s * (scale * _LOG2E) - lse[:, None]), 0.0)
            earlier = tl.load(out + t * K + slot, mask=(slot < K) & (first > 0), other=0.0)
            tl.store(out + t * K + slot, earlier + tl.sum(p, 0) / H, mask=slot < K)


def _padded(n: int) -> int:
    return max(16, triton.next_power_of_2(n))


def _sizes(q: Tensor, rank: int) -> dict[str, Any]:
    heads, width = q.shape[1:]
    extra = width - rank
    exact = "ieee" if q.dtype == torch.float32 else "tf32"
    sizes = {"D": width, "R": rank, "BR": _padded(rank), "E": extra, "BE": _padded(extra), "EXACT": exact}
    return sizes | {"BH": min(HEADS, _padded(heads))}


def _forward(q: Tensor, latents: Tensor, index: Tensor, rank: int, scale: float, values: bool) -> tuple[Tensor, Tensor]:
    """(o [T, h, rank] if `values`, log-sums float32 [T, h])."""
    (tokens, heads, _), k = q.shape, index.shape[1]
    sizes = _sizes(q, rank)
    if not tokens:
        return q.new_empty(0, heads, rank), q.new_empty(0, heads)
    parts, tiles = triton.cdiv(heads, sizes["BH"]), triton.cdiv(k, FORWARD["BK"])
    splits = min(tiles, max(1, PROGRAMS // (tokens * parts))) if values else 1
    tiles = triton.cdiv(tiles, splits)
    splits = triton.cdiv(triton.cdiv(k, FORWARD["BK"]), tiles)
    new = lambda *shape, dtype=torch.float32: torch.empty(*shape, dtype=dtype, device=q.device)
    o = new(tokens, heads, rank, dtype=q.dtype) if values else q
    log_sum = new(tokens, heads)
    pieces, sums = (o, log_sum) if splits == 1 else (new(splits, tokens, heads, rank), new(splits, tokens, heads))
    _attend[(tokens * parts, splits)](
        q, latents, index, pieces, sums, heads, k, scale, tiles, **sizes, VALUES=values, **FORWARD
    )
    if splits > 1:
        rows = tokens * heads
        _join[(rows,)](pieces, sums, o, log_sum, splits, rows, R=rank, BR=sizes["BR"], num_warps=4)
    return o, log_sum


class _Sparse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, latents: Tensor, index: Tensor, rank: int, scale: float) -> Tensor:  # type: ignore[override]
        o, log_sum = _forward(q, latents, index, rank, scale, values=True)
        ctx.save_for_backward(q, latents, index, o, log_sum)
        ctx.rank, ctx.scale = rank, scale
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, latents, index, o, log_sum = ctx.saved_tensors
        (tokens, heads, width), k, rank, scale = q.shape, index.shape[1], ctx.rank, ctx.scale
        sizes = _sizes(q, rank)
        parts = triton.cdiv(heads, sizes["BH"])
        dq, do = torch.empty_like(q), do.contiguous()
        dlatents = torch.zeros(latents.shape, dtype=torch.float32, device=q.device)
        step = min(max(1, tokens), max(1, BYTES // (k * (width + 2 * heads) * q.element_size())))
        p = torch.empty(step, heads, k, dtype=q.dtype, device=q.device)
        ds, entries = torch.empty_like(p), torch.empty(step * k, width, dtype=q.dtype, device=q.device)
        for a in range(0, tokens, step):
            some = slice(a, a + step)
            own, picks, grad = q[some], index[some], do[some]
            n = own.shape[0]
            _of_scores[(n * parts,)](
                own, latents, picks, o[some], log_sum[some], grad, p, ds, heads, k, scale, **sizes, **SCORES
            )
            wide = QUERIES | {"BN": min(QUERIES["BN"], _padded(width)), "BH": _padded(heads), "EXACT": sizes["EXACT"]}
            grid = (n, triton.cdiv(width, wide["BN"]))
            _of_queries[grid](ds, latents, picks, dq[some], heads, k, D=width, **wide)
            turned = by_key(picks, latents.shape[0])
            wide = PICKS | {"BN": min(PICKS["BN"], sizes["BR"])}
            last = triton.cdiv(rank, wide["BN"]) - 1
            for first, blocks, extra in ((0, last, 0), (last * wide["BN"], 1, sizes["E"])):
                if blocks:
                    _of_picks[(n, blocks)](
                        own, grad, p, ds, turned.place, picks, entries, heads, k, first,
                        **_halves(sizes, heads), E=extra, **wide,
                    )  # fmt: skip
            sum_by_key_(dlatents, entries, turned.first)
        return dq, dlatents.to(latents.dtype), None, None, None


def _halves(sizes: dict[str, Any], heads: int) -> dict[str, Any]:
    """Sizes of `_of_picks`, whose heads come as a power of two and the rest."""
    most = max(16, min(HEADS, triton.next_power_of_2(heads + 1) // 2))
    rest = heads - most
    return {name: sizes[name] for name in ("D", "R", "BE", "EXACT")} | {
        "HA": most,
        "HB": _padded(rest) if rest > 0 else 0,
    }


def _given(q: Tensor, latents: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q.contiguous(), latents.contiguous(), index.int().contiguous()


def sparse_attend(q: Tensor, latents: Tensor, index: Tensor, rank: int, scale: float) -> Tensor:
    """See `kernels.sparse_mla.sparse_attend`."""
    return _Sparse.apply(*_given(q, latents, index), rank, scale)


@torch.no_grad()
def sparse_shares(q: Tensor, latents: Tensor, index: Tensor, scale: float) -> Tensor:
    """See `kernels.sparse_mla.sparse_shares`. Float32 out."""
    q, latents, index = _given(q, latents, index)
    (tokens, heads, width), k = q.shape, index.shape[1]
    out = torch.empty(tokens, k, dtype=torch.float32, device=q.device)
    if out.numel():
        rank = width if width & (width - 1) == 0 else triton.next_power_of_2(width) // 2
        _, log_sum = _forward(q, latents, index, rank, scale, values=False)
        _shares[(tokens,)](q, latents, index, log_sum, out, heads, k, scale, **_sizes(q, rank), **FORWARD)
    return out


@torch.no_grad()
def sparse_decode(q: Tensor, latents: Tensor, index: Tensor, rank: int, scale: float) -> Tensor:
    """See `kernels.sparse_mla.sparse_decode`, of one pool of latents."""
    return _forward(*_given(q, latents, index), rank, scale, values=True)[0]
