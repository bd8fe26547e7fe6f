"""KDA on a GPU: the decode step, and the chunk form in two kernels forwards (these and three more backwards).

`_chunks` does what the tokens of one chunk owe each other, for all chunks at once; `_scan` walks over the chunks of a
sequence with the state in registers. The names are those of `kernels.kda.torch._Chunk`, without its centre:

    A = strict_lower(beta k k^T e^(G_i - G_j)),  X = (I + A)^-1,  W = X (beta k e^G),  U = X (beta v)
    P = lower(q k^T e^(G_i - G_j)),  F = U - W S,  o = (q e^G) S + P F,  S <- e^(G_last) S + (k e^(G_last - G))^T F

A chunk has at most 32 tokens: with g >= -5, e^G 2^115 and e^-G 2^-115 (2^-115.8 .. 2^115.8) fit float32 and bfloat16:
A and P are one matrix product each; what a product makes of pairs i < j may overflow and is masked out. The centre is a
constant, so that no token's arithmetic depends on a later one. The state is kept transposed, [V, K]: it is then the
left operand of every product and goes from the accumulators to the tensor cores without a way through memory.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

STEP = {"BV": 64, "num_warps": 4}
STEP_SWEEP = [{"BV": v, "num_warps": w} for v, w in ((32, 4), (64, 4), (64, 8), (128, 4), (128, 8))]
"""Columns of the state that a program of the decode step takes."""
CHUNK = 32
"""Tokens of a chunk, 16 or 32: half as many steps of the scan for twice the pairs."""
CHUNKS = {"num_warps": 4}
SCAN = {"BV": 64, "num_warps": 4, "num_stages": 3}
"""64 columns of V are the rows of one warpgroup's product; H = 96 gives 192 programs for 132 multiprocessors."""
GRADS = {"num_warps": 8}
SWEEP: list[dict[str, Any]] = [
    {"CHUNK": c, "CHUNKS": {"num_warps": w}, "SCAN": {"BV": v, "num_warps": 4, "num_stages": s}}
    for c, w, v, s in ((32, 4, 64, 3), (32, 8, 64, 2), (32, 4, 128, 2), (16, 4, 64, 3))
]
EPS = 1e-6
"""Added to the squared length of queries and keys (K3: l2norm)."""
_LOG2E = tl.constexpr(1.4426950408889634)
_CENTRE = tl.constexpr(115.0)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(-x * _LOG2E))


@triton.jit
def _step(
    q, k, v, z, b, a_log, bias, index, state, o, H, scale, lower, eps,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    parts: tl.constexpr = (V + BV - 1) // BV
    pair = tl.program_id(0).to(tl.int64) // parts  # sequence and head
    n, h = pair // H, pair % H
    slot = tl.load(index + n).to(tl.int64)
    rows, columns = tl.arange(0, BK), tl.program_id(0) % parts * BV + tl.arange(0, BV)
    if slot < 0:
        tl.store(o + pair * V + columns, tl.zeros((BV,), tl.float32).to(o.dtype.element_ty), mask=columns < V)
    else:
        at = state + ((slot * H + h) * K + rows)[:, None] * V + columns[None, :]
        there = (rows < K)[:, None] & (columns < V)[None, :]
        s = tl.load(at, mask=there, other=0.0).to(tl.float32)
        bq = tl.load(q + pair * K + rows, mask=rows < K, other=0.0).to(tl.float32)
        bk = tl.load(k + pair * K + rows, mask=rows < K, other=0.0).to(tl.float32)
        bz = tl.load(z + pair * K + rows, mask=rows < K, other=0.0).to(tl.float32)
        bz += tl.load(bias + h * K + rows, mask=rows < K, other=0.0).to(tl.float32)
        bv = tl.load(v + pair * V + columns, mask=columns < V, other=0.0).to(tl.float32)
        beta = _sigmoid(tl.load(b + pair).to(tl.float32))
        rate = tl.exp2(tl.load(a_log + h).to(tl.float32) * _LOG2E)
        bq *= scale / tl.sqrt(tl.sum(bq * bq, 0) + eps)
        bk *= 1.0 / tl.sqrt(tl.sum(bk * bk, 0) + eps)
        s *= tl.exp2(lower * _sigmoid(rate * bz) * _LOG2E)[:, None]
        # Both products read the decayed state: o = q^T (S + k delta^T) = q^T S + (q . k) delta^T.
        delta = beta * (bv - tl.sum(s * bk[:, None], 0))
        out = tl.sum(s * bq[:, None], 0) + tl.sum(bq * bk, 0) * delta
        tl.store(at, (s + bk[:, None] * delta[None, :]).to(state.dtype.element_ty), mask=there)
        tl.store(o + pair * V + columns, out.to(o.dtype.element_ty), mask=columns < V)


@triton.jit
def _tile(x, start, live, h, H, D: tl.constexpr, BD: tl.constexpr, C: tl.constexpr):
    """Rows start .. start + C of head h of x [T, H, D] as float32 [C, BD]; 0 where there is none."""
    row, column = tl.arange(0, C), tl.arange(0, BD)
    at = ((start + row) * H + h)[:, None] * D + column[None, :]
    there = (row < live)[:, None] & (column < D)[None, :]
    return tl.load(x + at, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _put(x, value, start, live, h, H, D: tl.constexpr, BD: tl.constexpr, C: tl.constexpr):
    row, column = tl.arange(0, C), tl.arange(0, BD)
    at = ((start + row) * H + h)[:, None] * D + column[None, :]
    there = (row < live)[:, None] & (column < D)[None, :]
    tl.store(x + at, value.to(x.dtype.element_ty), mask=there)


@triton.jit
def _gates(z, b, a_log, bias, start, live, h, H, lower, K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr):
    """(cumulated log2-decay [C, BK], its sigmoid s, z + bias, beta [C], the head's rate); 0 where there is no token."""
    row, column = tl.arange(0, C), tl.arange(0, BK)
    x = _tile(z, start, live, h, H, K, BK, C)
    rate = tl.exp2(tl.load(a_log + h).to(tl.float32) * _LOG2E)
    x += tl.load(bias + h * K + column, mask=column < K, other=0.0).to(tl.float32)[None, :]
    s = tl.where((row < live)[:, None], _sigmoid(rate * x), 0.0)
    beta = _sigmoid(tl.load(b + (start + row) * H + h, mask=row < live, other=0.0).to(tl.float32))
    beta = tl.where(row < live, beta, 0.0)
    return tl.cumsum(s * (lower * _LOG2E), 0), s, x, beta, rate


@triton.jit
def _chunks(
    q, k, v, z, b, a_log, bias, first, count, w, u, qg, kg, p, inverse, end, H, scale, lower, eps,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr,
    KEEP: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    chunk, h = tl.program_id(0).to(tl.int64) // H, tl.program_id(0) % H
    start, live = tl.load(first + chunk).to(tl.int64), tl.load(count + chunk)
    kind = w.dtype.element_ty
    row, column, vcolumn = tl.arange(0, C), tl.arange(0, BK), tl.arange(0, BV)
    log_g, _, _, beta, _ = _gates(z, b, a_log, bias, start, live, h, H, lower, K, BK, C)
    last = tl.min(log_g, 0)  # the last row's, to the bit: a sum made in another order would differ
    up, down, decay = tl.exp2(log_g + _CENTRE), tl.exp2(-log_g - _CENTRE), tl.exp2(log_g)
    bq = _tile(q, start, live, h, H, K, BK, C)
    bk = _tile(k, start, live, h, H, K, BK, C)
    bq *= scale / tl.sqrt(tl.sum(bq * bq, 1) + eps)[:, None]
    bk *= 1.0 / tl.sqrt(tl.sum(bk * bk, 1) + eps)[:, None]
    tile = chunk * H + h
    wide = tile * C * BK + row[:, None] * BK + column[None, :]
    tl.store(qg + wide, (bq * decay).to(kind))
    tl.store(kg + wide, (bk * tl.exp2(last[None, :] - log_g)).to(kind))
    tl.store(end + tile * BK + column, tl.exp2(last))
    keys = tl.trans((bk * down).to(kind))
    lower_half = row[:, None] >= row[None, :]
    pairs = tl.where(lower_half, tl.dot((bq * up).to(kind), keys, input_precision=EXACT), 0.0)
    square = tile * C * C + row[:, None] * C + row[None, :]
    tl.store(p + square, pairs.to(kind))
    a = tl.dot((bk * up).to(kind), keys, input_precision=EXACT) * beta[:, None]
    a = tl.where(row[:, None] > row[None, :], a, 0.0)
    # (I + A)^-1 of blocks twice as large: X - X L X, with L what A has between the two halves of such a block.
    between = (row[:, None] // 2 == row[None, :] // 2) & (row[:, None] != row[None, :])
    x = tl.where(row[:, None] == row[None, :], 1.0, 0.0) - tl.where(between, a, 0.0)
    for level in tl.static_range(1, LEVELS):
        whole, half = row // (2 * 2**level), row // 2**level
        between = (whole[:, None] == whole[None, :]) & (half[:, None] != half[None, :])
        x -= tl.dot(tl.dot(x, tl.where(between, a, 0.0), input_precision=EXACT), x, input_precision=EXACT)
    x = x.to(kind)
    if KEEP:
        tl.store(inverse + square, x)
    tl.store(w + wide, tl.dot(x, (bk * decay * beta[:, None]).to(kind), input_precision=EXACT).to(kind))
    bv = _tile(v, start, live, h, H, V, BV, C) * beta[:, None]
    values = tile * C * BV + row[:, None] * BV + vcolumn[None, :]
    tl.store(u + values, tl.dot(x, bv.to(kind), input_precision=EXACT).to(kind))


@triton.jit
def _scan(
    w, u, qg, kg, p, end, chunk_of, first, count, s0, o, last, states, fresh, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, WV: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    START: tl.constexpr, KEEP: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    parts: tl.constexpr = (V + BV - 1) // BV
    part, pair = tl.program_id(0) % parts, tl.program_id(0) // parts
    n, h = pair // H, pair % H
    kind = w.dtype.element_ty
    row, column, vrow = tl.arange(0, C), tl.arange(0, BK), part * BV + tl.arange(0, BV)
    outer = pair.to(tl.int64) * K * V + column[None, :] * V + vrow[:, None]
    there = (column < K)[None, :] & (vrow < V)[:, None]
    s = tl.zeros((BV, BK), tl.float32)
    if START:
        s += tl.load(s0 + outer, mask=there, other=0.0).to(tl.float32)
    begin, stop = tl.load(chunk_of + n), tl.load(chunk_of + n + 1)
    # The compiler fetches ahead what enters a product as it is; these two do not, so that is done here.
    tile = tl.cast(begin, tl.int64) * H + h
    own = row[None, :] * WV + vrow[:, None]  # transposed: [BV, C]
    next_u = tl.load(u + tile * C * WV + own, mask=begin < stop, other=0.0)
    next_end = tl.load(end + tile * BK + column, mask=begin < stop, other=0.0)
    for chunk in range(begin, stop):
        tile = tl.cast(chunk, tl.int64) * H + h
        start, live = tl.load(first + chunk).to(tl.int64), tl.load(count + chunk)
        this_u, this_end = next_u, next_end
        ahead = tl.minimum(chunk + 1, stop - 1).to(tl.int64) * H + h
        next_u = tl.load(u + ahead * C * WV + own)
        next_end = tl.load(end + ahead * BK + column)
        wide = tile * C * BK + column[:, None] + row[None, :] * BK  # transposed: [BK, C]
        square = tile * C * C + row[:, None] + row[None, :] * C  # transposed
        low = s.to(kind)
        if KEEP:
            tl.store(states + tile * BK * WV + column[None, :] * WV + vrow[:, None], low)
        f = this_u.to(tl.float32) - tl.dot(low, tl.load(w + wide), input_precision=EXACT)
        f = f.to(kind)
        if KEEP:
            tl.store(fresh + tile * C * WV + own, f)
        out = tl.dot(low, tl.load(qg + wide), input_precision=EXACT)
        out = tl.dot(f, tl.load(p + square), out, input_precision=EXACT)
        keys = tl.load(kg + tile * C * BK + row[:, None] * BK + column[None, :])
        s *= this_end[None, :]
        s = tl.dot(f, keys, s, input_precision=EXACT)
        at = ((start + row) * H + h)[None, :] * V + vrow[:, None]
        tl.store(o + at, out.to(o.dtype.element_ty), mask=(row < live)[None, :] & (vrow < V)[:, None])
    tl.store(last + outer, s, mask=there)


@triton.jit
def _scan_back(
    w, qg, kg, p, end, chunk_of, first, count, do, dlast, dfresh, dstates, ds0, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, WV: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    START: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    parts: tl.constexpr = (V + BV - 1) // BV
    part, pair = tl.program_id(0) % parts, tl.program_id(0) // parts
    n, h = pair // H, pair % H
    kind = w.dtype.element_ty
    row, column, vrow = tl.arange(0, C), tl.arange(0, BK), part * BV + tl.arange(0, BV)
    outer = pair.to(tl.int64) * K * V + column[None, :] * V + vrow[:, None]
    there = (column < K)[None, :] & (vrow < V)[:, None]
    ds = tl.zeros((BV, BK), tl.float32)
    if LAST:
        ds += tl.load(dlast + outer, mask=there, other=0.0).to(tl.float32)
    begin, stop = tl.load(chunk_of + n), tl.load(chunk_of + n + 1)
    for back in range(0, stop - begin):
        chunk = stop - 1 - back
        tile = tl.cast(chunk, tl.int64) * H + h
        plain = tile * C * BK + row[:, None] * BK + column[None, :]
        decay = tl.load(end + tile * BK + column)
        low = ds.to(kind)
        tl.store(dstates + tile * BK * WV + column[None, :] * WV + vrow[:, None], low)
        start, live = tl.load(first + chunk).to(tl.int64), tl.load(count + chunk)
        at = ((start + row) * H + h)[None, :] * V + vrow[:, None]
        grad = tl.load(do + at, mask=(row < live)[None, :] & (vrow < V)[:, None], other=0.0).to(kind)
        df = tl.dot(low, tl.load(kg + tile * C * BK + column[:, None] + row[None, :] * BK), input_precision=EXACT)
        df = tl.dot(grad, tl.load(p + tile * C * C + row[:, None] * C + row[None, :]), df, input_precision=EXACT)
        df = df.to(kind)
        tl.store(dfresh + tile * C * WV + row[None, :] * WV + vrow[:, None], df)
        ds *= decay[None, :]
        ds = tl.dot(grad, tl.load(qg + plain), ds, input_precision=EXACT)
        ds -= tl.dot(df, tl.load(w + plain), input_precision=EXACT)
    if START:
        tl.store(ds0 + outer, ds, mask=there)


@triton.jit
def _grads_of_scan(
    v, b, first, count, w, u, inverse, states, fresh, do, dstates, dfresh,
    dqg, dkg, drk, dp, da, dend, dv, dbeta, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """What the scans hand back to a chunk, up to the pairs: gradients of q e^G, k e^(G_last - G), beta k e^G, P, A."""
    chunk, h = tl.program_id(0).to(tl.int64) // H, tl.program_id(0) % H
    start, live = tl.load(first + chunk).to(tl.int64), tl.load(count + chunk)
    kind = w.dtype.element_ty
    row, column, vcolumn = tl.arange(0, C), tl.arange(0, BK), tl.arange(0, BV)
    tile = chunk * H + h
    wide = tile * C * BK + row[:, None] * BK + column[None, :]
    square = tile * C * C + row[:, None] * C + row[None, :]
    values = tile * C * BV + row[:, None] * BV + vcolumn[None, :]
    across = tile * BK * BV + column[None, :] * BV + vcolumn[:, None]  # [V, K], as the scans keep it
    grad = _tile(do, start, live, h, H, V, BV, C).to(kind)
    df, f = tl.load(dfresh + values), tl.load(fresh + values)
    pairs = tl.dot(grad, tl.trans(f), input_precision=EXACT)
    tl.store(dp + square, tl.where(row[:, None] >= row[None, :], pairs, 0.0).to(kind))
    ds_after = tl.load(dstates + across)
    tl.store(dkg + wide, tl.dot(f, ds_after, input_precision=EXACT).to(kind))
    s_before = tl.load(states + across)
    tl.store(dend + tile * BK + column, tl.sum(s_before.to(tl.float32) * ds_after.to(tl.float32), 0))
    tl.store(dqg + wide, tl.dot(grad, s_before, input_precision=EXACT).to(kind))
    dw = -tl.dot(df, s_before, input_precision=EXACT)
    # Through W = X (beta k e^G), U = X (beta v), X = (I + A)^-1.
    xt = tl.trans(tl.load(inverse + square))
    rk = tl.dot(xt, dw.to(kind), input_precision=EXACT).to(kind)
    rv = tl.dot(xt, df, input_precision=EXACT)
    tl.store(drk + wide, rk)
    ga = tl.dot(rk, tl.trans(tl.load(w + wide)), input_precision=EXACT)
    ga = tl.dot(rv.to(kind), tl.trans(tl.load(u + values)), ga, input_precision=EXACT)
    tl.store(da + square, tl.where(row[:, None] > row[None, :], -ga, 0.0))
    beta = _sigmoid(tl.load(b + (start + row) * H + h, mask=row < live, other=0.0).to(tl.float32))
    bv = _tile(v, start, live, h, H, V, BV, C)
    tl.store(dbeta + tile * C + row, tl.sum(rv * bv, 1))
    _put(dv, rv * beta[:, None], start, live, h, H, V, BV, C)


@triton.jit
def _grads_of_inputs(
    q, k, z, b, a_log, bias, first, count, dqg, dkg, drk, dp, da, dend, dbeta,
    dq, dk, dz, db, drate, dbias, H, scale, lower, eps,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """From there through the pairs of a chunk, the gate and the norms to q, k, z and b."""
    chunk, h = tl.program_id(0).to(tl.int64) // H, tl.program_id(0) % H
    start, live = tl.load(first + chunk).to(tl.int64), tl.load(count + chunk)
    kind = dqg.dtype.element_ty
    row, column = tl.arange(0, C), tl.arange(0, BK)
    tile = chunk * H + h
    wide = tile * C * BK + row[:, None] * BK + column[None, :]
    square = tile * C * C + row[:, None] * C + row[None, :]
    log_g, s, x, beta, rate = _gates(z, b, a_log, bias, start, live, h, H, lower, K, BK, C)
    last = tl.min(log_g, 0)
    up, down = tl.exp2(log_g + _CENTRE), tl.exp2(-log_g - _CENTRE)
    bq = _tile(q, start, live, h, H, K, BK, C)
    bk = _tile(k, start, live, h, H, K, BK, C)
    rq, rk = 1.0 / tl.sqrt(tl.sum(bq * bq, 1) + eps), 1.0 / tl.sqrt(tl.sum(bk * bk, 1) + eps)
    bq *= rq[:, None]
    bk *= rk[:, None]
    kd, ku = (bk * down).to(kind), (bk * up).to(kind)
    gp, ga = tl.load(dp + square), tl.load(da + square)
    m = (ga * beta[:, None]).to(kind)
    pairs = tl.dot(ku, tl.trans(kd), input_precision=EXACT)
    gbeta = tl.sum(tl.where(row[:, None] > row[None, :], ga * pairs, 0.0), 1) + tl.load(dbeta + tile * C + row)
    dcol = tl.dot(tl.trans(gp), (bq * (scale * up)).to(kind), input_precision=EXACT)
    dcol = down * tl.dot(tl.trans(m), ku, dcol, input_precision=EXACT)
    rest = tl.exp2(last[None, :] - log_g) * tl.load(dkg + wide).to(tl.float32)
    dcol += rest
    dlast = tl.sum(bk * rest, 0) + tl.exp2(last) * tl.load(dend + tile * BK + column)
    decay = tl.exp2(log_g)
    row_k = decay * tl.load(drk + wide).to(tl.float32)
    gbeta += tl.sum(row_k * bk, 1)
    drow = up * tl.dot(m, kd, input_precision=EXACT) + row_k * beta[:, None]
    dqh = scale * (up * tl.dot(gp, kd, input_precision=EXACT) + decay * tl.load(dqg + wide).to(tl.float32))
    tl.store(db + (start + row) * H + h, (gbeta * beta * (1.0 - beta)).to(db.dtype.element_ty), mask=row < live)
    # dG = q dq + k (what k's row got - what its column got); dg_t = sum_{i >= t} dG_i + gradient of G_last.
    dg = bq * dqh + bk * (drow - dcol)
    dkh = drow + dcol
    # y = x r with r = (x.x + eps)^-1/2 has dx = r (dy - y (y.dy)).
    _put(dq, rq[:, None] * (dqh - bq * tl.sum(bq * dqh, 1)[:, None]), start, live, h, H, K, BK, C)
    _put(dk, rk[:, None] * (dkh - bk * tl.sum(bk * dkh, 1)[:, None]), start, live, h, H, K, BK, C)
    dg += (dlast + tl.sum(dg, 0))[None, :] - tl.cumsum(dg, 0)
    dx = dg * lower * s * (1.0 - s)  # gradient of rate * (z + bias)
    _put(dz, dx * rate, start, live, h, H, K, BK, C)
    tl.store(drate + tile, tl.sum(tl.sum(dx * x, 1), 0) * rate)
    tl.store(dbias + tile * BK + column, tl.sum(dx, 0) * rate)


class _Cut:
    """How packed sequences fall into chunks: first token and number of tokens of each, and each sequence's chunks."""

    def __init__(self, bounds: tuple[int, ...], chunk: int, device: torch.device) -> None:
        first = [a for lo, hi in pairwise(bounds) for a in range(lo, hi, chunk)]
        ends = [min(a + chunk, hi) for lo, hi in pairwise(bounds) for a in range(lo, hi, chunk)]
        of = [0]
        for lo, hi in pairwise(bounds):
            of.append(of[-1] - (lo - hi) // chunk)
        # Three allocations: as views of one they would be aligned by chance, and Triton compiles for alignment.
        new = lambda x: torch.tensor(x, dtype=torch.int32, device=device)
        self.chunks, self.sequences = len(first), len(bounds) - 1
        self.first, self.count, self.of = new(first), new([e - a for a, e in zip(first, ends, strict=True)]), new(of)


_cut = lru_cache(maxsize=64)(_Cut)
"""A step's layers share the cut of its packing."""


def _padded(n: int) -> int:
    return max(16, triton.next_power_of_2(n))


class _Buffers:
    """What `_chunks` makes for `_scan`, and both for the gradients."""

    def __init__(self, q: Tensor, v: Tensor, cut: _Cut, keep: bool) -> None:
        heads, kd, vd = q.shape[1], _padded(q.shape[2]), _padded(v.shape[2])
        n = cut.chunks * heads
        new = lambda *shape: torch.empty(n, *shape, dtype=q.dtype, device=q.device)
        self.w, self.qg, self.kg, self.u = new(CHUNK, kd), new(CHUNK, kd), new(CHUNK, kd), new(CHUNK, vd)
        self.p = new(CHUNK, CHUNK)
        self.end = torch.empty(n, kd, dtype=torch.float32, device=q.device)
        nothing = self.p
        self.inverse = new(CHUNK, CHUNK) if keep else nothing
        self.states, self.fresh = (new(kd, vd), new(CHUNK, vd)) if keep else (nothing, nothing)


def _forward(
    inputs: tuple[Tensor, ...], state: Tensor | None, cut: _Cut, lower: float, keep: bool
) -> tuple[Tensor, Tensor, _Buffers]:
    q, _, v = inputs[:3]
    t, heads, kd = q.shape
    vd = v.shape[2]
    bk, wv = _padded(kd), _padded(vd)
    buffers = _Buffers(q, v, cut, keep)
    exact = "ieee" if q.dtype == torch.float32 else "tf32"
    shape = {"K": kd, "V": vd, "BK": bk, "C": CHUNK, "KEEP": keep, "EXACT": exact}
    b = buffers
    if cut.chunks:
        _chunks[(cut.chunks * heads,)](
            *inputs, cut.first, cut.count, b.w, b.u, b.qg, b.kg, b.p, b.inverse, b.end, heads, kd**-0.5, lower, EPS,
            **shape, BV=wv, LEVELS=CHUNK.bit_length() - 1, **CHUNKS,
        )  # fmt: skip
    o = torch.empty(t, heads, vd, dtype=v.dtype, device=q.device)
    last = torch.empty(cut.sequences, heads, kd, vd, dtype=torch.float32, device=q.device)
    block = min(SCAN["BV"], wv)
    _scan[(-(-vd // block) * cut.sequences * heads,)](
        b.w, b.u, b.qg, b.kg, b.p, b.end, cut.of, cut.first, cut.count, last if state is None else state, o, last,
        b.states, b.fresh, heads, **shape, WV=wv, START=state is not None, **(SCAN | {"BV": block}),
    )  # fmt: skip
    return o, last, buffers


class Attend(torch.autograd.Function):
    """The chunk form with gradients; the backward makes everything but the inputs again."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, state: Tensor | None, cut: _Cut, lower: float, *inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        o, last, _ = _forward(inputs, state, cut, lower, keep=False)
        ctx.save_for_backward(*inputs, *(() if state is None else (state,)))
        ctx.cut, ctx.lower = cut, lower
        ctx.set_materialize_grads(False)
        return o, last

    @staticmethod
    def backward(ctx: Any, do: Tensor | None, dlast: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        inputs, state = ctx.saved_tensors[:7], ctx.saved_tensors[7:]
        q, v, a_log, bias = inputs[0], inputs[2], inputs[5], inputs[6]
        cut: _Cut = ctx.cut
        heads, kd, vd = q.shape[1], q.shape[2], v.shape[2]
        o, _, b = _forward(inputs, state[0] if state else None, cut, ctx.lower, keep=True)
        do = torch.zeros_like(o) if do is None else do.contiguous()
        del o
        dstates, dfresh = torch.empty_like(b.states), torch.empty_like(b.fresh)
        ds0 = torch.empty_like(state[0]) if state else b.end
        bk, wv = _padded(kd), _padded(vd)
        exact = "ieee" if q.dtype == torch.float32 else "tf32"
        shape = {"K": kd, "V": vd, "BK": bk, "C": CHUNK, "EXACT": exact}
        block = min(SCAN["BV"], wv)
        _scan_back[(-(-vd // block) * cut.sequences * heads,)](
            b.w, b.qg, b.kg, b.p, b.end, cut.of, cut.first, cut.count, do,
            b.end if dlast is None else dlast.contiguous(), dfresh, dstates, ds0, heads,
            **shape, WV=wv, START=bool(state), LAST=dlast is not None, **(SCAN | {"BV": block}),
        )  # fmt: skip
        dq, dk, dv, dz, db = out = [torch.empty_like(x) for x in inputs[:5]]
        exact32 = lambda *shape: torch.empty(cut.chunks, heads, *shape, dtype=torch.float32, device=q.device)
        drate, dbias, dend, dbeta, da = exact32(), exact32(bk), exact32(bk), exact32(CHUNK), exact32(CHUNK, CHUNK)
        if cut.chunks:
            dqg, dkg, drk, dp = (torch.empty_like(x) for x in (b.qg, b.kg, b.w, b.p))
            _grads_of_scan[(cut.chunks * heads,)](
                v, inputs[4], cut.first, cut.count, b.w, b.u, b.inverse, b.states, b.fresh, do, dstates, dfresh,
                dqg, dkg, drk, dp, da, dend, dv, dbeta, heads, **shape, BV=wv, **GRADS,
            )  # fmt: skip
            del b, dstates, dfresh
            _grads_of_inputs[(cut.chunks * heads,)](
                q, inputs[1], *inputs[3:], cut.first, cut.count, dqg, dkg, drk, dp, da, dend, dbeta,
                dq, dk, dz, db, drate, dbias, heads, kd**-0.5, ctx.lower, EPS,
                K=kd, BK=bk, C=CHUNK, EXACT=exact, **GRADS,
            )  # fmt: skip
        da_log = drate.sum(0).to(a_log.dtype)
        dbias = dbias.sum(0)[:, :kd].to(bias.dtype)
        return ds0 if state else None, None, None, *out, da_log, dbias


def attend(inputs: tuple[Tensor, ...], bounds: list[int], state: Tensor | None, lower: float) -> tuple[Tensor, Tensor]:
    """See `kernels.kda.kda_attend`; inputs q, k, v, z, b, a_log, bias."""
    cut = _cut(tuple(bounds), CHUNK, inputs[0].device)
    inputs = tuple(x.contiguous() for x in inputs)
    state = None if state is None else state.contiguous()
    return Attend.apply(state, cut, lower, *inputs)


def step_(inputs: tuple[Tensor, ...], state: Tensor, index: Tensor, lower: float) -> Tensor:
    """See `kernels.kda.kda_decode_`."""
    q, k, v, z, b, a_log, bias = (x.contiguous() for x in inputs)
    n, heads, kd = q.shape
    vd = v.shape[2]
    o = torch.empty_like(v)
    block = min(STEP["BV"], triton.next_power_of_2(vd))
    if n:
        _step[(-(-vd // block) * n * heads,)](
            q, k, v, z, b, a_log, bias, index, state, o, heads, kd**-0.5, lower, EPS,
            K=kd, V=vd, BK=triton.next_power_of_2(kd), **(STEP | {"BV": block}),
        )  # fmt: skip
    return o
