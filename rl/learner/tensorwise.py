"""Momentum with one step size a tensor: a natural gradient whose Fisher matrix is one number for each tensor.

A policy gradient is nearly all noise. Its signal and its noise lie in the same directions, so a step along g / F (F the
mean squared gradient of the tensor) buys the most signal for a given change of the policy; Adam's g / sqrt(F) moves
tensors of large gradients (embeddings, short convolutions) too far, and its division element by element costs signal
too. `benchmarks/directions.py` measures all of them. Inside a matrix, taking all singular directions alike
(`orthogonal.py`) keeps what all samples agree on, the style of an answer say, from outrunning what they teach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl.learner.distributed import sum_over_ranks
from rl.learner.gradients import Piece

DAMPING = 1e-5
"""Share of the mean over all weights that is added to every mean square: a tensor whose gradient is rounding alone does
not move. Those of tensors that learn are at least a hundred times larger."""


class TensorScale:
    """Divides every piece of the reduced gradient by the running mean square of its whole tensor, alike on all ranks.

    Results are scaled so that a step's root mean square is about 1 over all weights, as Adam's is: `lr` keeps its
    meaning, and the size of the gradient none. names: every trained parameter's name, equal on all ranks; the experts
    of all ranks are one tensor. total: sums a tensor over the ranks.
    """

    def __init__(
        self, names: Mapping[Tensor, str], decay: float, total: Callable[[Tensor], Tensor] = sum_over_ranks
    ) -> None:
        self.names, self.decay, self._total = dict(names), decay, total
        self.steps = 0
        self.square: dict[str, float] = dict.fromkeys(sorted(set(self.names.values())), 0.0)
        self._rms = dict(self.square)

    def apply(self, pieces: Iterable[Piece]) -> None:
        """Take in this step's gradient and scale it in place (a collective)."""
        pieces = list(pieces)
        rows = {name: i for i, name in enumerate(self.square)}
        sums = torch.zeros(len(rows), 2, dtype=torch.float64)
        for piece in pieces:
            if piece.parameter is not None:
                norm = float(torch.linalg.vector_norm(piece.gradient, dtype=torch.float64))
                parts = torch.tensor([norm**2, piece.gradient.numel()], dtype=torch.float64)
                sums[rows[self.names[piece.parameter]]] += parts / piece.holders
        sums = self._total(sums)
        self.steps += 1
        for name, i in rows.items():
            mean = float(sums[i, 0] / sums[i, 1]) if sums[i, 1] else 0.0
            self.square[name] = self.decay * self.square[name] + (1 - self.decay) * mean
        filled = 1 - self.decay**self.steps
        count = {name: float(sums[i, 1]) for name, i in rows.items()}
        weights = sum(count.values())
        square = {name: value / filled for name, value in self.square.items()}
        floor = DAMPING * sum(count[name] * f for name, f in square.items()) / max(1.0, weights)
        if floor == 0.0:  # nothing has had a gradient yet
            return
        size = sum(count[name] * f**0.5 / (f + floor) for name, f in square.items()) / weights
        factor = {name: 1 / ((f + floor) * size) for name, f in square.items()}
        self._rms = {name: square[name] ** 0.5 * factor[name] for name in square}
        for piece in pieces:
            if piece.parameter is not None:
                piece.gradient.mul_(factor[self.names[piece.parameter]])

    def forget(self) -> None:
        """As before the first step."""
        self.load_state_dict({"steps": 0, "square": dict.fromkeys(self.square, 0.0)})

    def rms(self, parameter: Tensor) -> float:
        """Root mean square that the scaled gradients of a parameter's tensor have had; 0 before the first gradient."""
        return self._rms[self.names[parameter]]

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state, the same on every rank and for every number of ranks."""
        return {"steps": self.steps, "square": dict(self.square)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`; raises ValueError where it is of other parameters."""
        if set(state["square"]) != set(self.square):
            odd = sorted(set(state["square"]) ^ set(self.square))[:3]
            raise ValueError(f"the optimizer's mean squares are of other parameters: {odd}")
        self.steps = state["steps"]
        self.square = {name: float(state["square"][name]) for name in self.square}


class Momentum(torch.optim.Optimizer):
    """p -= lr x (bias-corrected running mean of the gradient, plus weight_decay x p): Adam without its division.

    `along`, if it is set, maps (p, that mean) to the direction of the step.
    """

    along: Callable[[Tensor, Tensor], Tensor] | None = None

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, beta: float, weight_decay: float) -> None:
        super().__init__(groups, {"lr": lr, "beta": beta, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update from the gradients; a parameter without one is left alone, and so is its state."""
        if closure is not None:
            raise ValueError("Momentum takes no closure")
        for group in self.param_groups:
            beta = group["beta"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p)}
                state["step"] += 1
                mean = state["exp_avg"].lerp_(p.grad, 1 - beta) / (1 - beta ** float(state["step"]))
                if self.along is not None:
                    mean = self.along(p, mean)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(mean, alpha=-group["lr"])
