"""Muon for matrices, AdamW for the rest, in one torch optimizer.

Momentum is orthogonalised by Newton-Schulz (Jordan 2024) and scaled so that one learning rate serves both halves
(Moonlight, arXiv 2502.16982: update RMS 0.2). Stacked experts [E, out, in] are orthogonalised one by one. It needs
whole matrices, so ZeRO must not cut them: `learner.zero_stage` 0 (expert parallelism still shards the experts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from rl.muon import orthogonalise

UPDATE_RMS = 0.2
"""Moonlight's match to AdamW's usual update size."""
MOMENTUM = 0.95


class MuonAdamW(torch.optim.Optimizer):
    """Groups with `muon: True` hold matrices [..., M, N]; all others are stepped by AdamW."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], weight_decay: float):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": 1e-8, "weight_decay": weight_decay, "muon": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update from the gradients; a parameter without one is left alone, and so is its state."""
        if closure is not None:
            raise ValueError("MuonAdamW takes no closure")
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    update = self._muon(p, p.grad) if group["muon"] else self._adam(p, p.grad, group)
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])

    def _muon(self, p: Tensor, grad: Tensor) -> Tensor:
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
        momentum = state["momentum"].lerp_(grad, 1 - MOMENTUM)
        nesterov = grad.lerp(momentum, MOMENTUM)
        return orthogonalise(nesterov).mul_(UPDATE_RMS * max(p.shape[-2:]) ** 0.5)

    def _adam(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> Tensor:
        state = self.state[p]
        if not state:
            state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        beta1, beta2 = group["betas"]
        state["step"] += 1
        step = float(state["step"])
        mean = state["exp_avg"].lerp_(grad, 1 - beta1) / (1 - beta1**step)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2) / (1 - beta2**step)
        return mean / (square.sqrt() + group["eps"])
