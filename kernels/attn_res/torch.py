"""Attention over depth: the mix of block sums and the running sum, with the RMSNorm that always follows it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.node import call
from kernels.norm import norm_grad, rows_sum


class _MixNorm(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, key_weight: Tensor, query: Tensor, weight: Tensor, eps: float, *sources: Tensor
    ) -> Tensor:
        probe = (key_weight * query.view(-1)).to(sources[0].dtype)
        size = probe.shape[0]
        dots = torch.stack([torch.mv(v, probe) for v in sources])
        inverse = torch.rsqrt(
            torch.stack([torch.linalg.vector_norm(v, dim=-1) for v in sources]).square_().div_(size).add_(eps)
        )
        p = torch.softmax(dots * inverse, 0)
        mixed = sources[0] * p[0].unsqueeze(-1)
        for i in range(1, len(sources)):
            mixed.addcmul_(sources[i], p[i].unsqueeze(-1))
        out_inverse = torch.rsqrt(mixed.square().mean(-1, keepdim=True).add_(eps))
        normed = mixed.mul_(out_inverse)
        ctx.save_for_backward(key_weight, query, weight, probe, dots, inverse, p, normed, out_inverse, *sources)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        key_weight, query, weight, probe, dots, inverse, p, normed, out_inverse, *sources = ctx.saved_tensors
        size = probe.shape[0]
        dweight = rows_sum(grad * normed, weight)
        dmixed = norm_grad(grad * weight, normed, out_inverse)
        dp = torch.stack([(dmixed * v).sum(-1) for v in sources])
        ds = p * (dp - (p * dp).sum(0))
        along = ds * inverse  # gradient of dots
        shrink = along * dots * inverse.square() / -size  # coefficient of v through its own RMS
        dprobe = torch.stack([torch.mv(v.mT, along[i]) for i, v in enumerate(sources)]).sum(0)
        dsources = []
        for i, v in enumerate(sources):
            dv = dmixed * p[i].unsqueeze(-1)
            dv.addcmul_(v, shrink[i].unsqueeze(-1))
            dsources.append(dv.addr_(along[i], probe))
        return dprobe * query.view(-1), (dprobe * key_weight).view_as(query), dweight, None, *dsources


def mix_norm(sources: list[Tensor], key_weight: Tensor, query: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm(sum_i p_i v_i; weight) with p = softmax_i(query . RMSNorm(v_i; key_weight)) over sources v_i [N, H].

    No 1/sqrt(H); the values v_i are not normalised (Kimi K3, arXiv 2607.24653, eq. 8-10).
    key_weight, weight [H]; query [1, H]; out [N, H].
    """
    return call(_MixNorm, key_weight, query, weight, eps, *sources)
