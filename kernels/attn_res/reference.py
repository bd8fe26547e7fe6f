"""The equations in float64, and autograd."""

from __future__ import annotations

import torch
from torch import Tensor


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def mix_norm(sources: list[Tensor], key_weight: Tensor, query: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `kernels.attn_res.mix_norm`."""
    values = torch.stack([v.double() for v in sources])
    p = torch.softmax((_rms(values, key_weight.double(), eps) * query.double().view(-1)).sum(-1), 0)
    return _rms((p.unsqueeze(-1) * values).sum(0), weight.double(), eps).to(sources[0].dtype)
