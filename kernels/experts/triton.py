"""Experts on a GPU: nothing is read back to the host, and what stands between two products is done on the way.

Pairs of token and expert are sorted (`kernels.router`); a program takes one tile of one expert's rows. Forwards:

    up       gathers tokens, multiplies with W1 and W3, stores gate and up branch for the backward, and SiTU of them
    down     multiplies with W2
    combine  weighted sum of each token's pairs, and its RMS norm

The backward needs no output of a pair: with h = SiTU and y = W2 h, the gradient of a pair's weight is du . y =
(W2^T du) . h, and W2^T du is made anyway.

    slope    W2^T du of gathered tokens, on to gate and up branch, to the weight, and to w h (a factor of dW2)
    down, combine   the gradient of x;    outer   dW13 and dW2, rows of one expert after the other, without atomics

The three products with many columns can also be torch's (PRODUCTS); then only what stands between them is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.router.triton import expert_order
from kernels.situ.triton import _slopes, _unit, situ_glu

PRODUCTS = "torch"
"""Whose grouped products: "torch" (torch._grouped_mm, 1.13 to 1.32 x the floor on one H200) or "triton". Torch's are
taken for bfloat16 on Hopper alone: on Blackwell they leave the gradient of an expert without tokens undefined
(pytorch issue 172439), elsewhere and for other dtypes they are a loop."""
TILES: dict[int, dict[str, int]] = {
    2: {"BN": 128, "BK": 64, "num_warps": 8, "num_stages": 3},
    4: {"BN": 64, "BK": 32, "num_warps": 4, "num_stages": 2},
}
"""By bytes of an element: columns and depth of a product's tile."""
SLOPE = 2
"""`slope` takes that part of a tile's columns: with all of them its five tiles at the end spill 1 kB a thread."""
ROWS = {2: 128, 4: 64}
"""Most rows of a tile; fewer where experts have fewer, at least 16."""
SWEEP = [
    {"TILES": TILES | {2: {"BN": n, "BK": k, "num_warps": w, "num_stages": s}}, "PRODUCTS": "triton"}
    for n, k, w, s in ((128, 64, 8, 3), (128, 64, 8, 4), (128, 32, 8, 4), (64, 64, 4, 4))
]
NORM = {"num_warps": 8}
PROGRAMS = 264
"""Of the norm's backward: two for each of an H200's 132 multiprocessors."""
_GROUP = tl.constexpr(8)


@triton.jit
def _tile_of(ends, turn, tiles, parts, E, BE: tl.constexpr, BM: tl.constexpr):
    """(expert, its rows [BM], which exist, part of the columns) of a program; eight tiles of rows share columns."""
    group = turn // (_GROUP * parts)
    deep = tl.minimum(tiles - group * _GROUP, _GROUP)
    inside = turn - group * _GROUP * parts
    tile, part = group * _GROUP + inside % deep, inside // deep
    e = tl.arange(0, BE)
    end = tl.load(ends + e, mask=e < E, other=0)
    start = tl.load(ends + e - 1, mask=(e > 0) & (e < E), other=0)
    own = tl.where(e < E, (end - start + BM - 1) // BM, 0)
    before = tl.cumsum(own, 0) - own
    mine = (before <= tile) & (tile < before + own)
    expert = tl.sum(tl.where(mine, e, 0), 0)
    row = tl.sum(tl.where(mine, start + (tile - before) * BM, 0), 0) + tl.arange(0, BM)
    return expert, row, row < tl.sum(tl.where(mine, end, 0), 0), part


@triton.jit
def _tokens(order, row, live, GATHER: tl.constexpr, K: tl.constexpr):
    """Where a sorted row's input lies: at its token, or where it is."""
    if GATHER:
        return (tl.load(order + row, mask=live, other=0) // K).to(tl.int64)
    else:
        return row.to(tl.int64)


@triton.jit
def _multiply(
    x, at, live, w, column, L, N, down, along, half,
    TWO: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Rows `at` of x [.., L] times w: float32 [BM, BN], and with the columns `half` further on if TWO.

    `down` and `along` are the distances in w of two columns and of two places of L.
    """
    k = tl.arange(0, BK)
    first, second = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for begin in range(0, L, BK):
        inside = begin + k < L
        a = tl.load(x + at[:, None] * L + (begin + k)[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        place = w + column[None, :] * down + (begin + k)[:, None] * along
        there = (column < N)[None, :] & inside[:, None]
        first = tl.dot(a, tl.load(place, mask=there, other=0.0), first, input_precision=EXACT)
        if TWO:
            other = tl.load(place + half * down, mask=there, other=0.0)
            second = tl.dot(a, other, second, input_precision=EXACT)
    return first, second


@triton.jit
def _product(
    x, order, w, out, act, ends, tiles, parts, E, L, N, down, along, beta, cap,
    K: tl.constexpr, BE: tl.constexpr, GATHER: tl.constexpr, SITU: tl.constexpr, CAPPED: tl.constexpr,
    KEEP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """out [P, N] of each expert's rows; with SITU, out [P, 2N] (KEEP) holds both branches and act [P, N] the unit."""
    expert, row, live, part = _tile_of(ends, tl.program_id(0), tiles, parts, E, BE, BM)
    if tl.max(live.to(tl.int32), 0) > 0:
        column = part * BN + tl.arange(0, BN)
        at = _tokens(order, row, live, GATHER, K)
        own = w + expert.to(tl.int64) * L * N * (2 if SITU else 1)
        g, u = _multiply(x, at, live, own, column, L, N, down, along, N, SITU, BM, BN, BK, EXACT)
        there = live[:, None] & (column < N)[None, :]
        wide = row.to(tl.int64)[:, None] * N
        if SITU:
            if KEEP:
                tl.store(out + 2 * wide + column[None, :], g.to(out.dtype.element_ty), mask=there)
                tl.store(out + 2 * wide + N + column[None, :], u.to(out.dtype.element_ty), mask=there)
            y = _unit(g, u, beta, cap, CAPPED)
            tl.store(act + wide + column[None, :], y.to(act.dtype.element_ty), mask=there)
        else:
            tl.store(out + wide + column[None, :], g.to(out.dtype.element_ty), mask=there)


@triton.jit
def _slope(
    grad, order, w2, gate_up, act, weights, dgate_up, scaled, dweights, ends, tiles, parts, E, L, N, pairs, beta, cap,
    K: tl.constexpr, BE: tl.constexpr, GATHER: tl.constexpr, MADE: tl.constexpr, CAPPED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """W2^T du [P, N] (MADE: given as `grad`), weighted if GATHER, through SiTU; see the module."""
    expert, row, live, part = _tile_of(ends, tl.program_id(0), tiles, parts, E, BE, BM)
    if tl.max(live.to(tl.int32), 0) > 0:
        column = part * BN + tl.arange(0, BN)
        there = live[:, None] & (column < N)[None, :]
        wide = row.to(tl.int64)[:, None] * N
        if MADE:
            d = tl.load(grad + wide + column[None, :], mask=there, other=0.0).to(tl.float32)
        else:
            at = _tokens(order, row, live, GATHER, K)
            own = w2 + expert.to(tl.int64) * L * N
            d, _ = _multiply(grad, at, live, own, column, L, N, 1, N, 0, False, BM, BN, BK, EXACT)
        if GATHER:
            h = tl.load(act + wide + column[None, :], mask=there, other=0.0).to(tl.float32)
            tl.store(dweights + part.to(tl.int64) * pairs + row, tl.sum(d * h, 1), mask=live)
            weight = tl.load(weights + tl.load(order + row, mask=live, other=0), mask=live, other=0.0).to(tl.float32)
            d *= weight[:, None]
            tl.store(scaled + wide + column[None, :], (h * weight[:, None]).to(scaled.dtype.element_ty), mask=there)
        g = tl.load(gate_up + 2 * wide + column[None, :], mask=there, other=0.0).to(tl.float32)
        u = tl.load(gate_up + 2 * wide + N + column[None, :], mask=there, other=0.0).to(tl.float32)
        dg, du = _slopes(d, g, u, beta, cap, CAPPED)
        tl.store(dgate_up + 2 * wide + column[None, :], dg.to(dgate_up.dtype.element_ty), mask=there)
        tl.store(dgate_up + 2 * wide + N + column[None, :], du.to(dgate_up.dtype.element_ty), mask=there)


@triton.jit
def _outer(
    a, b, order, out, ends, M, N, parts_m, parts_n,
    K: tl.constexpr, OF_A: tl.constexpr, OF_B: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """out [E, M, N] = sum over an expert's rows of a^T b; OF_A, OF_B: their rows are tokens."""
    turn = tl.program_id(0)
    expert, inside = turn // (parts_m * parts_n), turn % (parts_m * parts_n)
    m, n = inside % parts_m * BM + tl.arange(0, BM), inside // parts_m * BN + tl.arange(0, BN)
    start = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    stop = tl.load(ends + expert)
    total = tl.zeros((BM, BN), tl.float32)
    for begin in range(start, stop, BK):
        row = begin + tl.arange(0, BK)
        live = row < stop
        of_a, of_b = _tokens(order, row, live, OF_A, K), _tokens(order, row, live, OF_B, K)
        x = tl.load(a + of_a[None, :] * M + m[:, None], mask=live[None, :] & (m < M)[:, None], other=0.0)
        y = tl.load(b + of_b[:, None] * N + n[None, :], mask=live[:, None] & (n < N)[None, :], other=0.0)
        total = tl.dot(x, y, total, input_precision=EXACT)
    at = expert.to(tl.int64) * M * N + m[:, None] * N + n[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def _combine(
    pairs, weights, inverse, scale, out, plain, rate, L, eps,
    K: tl.constexpr, BL: tl.constexpr, WEIGHTED: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Sum of a token's K pairs; with NORM normalised, and the sum and its inverse length kept."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BL)
    there = column < L
    total = tl.zeros((BL,), tl.float32)
    for i in range(K):
        at = tl.load(inverse + row * K + i).to(tl.int64)
        y = tl.load(pairs + at * L + column, mask=there, other=0.0).to(tl.float32)
        if WEIGHTED:
            y *= tl.load(weights + row * K + i).to(tl.float32)
        total += y
    if NORM:
        r = 1.0 / tl.sqrt(tl.sum(total * total, 0) / L + eps)
        tl.store(plain + row * L + column, total.to(plain.dtype.element_ty), mask=there)
        tl.store(rate + row, r)
        total *= r * tl.load(scale + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * L + column, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _combine_back(grad, plain, rate, scale, out, dscale, rows, share, L, BL: tl.constexpr):
    """Through the norm; a program walks over `share` rows, so that the weight's sum stays in registers."""
    column = tl.arange(0, BL)
    there = column < L
    weight = tl.load(scale + column, mask=there, other=0.0).to(tl.float32)
    total = tl.zeros((BL,), tl.float32)
    for turn in range(0, share):
        row = tl.program_id(0).to(tl.int64) * share + turn
        live = there & (row < rows)
        r = tl.load(rate + row, mask=row < rows, other=0.0)
        d = tl.load(grad + row * L + column, mask=live, other=0.0).to(tl.float32)
        y = tl.load(plain + row * L + column, mask=live, other=0.0).to(tl.float32) * r
        total += d * y
        d *= weight
        d = (d - y * (tl.sum(d * y, 0) / L)) * r
        tl.store(out + row * L + column, d.to(out.dtype.element_ty), mask=live)
    tl.store(dscale + tl.program_id(0).to(tl.int64) * L + column, total, mask=there)


class _Sorted(NamedTuple):
    """Rows by expert; those of tokens if there is an order."""

    ends: Tensor
    """int32 [E]: where each expert's rows end."""
    pairs: int
    order: Tensor | None = None
    inverse: Tensor | None = None
    k: int = 1


class _Launch:
    """How this call's products are cut, and who makes them."""

    def __init__(self, x: Tensor, w2: Tensor, rows: _Sorted, betas: tuple[float, float | None]) -> None:
        self.rows, (self.experts, self.latent, self.inner) = rows, w2.shape
        size = x.element_size()
        few = triton.next_power_of_2(max(16, rows.pairs // self.experts))
        self.height = min(ROWS[size], few)
        self.shape = {"K": rows.k, "GATHER": rows.order is not None, "BE": triton.next_power_of_2(self.experts)}
        self.tile: dict[str, Any] = TILES[size] | {"EXACT": "ieee" if size == 4 else "tf32"}
        self.tiles = triton.cdiv(rows.pairs, self.height) + min(self.experts, rows.pairs)
        self.caps = betas[0], 1.0 if betas[1] is None else betas[1]
        self.capped = betas[1] is not None
        self.order = rows.ends if rows.order is None else rows.order
        self.of_torch = PRODUCTS == "torch" and rows.pairs > 0 and _torch_multiplies(x, self.latent, self.inner)

    def cut(self, columns: int, width: int) -> tuple[int, int]:
        """(programs, parts of so many columns)."""
        parts = triton.cdiv(columns, width)
        return self.tiles * parts, parts

    def tokens(self, x: Tensor) -> Tensor:
        """Each pair's row of x, copied."""
        return x if self.rows.order is None else x.index_select(0, self.rows.order // self.rows.k)

    def up(self, x: Tensor, w13: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        """(both branches [P, 2I] if kept, SiTU of them [P, I])."""
        if self.of_torch:
            both = torch._grouped_mm(self.tokens(x), w13.mT, offs=self.rows.ends)
            return both, situ_glu(both, self.caps[0], self.caps[1] if self.capped else None)
        act = torch.empty(self.rows.pairs, self.inner, dtype=x.dtype, device=x.device)
        both = torch.empty(self.rows.pairs, 2 * self.inner, dtype=x.dtype, device=x.device) if keep else act
        self.product(x, w13, both, act, self.inner, KEEP=keep, SITU=True)
        return both, act

    def down(self, x: Tensor, w: Tensor, transposed: bool) -> Tensor:
        """Sorted rows x times each expert's w^T, or w if transposed."""
        if self.of_torch:
            return torch._grouped_mm(x, w if transposed else w.mT, offs=self.rows.ends)
        columns = w.shape[2 if transposed else 1]
        out = torch.empty(self.rows.pairs, columns, dtype=x.dtype, device=x.device)
        self.product(x, w, out, out, columns, transposed, GATHER=False)
        return out

    def product(
        self, x: Tensor, w: Tensor, out: Tensor, act: Tensor, columns: int, transposed: bool = False, **flags: bool
    ) -> None:
        programs, parts = self.cut(columns, self.tile["BN"])
        if programs:
            depth = x.shape[1]
            strides = (1, columns) if transposed else (depth, 1)
            shape = self.shape | {"SITU": False, "KEEP": False, "CAPPED": self.capped, "BM": self.height} | flags
            _product[(programs,)](
                x, self.order, w, out, act, self.rows.ends, self.tiles, parts, self.experts, depth, columns, *strides,
                *self.caps, **shape, **self.tile,
            )  # fmt: skip

    def slope(
        self, grad: Tensor, w2: Tensor, both: Tensor, act: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(gradient of both branches, weighted act, gradient of the weights of sorted pairs [P] or None)."""
        dboth = torch.empty_like(both)
        tile = self.tile | {"BN": self.tile["BN"] // SLOPE}
        programs, parts = self.cut(self.inner, tile["BN"])
        partial = torch.empty(parts, self.rows.pairs, dtype=torch.float32, device=act.device)
        scaled = act if weights is None else torch.empty_like(act)
        made = grad
        if self.of_torch:
            made = torch._grouped_mm(self.tokens(grad), w2, offs=self.rows.ends)
        if programs:
            _slope[(programs,)](
                made, self.order, w2, both, act, act if weights is None else weights, dboth, scaled, partial,
                self.rows.ends, self.tiles, parts, self.experts, self.latent, self.inner, self.rows.pairs, *self.caps,
                MADE=self.of_torch, CAPPED=self.capped, BM=self.height, **self.shape, **tile,
            )  # fmt: skip
        return dboth, scaled, None if weights is None else partial.sum(0)

    def outer(self, a: Tensor, b: Tensor, of_a: bool, of_b: bool, like: Tensor) -> Tensor:
        """Each expert's a^T b, of rows that are tokens or sorted pairs."""
        if self.of_torch:
            a, b = (self.tokens(x) if of else x for x, of in ((a, of_a), (b, of_b)))
            return torch._grouped_mm(a.mT, b, offs=self.rows.ends)
        out = torch.empty_like(like)
        (m, n), size = out.shape[1:], ROWS[a.element_size()]
        parts = triton.cdiv(m, size), triton.cdiv(n, self.tile["BN"])
        gather = self.shape["GATHER"]
        _outer[(self.experts * parts[0] * parts[1],)](
            a, b, self.order, out, self.rows.ends, m, n, *parts,
            K=self.rows.k, OF_A=of_a and gather, OF_B=of_b and gather, BM=size, **self.tile,
        )  # fmt: skip
        return out


def _torch_multiplies(x: Tensor, *widths: int) -> bool:
    """Whether torch's grouped products take such rows; under the interpreter on a CPU too, to be tested."""
    aligned = not any(width * x.element_size() % 16 for width in widths)
    if not x.is_cuda:
        return aligned
    return aligned and x.dtype == torch.bfloat16 and torch.cuda.get_device_capability(x.device)[0] == 9


def _combined(
    pairs: Tensor, rows: _Sorted, weights: Tensor | None, norm: tuple[Tensor, float] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(out [N, L], the plain sums, their inverse lengths): without a norm the last two are not made."""
    n, latent = rows.pairs // rows.k, pairs.shape[1]
    out = torch.empty(n, latent, dtype=pairs.dtype, device=pairs.device)
    plain = out if norm is None else torch.empty_like(out)
    rate = torch.empty(n, dtype=torch.float32, device=pairs.device)
    scale, eps = (pairs, 0.0) if norm is None else norm
    if n:
        _combine[(n,)](
            pairs, pairs if weights is None else weights, rows.inverse, scale, out, plain, rate, latent, eps,
            K=rows.k, BL=triton.next_power_of_2(latent), WEIGHTED=weights is not None, NORM=norm is not None, **NORM,
        )  # fmt: skip
    return out, plain, rate


def _before_norm(grad: Tensor, plain: Tensor, rate: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the sums [N, L] and of the norm's weight [L]."""
    rows, latent = grad.shape
    out, share = torch.empty_like(grad), max(1, triton.cdiv(rows, PROGRAMS))
    programs = triton.cdiv(rows, share)
    partial = torch.empty(programs, latent, dtype=torch.float32, device=grad.device)
    if rows:
        _combine_back[(programs,)](
            grad, plain, rate, scale, out, partial, rows, share, latent, BL=triton.next_power_of_2(latent), **NORM
        )
    return out, partial.sum(0).to(scale.dtype)


class _Experts(torch.autograd.Function):
    """Of tokens if the rows have an order, else of rows sorted before; weights, norm and scale are of the former."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor | None, scale: Tensor | None, eps: float,
        rows: _Sorted, betas: tuple[float, float | None], quantise: Callable[[Tensor], Tensor] | None,
    ) -> Tensor:  # fmt: skip
        launch = _Launch(x, w2, rows, betas)
        both, act = launch.up(x, w13, any(ctx.needs_input_grad))
        if quantise is not None:
            act = quantise(act)
        out = launch.down(act, w2, transposed=False)
        plain = rate = None
        if rows.order is not None:
            out, plain, rate = _combined(out, rows, weights, None if scale is None else (scale, eps))
        kept = (plain, rate) if scale is not None else (None, None)
        ctx.save_for_backward(x, w13, w2, weights, scale, both, act, *kept, rows.ends, rows.order, rows.inverse)
        ctx.betas, ctx.k, ctx.pairs = betas, rows.k, rows.pairs
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, w13, w2, weights, scale, both, act, plain, rate, ends, order, inverse = ctx.saved_tensors
        rows = _Sorted(ends, ctx.pairs, order, inverse, ctx.k)
        launch = _Launch(x, w2, rows, ctx.betas)
        grad, dscale = grad.contiguous(), None
        if scale is not None:
            grad, dscale = _before_norm(grad, plain, rate, scale)
        dboth, scaled, dweights = launch.slope(grad, w2, both, act, weights)
        dw2 = launch.outer(grad, scaled, True, False, w2)
        del scaled
        dx = launch.down(dboth, w13, transposed=True)
        dw13 = launch.outer(dboth, x, False, True, w13)
        if order is not None:
            dx = _combined(dx, rows, None, None)[0]
        if dweights is not None:
            dweights = dweights[inverse].view_as(weights).to(weights.dtype)
        return dx, dw13, dw2, dweights, dscale, None, None, None, None


def routed_experts(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    weights: Tensor,
    chosen: Tensor,
    betas: tuple[float, float | None],
    quantise: Callable[[Tensor], Tensor] | None,
    norm: tuple[Tensor, float] | None,
) -> Tensor:
    """See `kernels.experts.routed_experts`."""
    order, inverse, counts = expert_order(chosen, w2.shape[0])
    ends = counts.cumsum(0, dtype=torch.int32)
    rows = _Sorted(ends, chosen.numel(), order, inverse, chosen.shape[1])
    scale, eps = (None, 0.0) if norm is None else norm
    x, w13, w2, weights = (t.contiguous() for t in (x, w13, w2, weights))
    return _Experts.apply(x, w13, w2, weights, scale, eps, rows, betas, quantise)


def grouped_situ_mlp(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    counts: Sequence[int],
    betas: tuple[float, float | None],
    quantise: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """See `kernels.experts.grouped_situ_mlp`."""
    ends = torch.tensor(counts, dtype=torch.int32, device=x.device).cumsum(0, dtype=torch.int32)
    x, w13, w2 = (t.contiguous() for t in (x, w13, w2))
    return _Experts.apply(x, w13, w2, None, None, 0.0, _Sorted(ends, x.shape[0]), betas, quantise)
