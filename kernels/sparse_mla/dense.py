"""Causal attention of the last T of n tokens over latents, block by block: no [T, n, heads] tensor, either direction.

Online softmax forwards; backwards the probabilities are made again from each query's log-sum (FlashAttention-2,
arXiv 2307.08691). Keys and values are expanded from the latents one block at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.node import call

KEYS = {True: 512, False: 4096}
"""Keys of a block, on a CPU or elsewhere."""
CELLS = {True: 2**19, False: 2**28}
"""Scores at once: 2 MiB of float32 on a CPU, so that they stay in its cache; 1 GiB elsewhere."""


class _Flash(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, latents: Tensor, weight: Tensor, scale: float) -> Tensor:  # type: ignore[override]
        tokens, heads, width = q.shape
        q = q.transpose(0, 1).contiguous()
        vd = weight.shape[1] - (width - (latents.shape[1] - weight.shape[2]))
        out, total = q.new_zeros(heads, tokens, vd), q.new_zeros(heads, tokens, 1)
        top = q.new_full((heads, tokens, 1), -torch.inf)
        for keys in _blocks(latents):
            k, v = _expand(latents[keys], weight, vd)
            for part, s in _scores(q, k, keys, latents.shape[0], scale):
                # Every query sees the first key, so the maximum is finite from the first block on.
                higher = torch.maximum(top[:, part], s.amax(-1, keepdim=True))
                p, shrink = s.sub_(higher).exp_(), torch.exp(top[:, part] - higher)
                top[:, part] = higher
                total[:, part] = total[:, part] * shrink + p.sum(-1, keepdim=True)
                out[:, part] = torch.baddbmm(out[:, part] * shrink, p, v)
        out /= total
        ctx.save_for_backward(q, latents, weight, out, top + total.log())
        ctx.scale = scale
        return out.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, latents, weight, out, log_sum = ctx.saved_tensors
        scale, vd, rank = ctx.scale, out.shape[-1], weight.shape[2]
        nope = weight.shape[1] - vd
        grad = grad.transpose(0, 1).contiguous()
        along = (grad * out).sum(-1, keepdim=True)
        dq, dlatents, dweight = torch.zeros_like(q), torch.empty_like(latents), torch.zeros_like(weight)
        for keys in _blocks(latents):
            block = latents[keys]
            k, v = _expand(block, weight, vd)
            dk, dv = torch.zeros_like(k), torch.zeros_like(v)
            for part, s in _scores(q, k, keys, latents.shape[0], scale):
                p = s.sub_(log_sum[:, part]).exp_()
                dv.baddbmm_(p.mT, grad[:, part])
                ds = torch.bmm(grad[:, part], v.mT).sub_(along[:, part]).mul_(p).mul_(scale)
                dq[:, part] += torch.bmm(ds, k)
                dk.baddbmm_(ds.mT, q[:, part])
            dexpanded = torch.cat((dk[..., :nope], dv), -1)  # [heads, S, nope + v]
            dlatents[keys, :rank] = torch.bmm(dexpanded, weight).sum(0)
            dlatents[keys, rank:] = dk[..., nope:].sum(0)
            dweight += torch.matmul(dexpanded.mT, block[:, :rank])
        return dq.transpose(0, 1), dlatents, dweight, None


def _blocks(latents: Tensor) -> list[slice]:
    size = KEYS[latents.device.type == "cpu"]
    return [slice(i, min(i + size, latents.shape[0])) for i in range(0, latents.shape[0], size)]


def _expand(latents: Tensor, weight: Tensor, vd: int) -> tuple[Tensor, Tensor]:
    """Latents [S, D] as keys [heads, S, nope + pe] and values [heads, S, v]."""
    rank = weight.shape[2]
    k, v = torch.matmul(latents[:, :rank], weight.mT).split((weight.shape[1] - vd, vd), -1)
    return torch.cat((k, latents[:, rank:].expand(k.shape[0], -1, -1)), -1), v.contiguous()


def _scores(q: Tensor, k: Tensor, keys: slice, n: int, scale: float) -> Iterator[tuple[slice, Tensor]]:
    """Queries in parts with their scores [heads, t, S], -inf for later keys; parts that see no key are left out."""
    heads, tokens, _ = q.shape
    start = n - tokens
    step = max(1, CELLS[q.device.type == "cpu"] // (heads * k.shape[1]))
    for a in range(max(0, keys.start - start), tokens, step):
        part = slice(a, min(a + step, tokens))
        s = torch.bmm(q[:, part], k.mT).mul_(scale)
        if keys.stop > start + a + 1:
            at = torch.arange(start + a, start + part.stop, device=q.device).unsqueeze(1)
            s.masked_fill_(torch.arange(keys.start, keys.stop, device=q.device) > at, -torch.inf)
        yield part, s


def latent_attend(q: Tensor, latents: Tensor, weight: Tensor, scale: float) -> Tensor:
    """Dense causal attention of q [T, heads, nope + pe], the last T of n tokens, over latents [n, rank + pe].

    weight [heads, nope + v, rank] expands a latent's first `rank` columns into each head's key part and value; the
    other `pe` columns are key dims that all heads share. Returns [T, heads, v].
    """
    return call(_Flash, q, latents, weight, scale)
