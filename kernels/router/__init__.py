"""Tokens to experts: the choice by score and bias with its weights, and the order of token-expert pairs by expert."""

from __future__ import annotations

from torch import Tensor, float32

from kernels.paths import pick
from kernels.router.torch import Routed

__all__ = ["Routed", "expert_order", "route"]


def route(
    logits: Tensor,
    bias: Tensor,
    k: int,
    routes: Tensor | None = None,
    renormalise: bool = True,
    factor: float = 1.0,
) -> Routed:
    """The k experts of the largest sigmoid(logits) + bias of each token, best first; weights from the scores alone.

    logits [N, E], bias [E] (selection only); routes Int or Long [N, k]: where >= 0, these experts instead. Equal scores
    go to the smaller index. `renormalise` divides a token's weights by their sum, `factor` multiplies them.
    Gradient to logits, through the weights. Raises ValueError unless 1 <= k <= E.
    """
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k = {k} of {logits.shape[1]} experts")
    path = pick("router", logits, "" if logits.dtype == float32 else f"logits of {logits.dtype}", proven=False)
    if path == "triton":
        from kernels.router import triton

        return triton.route(logits, bias, k, routes, renormalise, factor)
    if path == "reference":
        from kernels.router import reference

        return reference.route(logits, bias, k, routes, renormalise, factor)
    from kernels.router import torch

    return torch.route(logits, bias, k, routes, renormalise, factor)


def expert_order(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """(order [NK], inverse [NK], counts [E]): `order` sorts the pairs of chosen [N, K] by expert, stably.

    chosen Int or Long, each in 0 .. E - 1. All three are Long, on the Triton path int32.
    """
    path = pick("expert_order", chosen, proven=False)
    if path == "triton":
        from kernels.router import triton

        return triton.expert_order(chosen, experts)
    if path == "reference":
        from kernels.router import reference

        return reference.expert_order(chosen, experts)
    from kernels.router import torch

    return torch.expert_order(chosen, experts)
