"""Quantile balancing (Kimi K3, arXiv 2607.24653): the selection bias that gives every expert its share; no loss term.

For token i let alpha_i be the (k+1)-th largest biased score: expert j would be chosen at bias r_ij = alpha_i - s_ij.
Its k/E quantile over tokens is the bias at which expert j gets its even share. Replayed routes are not counted: the
bias had no effect on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from model.decoder import Policy

BINS = 1000


class Histogram(nn.Module):
    """Counts Long [E, 1000] of required biases over [b_min - 1, b_max + 1] for one router; filled while `enabled`."""

    def __init__(self, experts: int, k: int) -> None:
        super().__init__()
        self.enabled = False
        self.k = k
        self.counts: Tensor
        self.register_buffer("counts", torch.zeros(experts, BINS, dtype=torch.int64), persistent=False)

    @torch.no_grad()
    def add(self, scores: Tensor, alpha: Tensor, bias: Tensor, copies: Tensor | None = None) -> None:
        """Count real tokens: scores [N, E] unbiased, alpha [N] the (k+1)-th largest biased score, bias [E].

        copies Long [N]: a token that several rows share counts once for each of them, however rows are cut.
        """
        experts = bias.shape[0]
        low, width = _range(bias)
        bins = ((alpha.unsqueeze(1) - scores - low) / width).long().clamp_(0, BINS - 1)
        bins += torch.arange(experts, device=bins.device) * BINS
        each = torch.ones_like(bins) if copies is None else copies.unsqueeze(1).expand_as(bins)
        self.counts.view(-1).scatter_add_(0, bins.flatten(), each.flatten())


def _range(bias: Tensor) -> tuple[Tensor, Tensor]:
    """Lower edge and bin width of the histogram for a bias [E]; fixed until the bias changes."""
    low = bias.min() - 1.0
    return low, (bias.max() + 1.0 - low) / BINS


def enable_balancing(policy: Policy, on: bool = True) -> None:
    """Count (or stop counting) in forwards in training mode with gradients and without replayed routes."""
    for router in policy.routers():
        router.histogram.enabled = on


@torch.no_grad()
def balance_update(
    policy: Policy, all_reduce: Callable[[Tensor], object] | None = None, decay: float = 0.0
) -> list[float]:
    """Set every router's bias from the tokens counted since the last call, and forget them.

    `all_reduce` sums an int64 tensor over ranks in place; called once per layer on every rank. `decay` keeps that part
    of the old bias (moving average). A layer that counted nothing keeps its bias. Returns, per layer, the largest
    expert load divided by the mean load, as the old bias gave it (estimated from the histogram's tokens; NaN if none).
    """
    loads = []
    for router in policy.routers():
        counts, bias = router.histogram.counts, router.e_score_correction_bias
        if all_reduce is not None:
            all_reduce(counts)
        experts, total = bias.shape[0], int(counts[0].sum())
        if total == 0:
            loads.append(math.nan)
            continue
        low, width = _range(bias)
        cumulative = counts.cumsum(1)
        quantile = total * router.k / experts
        # Load now: tokens whose required bias lies below the expert's bias.
        edge = ((bias - low) / width).long().clamp_(0, BINS - 1)
        load = cumulative.gather(1, edge.unsqueeze(1)).double()
        loads.append(float(load.max() / load.mean().clamp_min(1e-30)))
        at = (cumulative >= math.ceil(quantile)).to(torch.int8).argmax(1, keepdim=True)
        inside = counts.gather(1, at)
        before = cumulative.gather(1, at) - inside
        part = ((quantile - before) / inside).clamp(0, 1)
        wanted = (low + (at + part) * width).squeeze(1).to(bias.dtype)
        wanted -= wanted.mean()
        bias.lerp_(wanted, 1.0 - decay)
        counts.zero_()
    return loads
