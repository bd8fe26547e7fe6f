"""Kimi Delta Attention in torch, any device: one decode step and the chunk form.

    S_t = (I - beta k k^T) Diag(exp g) S_{t-1} + beta k v^T ;  o_t = S_t^T q_t        (K3 report eq. 1)

State layout is [..., K, V] (key axis first) everywhere. q and k come l2-normalised, q scaled. The log-decay g lies in
[-5, 0]: over a tile of 16 tokens |cumsum g| <= 80, so that every factor of a tile fits float32 and all tiles are plain
matrix products, finite forwards and backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.node import call

TILE = 16
EPS = 1e-6
"""Added to the squared length of queries and keys (K3: l2norm)."""
CENTRE = 2.0**58
"""About e^40: a tile's decays lie in e^-80 .. 1, scaled by this in e^-40 .. e^40; a power of two scales exactly."""


def kda_step_(qk: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """One token for n sequences; `state` [n, H, K, V] is updated in place. No gradient.

    qk [n, H, 2, K] contiguous: query, key; decay = exp(g) [n, H, K]; v [n, H, V]; beta [n, H]. Returns o [n, H, V].
    """
    n, h, kd, vd = state.shape
    s = state.view(n * h, kd, vd)
    s.mul_(decay.reshape(n * h, kd, 1))
    # One product reads the decayed state for both: o = q^T (S + k delta^T) = q^T S + (q . k) delta^T.
    seen_q, seen_k = torch.bmm(qk.view(n * h, 2, kd), s).view(n, h, 2, vd).unbind(2)
    q, k = qk.unbind(2)
    delta = torch.sub(v, seen_k).mul_(beta.unsqueeze(-1))
    s.addcmul_(k.reshape(n * h, kd, 1), delta.view(n * h, 1, vd))
    return torch.addcmul(seen_q, (q * k).sum(-1, keepdim=True), delta)


@dataclass(frozen=True)
class Tiles:
    """How the tiles of many sequences hang together. A tile's level is the number of tiles before it; tiles are sorted
    by level. States are counted with the carried ones first: [0, starts), then one after each tile.
    """

    starts: int
    """Sequences, each with a carried state (zeros at position 0)."""
    levels: list[int]
    """Tiles of each level."""
    before: Tensor
    """Long [tiles]: the state that each tile starts from; several may start from one."""
    ends: Tensor
    """Long [starts]: the state after each sequence's last tile."""


def kda_chunk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, tiles: Tiles, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence in tiles of 16 tokens, with gradients to every input.

    q, k, g [tiles, H, 16, K]; v [tiles, H, 16, V]; beta [tiles, H, 16]; state [starts, H, K, V] or None for zeros.
    g in [-5, 0]. A token with beta = 0 and g = 0 leaves the state as it is (padding).
    Returns (o [tiles, H, 16, V], state after each sequence's last tile [starts, H, K, V]).
    """
    return call(_Chunk, q, k, v, g, beta.unsqueeze(-1), tiles, state)


class _Chunk(Function):
    """All tiles at once but for the states. With G = cumsum g in the tile and C = 2^58 (about e^40):

    q^ = q e^G C, k^ = k e^G C, k~ = k e^-G / C, S^ = S / C;  A = strict_lower(beta k^ k~^T);  P = lower(q^ k~^T)
    [U | W] = (I + A)^-1 beta [v | k^];  then, level after level:  v' = U - W S^;  S^ = e^(G_last) (S^ + k~^T v')
    o = q^ S^ + P v'.
    The centre C is a constant, so that no token's arithmetic depends on a later one.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, tiles: Tiles, s0: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        n, h, c, kd = k.shape
        vd = v.shape[-1]
        up = g.cumsum(2).exp_()
        end = up[:, :, -1].unsqueeze(-1)  # [tiles, H, K, 1]
        up = up * CENTRE
        down = up.reciprocal()
        qh, kh, kt = q * up, k * up, k * down
        a = torch.matmul(kh, kt.mT).mul_(beta).tril_(-1)
        p = torch.matmul(qh, kt.mT).tril_()
        rhs = torch.cat((v, kh), -1)
        eye = torch.eye(c, dtype=a.dtype, device=a.device)
        inv = torch.linalg.solve_triangular(a, eye, upper=False, unitriangular=True)
        uw = torch.matmul(inv, rhs * beta)
        u, w = uw[..., :vd], uw[..., vd:]
        states = k.new_zeros(tiles.starts + n, h, kd, vd)
        if s0 is not None:
            torch.div(s0, CENTRE, out=states[: tiles.starts])
        after, vn = states[tiles.starts :], torch.empty_like(v)
        for part in _levels(tiles):
            s = states.index_select(0, tiles.before[part]).flatten(0, 1)
            fresh = torch.baddbmm(u[part].flatten(0, 1), w[part].flatten(0, 1), s, alpha=-1)
            s = torch.baddbmm(s, kt[part].flatten(0, 1).mT, fresh)
            torch.mul(s.view(-1, h, kd, vd), end[part], out=after[part])
            vn[part] = fresh.view(-1, h, c, vd)
        o = torch.matmul(qh, states.index_select(0, tiles.before)).add_(torch.matmul(p, vn))
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(beta, up, down, end, qh, kh, kt, inv, p, rhs, uw, states, vn)
            ctx.tiles, ctx.has_state = tiles, s0 is not None
            ctx.set_materialize_grads(False)
        return o, states.index_select(0, tiles.ends) * CENTRE

    @staticmethod
    def backward(ctx: Any, do: Tensor | None, dlast: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        beta, up, down, end, qh, kh, kt, inv, p, rhs, uw, states, vn = ctx.saved_tensors
        tiles: Tiles = ctx.tiles
        _, h, c, vd = vn.shape
        kd = kt.shape[-1]
        do = torch.zeros_like(vn) if do is None else do
        before, after = states.index_select(0, tiles.before), states[tiles.starts :]
        w = uw[..., vd:]
        dp = torch.matmul(do, vn.mT).tril_()
        dvn = torch.matmul(p.mT, do)
        ds_out = torch.matmul(qh.mT, do)
        dstates = torch.zeros_like(states)
        if dlast is not None:
            dstates.index_add_(0, tiles.ends, dlast * CENTRE)
        dafter = dstates[tiles.starts :]
        dm = torch.empty_like(after)
        for part in reversed(_levels(tiles)):
            d = torch.mul(dafter[part], end[part], out=dm[part]).flatten(0, 1)
            fresh = torch.baddbmm(dvn[part].flatten(0, 1), kt[part].flatten(0, 1), d)
            dvn[part] = fresh.view(-1, h, c, vd)
            ds = (d + ds_out[part].flatten(0, 1)).baddbmm_(w[part].flatten(0, 1).mT, fresh, alpha=-1)
            dstates.index_add_(0, tiles.before[part], ds.view(-1, h, kd, vd))
        dend = (dafter * after).sum(-1).unsqueeze(2)  # gradient of G_last through e^(G_last): [tiles, H, 1, K]
        duw = torch.cat((dvn, torch.matmul(dvn, before.mT).neg_()), -1)
        drhs = torch.matmul(inv.mT, duw)
        da = torch.matmul(drhs, uw.mT).tril_(-1).neg_()
        dbeta = (drhs * rhs).sum(-1, keepdim=True)
        dkk = da * beta
        # A = beta k^ k~^T: its share of the gradient of beta, without dividing by a beta that may be zero.
        dbeta += da.mul_(torch.matmul(kh, kt.mT)).sum(-1, keepdim=True)
        drhs *= beta
        dqh = torch.matmul(dp, kt).add_(torch.matmul(do, before.mT))
        dkh = torch.matmul(dkk, kt).add_(drhs[..., vd:])
        dkt = torch.matmul(dp.mT, qh).add_(torch.matmul(dkk.mT, kh)).add_(torch.matmul(vn, dm.mT))
        dq = dqh * up
        dk = torch.addcmul(dkh * up, dkt, down)
        # dG = q^ dq^ + k^ dk^ - k~ dk~ at each token, dend at the last; dg_t = sum_{i >= t} dG_i.
        dg = dqh.mul_(qh).addcmul_(kh, dkh).addcmul_(kt, dkt, value=-1)
        dg = (dg - dg.cumsum(2)).add_(dg.sum(2, keepdim=True) + dend)
        ds0 = dstates[: tiles.starts] / CENTRE if ctx.has_state else None
        return dq, dk, drhs[..., :vd], dg, dbeta, None, ds0


def attend(inputs: tuple[Tensor, ...], bounds: list[int], state: Tensor | None, lower: float) -> tuple[Tensor, Tensor]:
    """See `kernels.kda.kda_attend`; inputs q, k, v, z, b, a_log, bias."""
    q, k, g, beta = prepare(inputs, lower)
    lengths = [hi - lo for lo, hi in pairwise(bounds)]
    heights = [-(-n // TILE) for n in lengths]
    t, none = bounds[-1], len(lengths)
    at, before, levels = [], [], []
    final = list(range(none))  # the state after each sequence so far
    for level in range(max(heights, default=0)):
        there = [i for i, height in enumerate(heights) if height > level]
        levels.append(len(there))
        for i in there:
            before.append(final[i])
            final[i] = none + len(before) - 1
            start = bounds[i] + level * TILE
            at.append([token if token < bounds[i + 1] else t for token in range(start, start + TILE)])
    place = torch.tensor(at, dtype=torch.int64, device=q.device).view(-1, TILE)
    index = partial(torch.tensor, dtype=torch.int64, device=q.device)
    tiles = Tiles(none, levels, index(before), index(final))

    def cut(x: Tensor) -> Tensor:
        """[T, H, ..] as [tiles, H, 16, ..], zeros where there is no token."""
        return torch.cat((x, x.new_zeros(1, *x.shape[1:])))[place].transpose(1, 2)

    v = inputs[2].to(q)
    o, last = kda_chunk(cut(q), cut(k), cut(v), cut(g), cut(beta), tiles, None if state is None else state.to(q))
    flat = o.transpose(1, 2).flatten(0, 1)
    back = torch.empty(t + 1, dtype=torch.int64, device=q.device)
    back[place.flatten()] = torch.arange(place.numel(), device=q.device)
    return flat[back[:t]].to(inputs[2]), last


def prepare(inputs: tuple[Tensor, ...], lower: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit queries (scaled) and keys, log-decay and beta of the raw inputs; in float32, or float64 if they are."""
    q, k, _, z, b, a_log, bias = (x if x.dtype == torch.float64 else x.float() for x in inputs)
    unit = lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)
    g = lower * torch.sigmoid(a_log.exp().unsqueeze(-1) * (z + bias))
    return unit(q) * q.shape[-1] ** -0.5, unit(k), g, torch.sigmoid(b)


def step_(inputs: tuple[Tensor, ...], state: Tensor, index: Tensor, lower: float) -> Tensor:
    """See `kernels.kda.kda_decode_`."""
    q, k, g, beta = prepare(inputs, lower)
    live = (index >= 0).nonzero().squeeze(1)
    at = index[live].long()
    s = state[at].to(q)
    o = torch.zeros_like(inputs[2])
    qk = torch.stack((q[live], k[live]), 2)
    o[live] = kda_step_(qk, inputs[2][live].to(q), g[live].exp(), beta[live], s).to(o)
    state[at] = s.to(state)
    return o


def _levels(tiles: Tiles) -> list[slice]:
    """The tiles of each level."""
    ends = list(accumulate(tiles.levels))
    return [slice(b - n, b) for b, n in zip(ends, tiles.levels, strict=True)]
