"""A loop over the experts in float64, and autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernels.situ.reference import situ_glu


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
    wide, out = x.double(), torch.zeros_like(x, dtype=torch.float64)
    for e in range(w2.shape[0]):
        token, slot = (chosen == e).nonzero(as_tuple=True)
        y = _mlp(wide[token], w13[e], w2[e], betas, quantise)
        out = out.index_add(0, token, weights[token, slot].double().unsqueeze(1) * y)
    if norm is not None:
        out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + norm[1]) * norm[0].double()
    return out.to(x.dtype)


def grouped_situ_mlp(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    counts: Sequence[int],
    betas: tuple[float, float | None],
    quantise: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """See `kernels.experts.grouped_situ_mlp`."""
    parts = x.double().split(list(counts))
    out = [_mlp(part, w13[e], w2[e], betas, quantise) for e, part in enumerate(parts)]
    return torch.cat(out).to(x.dtype)


def _mlp(
    x: Tensor, w13: Tensor, w2: Tensor, betas: tuple[float, float | None], quantise: Callable[[Tensor], Tensor] | None
) -> Tensor:
    act = situ_glu(x @ w13.double().mT, *betas)
    if quantise is not None:
        act = act + (quantise(act.detach()) - act.detach())
    return act @ w2.double().mT
