"""Kimi Delta Attention's recurrence: a float64-capable step-by-step reference, one decode step, and the chunk form.

    S_t = (I - beta k k^T) Diag(exp g) S_{t-1} + beta k v^T ;  o_t = S_t^T q_t        (K3 report eq. 1)

State layout is [..., K, V] (key axis first) everywhere. q and k come l2-normalised, q scaled. The log-decay g lies in
[-5, 0]: over a tile of 16 tokens |cumsum g| <= 80, so that every factor of a tile fits float32 and all tiles are plain
matrix products, finite forwards and backwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.node import call

TILE = 16
CENTRE = 2.0**58
"""About e^40: a tile's decays lie in e^-80 .. 1, scaled by this in e^-40 .. e^40; a power of two scales exactly."""


def kda_recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Reference: one token after the other, in the inputs' dtype.

    q, k, g [B, T, H, K]; v [B, T, H, V]; beta [B, T, H]; state [B, H, K, V] or None for zeros.
    Returns (o [B, T, H, V], state after the last token).
    """
    b, t, h, kd = k.shape
    s = k.new_zeros(b, h, kd, v.shape[-1]) if state is None else state
    out = []
    for i in range(t):
        s = s * g[:, i].exp().unsqueeze(-1)
        delta = beta[:, i].unsqueeze(-1) * (v[:, i] - (s * k[:, i].unsqueeze(-1)).sum(-2))
        s = s + k[:, i].unsqueeze(-1) * delta.unsqueeze(-2)
        out.append((s * q[:, i].unsqueeze(-1)).sum(-2))
    return torch.stack(out, 1), s


def kda_step_(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """One token for n sequences; `state` [n, H, K, V] is updated in place. No gradient.

    q, k, g [n, H, K]; v [n, H, V]; beta [n, H]. Returns o [n, H, V].
    """
    n, h, kd, vd = state.shape
    s = state.view(n * h, kd, vd)
    s.mul_(g.exp().view(n * h, kd, 1))
    # One product reads the decayed state for both: o = q^T (S + k delta^T) = q^T S + (q . k) delta^T.
    qk = torch.stack((q, k), 2).view(n * h, 2, kd)
    seen_q, seen_k = torch.bmm(qk, s).unsqueeze(2).unbind(1)
    delta = torch.sub(v.reshape(n * h, 1, vd), seen_k).mul_(beta.reshape(n * h, 1, 1))
    s.addcmul_(qk[:, 1].unsqueeze(-1), delta)
    return torch.addcmul(seen_q, torch.linalg.vecdot(qk[:, 0], qk[:, 1]).view(n * h, 1, 1), delta).view(n, h, vd)


def kda_chunk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence in tiles of 16 tokens, with gradients to every input.

    q, k, g [B, H, T, K]; v [B, H, T, V]; beta [B, H, T] (head axis BEFORE time); state [B, H, K, V] or None for zeros.
    g in [-5, 0]. A token with beta = 0 and g = 0 leaves the state as it is (padding). Any T.
    Returns (o [B, H, T, V], state after the last token).
    """
    b, h, t, kd = k.shape
    pad = -t % TILE
    if pad:
        q, k, v, g = (torch.nn.functional.pad(x, (0, 0, 0, pad)) for x in (q, k, v, g))
        beta = torch.nn.functional.pad(beta, (0, pad))
    n = (t + pad) // TILE
    q, k, v, g = (x.reshape(b * h, n, TILE, x.shape[-1]) for x in (q, k, v, g))
    s0 = None if state is None else state.reshape(b * h, kd, v.shape[-1])
    o, s = call(_Chunk, q, k, v, g, beta.reshape(b * h, n, TILE, 1), s0)
    return o.view(b, h, n * TILE, -1)[:, :, :t], s.view(b, h, kd, -1)


class _Chunk(Function):
    """Tiles [M, n, 16, .] of M = batch x heads. With G = cumsum g in the tile and C = 2^58 (about e^40):

    q^ = q e^G C, k^ = k e^G C, k~ = k e^-G / C, S^ = S / C;  A = strict_lower(beta k^ k~^T);  P = lower(q^ k~^T)
    [U | W] = (I + A)^-1 beta [v | k^];  then, tile after tile:  v' = U - W S^;  S^ = e^(G_last) (S^ + k~^T v')
    o = q^ S^ + P v'.
    The centre C is a constant, so that no token's arithmetic depends on a later one.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, s0: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        m, n, c, kd = k.shape
        vd = v.shape[-1]
        up = g.cumsum(2).exp_()
        end = up[:, :, -1].unsqueeze(-1)  # [M, n, K, 1]
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
        s = k.new_zeros(m, kd, vd) if s0 is None else s0 / CENTRE
        states, fresh = [s], []
        for i in range(n):
            vn = torch.baddbmm(u[:, i], w[:, i], s, alpha=-1)
            s = torch.baddbmm(s, kt[:, i].mT, vn).mul_(end[:, i])
            states.append(s)
            fresh.append(vn)
        sh, vn = torch.stack(states, 1), torch.stack(fresh, 1)
        o = torch.matmul(qh, sh[:, :-1]).add_(torch.matmul(p, vn))
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(beta, up, down, end, qh, kh, kt, inv, p, rhs, uw, sh, vn)
            ctx.has_state = s0 is not None
        return o, s * CENTRE

    @staticmethod
    def backward(ctx: Any, do: Tensor, ds: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        beta, up, down, end, qh, kh, kt, inv, p, rhs, uw, sh, vn = ctx.saved_tensors
        n, vd = vn.shape[1], vn.shape[-1]
        before, after = sh[:, :-1], sh[:, 1:]
        w = uw[..., vd:]
        dp = torch.matmul(do, vn.mT).tril_()
        dvn_out = torch.matmul(p.mT, do)
        ds_out = torch.matmul(qh.mT, do)
        dafters, dms, dvns = [], [], []
        ds = ds * CENTRE
        for i in reversed(range(n)):
            dm = ds * end[:, i]
            dvn = torch.baddbmm(dvn_out[:, i], kt[:, i], dm)
            dafters.append(ds)
            dms.append(dm)
            dvns.append(dvn)
            ds = (dm + ds_out[:, i]).baddbmm_(w[:, i].mT, dvn, alpha=-1)
        dafter, dm, dvn = (torch.stack(x[::-1], 1) for x in (dafters, dms, dvns))
        dend = dafter.mul_(after).sum(-1).unsqueeze(2)  # gradient of G_last through e^(G_last): [M, n, 1, K]
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
        return dq, dk, drhs[..., :vd], dg, dbeta, ds / CENTRE if ctx.has_state else None
