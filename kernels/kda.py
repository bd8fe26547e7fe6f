"""Kimi Delta Attention's recurrence: a float64-capable step-by-step reference, one decode step, and the chunk form.

    S_t = (I - beta k k^T) Diag(exp g) S_{t-1} + beta k v^T ;  o_t = S_t^T q_t        (K3 report eq. 1)

State layout is [..., K, V] (key axis first) everywhere. q and k come l2-normalised, q scaled. The log-decay g lies in
[-5, 0]: over a tile of 16 tokens |cumsum g| <= 80, so with the decay split evenly around the middle of the tile every
factor stays within e^+-40 and all tiles are plain matrix products, finite forwards and backwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.node import call

TILE = 16


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
    """Tiles [M, n, 16, .] of M = batch x heads. With G = cumsum g in the tile and c = G_last / 2 (all per key channel):

    q^ = q e^(G-c), k^ = k e^(G-c), k~ = k e^(c-G), d = e^c;  A = strict_lower(beta k^ k~^T);  P = lower(q^ k~^T)
    [U | W] = (I + A)^-1 beta [v | k^];  then, tile after tile:  S^ = d S;  v' = U - W S^;  S = d (S^ + k~^T v')
    o = q^ S^ + P v'.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, s0: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        m, n, c, kd = k.shape
        vd = v.shape[-1]
        decay = g.cumsum(2)
        half = decay[:, :, -1:] * 0.5
        up = (decay - half).exp_()
        down = up.reciprocal()
        d = half.exp().transpose(2, 3)  # [M, n, K, 1]
        qh, kh, kt = q * up, k * up, k * down
        a = torch.matmul(kh, kt.mT).mul_(beta).tril_(-1)
        p = torch.matmul(qh, kt.mT).tril_()
        rhs = torch.cat((v, kh), -1)
        eye = torch.eye(c, dtype=a.dtype, device=a.device)
        inv = torch.linalg.solve_triangular(a, eye, upper=False, unitriangular=True)
        uw = torch.matmul(inv, rhs * beta)
        u, w = uw[..., :vd], uw[..., vd:]
        s = k.new_zeros(m, kd, vd) if s0 is None else s0
        states, scaled, fresh = [], [], []
        ktt = kt.mT
        for i in range(n):
            states.append(s)
            sh = s * d[:, i]
            vn = torch.baddbmm(u[:, i], w[:, i], sh, alpha=-1)
            s = torch.baddbmm(sh, ktt[:, i], vn).mul_(d[:, i])
            scaled.append(sh)
            fresh.append(vn)
        sh, vn = torch.stack(scaled, 1), torch.stack(fresh, 1)
        o = torch.matmul(qh, sh).add_(torch.matmul(p, vn))
        if any(ctx.needs_input_grad):
            states.append(s)
            ctx.save_for_backward(beta, up, down, d, qh, kh, kt, inv, p, rhs, uw, sh, vn, torch.stack(states, 1))
            ctx.has_state = s0 is not None
        return o, s

    @staticmethod
    def backward(ctx: Any, do: Tensor, ds: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        beta, up, down, d, qh, kh, kt, inv, p, rhs, uw, sh, vn, states = ctx.saved_tensors
        n, vd = sh.shape[1], sh.shape[-1]
        w = uw[..., vd:]
        dp = torch.matmul(do, vn.mT).tril_()
        dvn_out = torch.matmul(p.mT, do)
        dsh_out = torch.matmul(qh.mT, do)
        dms, dshs, dvns = [], [], []
        dlast = ds
        for i in reversed(range(n)):
            dm = ds * d[:, i]
            dvn = torch.baddbmm(dvn_out[:, i], kt[:, i], dm)
            dsh = (dm + dsh_out[:, i]).baddbmm_(w[:, i].mT, dvn, alpha=-1)
            ds = dsh * d[:, i]
            dms.append(dm)
            dshs.append(dsh)
            dvns.append(dvn)
        dm, dsh, dvn = (torch.stack(x[::-1], 1) for x in (dms, dshs, dvns))
        # d(log d), from S^ = d S and S' = d (S^ + ...): the state after tile i is states[:, i + 1].
        dsn = torch.cat((dsh[:, 1:] * d[:, 1:], dlast.unsqueeze(1)), 1)
        dhalf = (dsh * sh).sum(-1).add_((dsn * states[:, 1:]).sum(-1)).unsqueeze(2)  # [M, n, 1, K]
        duw = torch.cat((dvn, torch.matmul(dvn, sh.mT).neg_()), -1)
        drhs = torch.matmul(inv.mT, duw)
        da = torch.matmul(drhs, uw.mT).tril_(-1).neg_()
        dbeta = (drhs * rhs).sum(-1, keepdim=True)
        dkk = da * beta
        # a = beta * kk: recover kk's share of the gradient of beta without dividing by a beta that may be zero.
        dbeta += (da * torch.matmul(kh, kt.mT)).sum(-1, keepdim=True)
        drhs *= beta
        dqh = torch.matmul(dp, kt).add_(torch.matmul(do, sh.mT))
        dkh = torch.matmul(dkk, kt).add_(drhs[..., vd:])
        dkt = torch.matmul(dp.mT, qh).add_(torch.matmul(dkk.mT, kh)).add_(torch.matmul(vn, dm.mT))
        dq = dqh * up
        dk = torch.addcmul(dkh * up, dkt, down)
        # e = G - c: d/de = q^ dq^ + k^ dk^ - k~ dk~, then c = G_last / 2 and G = cumsum g.
        de = torch.addcmul((qh * dqh).addcmul_(kh, dkh), kt, dkt, value=-1)
        # dg_t = sum_{i >= t} de_i + (dhalf - sum de) / 2
        dg = de - de.cumsum(2) + (dhalf + de.sum(2, keepdim=True)).mul_(0.5)
        return dq, dk, drhs[..., :vd], dg, dbeta, ds if ctx.has_state else None
