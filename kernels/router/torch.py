"""Sorting: scores by torch's stable sort, pairs by a stable argsort."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Routed(NamedTuple):
    """What a router says of N tokens and E experts."""

    weights: Tensor
    """[N, k], of the chosen ones; the only one with a gradient."""
    chosen: Tensor
    """Long [N, k]: experts, best first."""
    scores: Tensor
    """[N, E]: sigmoid of the logits."""
    next: Tensor
    """[N]: the largest score + bias that the router did not choose itself; -inf if it chose all."""


def route(logits: Tensor, bias: Tensor, k: int, routes: Tensor | None, renormalise: bool, factor: float) -> Routed:
    """See `kernels.router.route`."""
    scores = torch.sigmoid(logits)
    detached = scores.detach()
    ranked, order = torch.sort(detached + bias, dim=-1, descending=True, stable=True)
    chosen = order[:, :k]
    if routes is not None:
        chosen = torch.where(routes >= 0, routes.to(chosen.dtype), chosen)
    picked = scores.gather(1, chosen)
    if renormalise:
        picked = picked / (picked.sum(-1, keepdim=True) + 1e-20)
    after = ranked[:, k] if k < ranked.shape[1] else ranked.new_full(ranked.shape[:1], -torch.inf)
    return Routed(picked * factor, chosen, detached, after)


def expert_order(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `kernels.router.expert_order`."""
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.shape[0], device=order.device)
    return order, inverse, torch.bincount(flat, minlength=experts)
