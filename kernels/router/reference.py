"""Python's own sort, token after token, on scores in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.router.torch import Routed


def route(logits: Tensor, bias: Tensor, k: int, routes: Tensor | None, renormalise: bool, factor: float) -> Routed:
    """See `kernels.router.route`; everything but `chosen` is float64."""
    scores = torch.sigmoid(logits.double())
    chosen, after = [], []
    for n, biased in enumerate((scores + bias.double()).tolist()):
        ranking = sorted(range(len(biased)), key=lambda e: -biased[e])
        told = [-1] * k if routes is None else routes[n].tolist()
        chosen.append([mine if given < 0 else given for mine, given in zip(ranking, told, strict=False)])
        after.append(biased[ranking[k]] if k < len(ranking) else -torch.inf)
    index = torch.tensor(chosen, dtype=torch.int64, device=logits.device).view(-1, k)
    weights = scores.gather(1, index)
    if renormalise:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    return Routed(weights * factor, index, scores.detach(), torch.tensor(after).to(scores))


def expert_order(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `kernels.router.expert_order`."""
    flat = chosen.flatten().tolist()
    order = sorted(range(len(flat)), key=lambda i: flat[i])
    inverse = sorted(range(len(flat)), key=lambda i: order[i])
    new = lambda x: torch.tensor(x, dtype=torch.int64, device=chosen.device)
    return new(order), new(inverse), new([flat.count(e) for e in range(experts)])
