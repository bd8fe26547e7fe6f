"""Muon for matrices and stacks of matrices: momentum, then the nearest orthogonal matrix (K. Jordan, 2024)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz iteration: five steps bring all singular values into about 0.7 to 1.2."""


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Nearest orthogonal matrices of a stack [N, R, C], approximately; a zero matrix stays zero."""
    a, b, c = _QUINTIC
    wide = g.shape[-2] <= g.shape[-1]
    x = g if wide else g.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Each matrix moves by lr x sqrt(max(1, rows / columns)) x the orthogonalised Nesterov momentum of its gradient.

    Parameters are [R, C], or stacks [N, R, C] of matrices that move independently (experts). Matrices of one shape are
    orthogonalised in one batch. Raises ValueError for a parameter that is no matrix.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        parameters = list(parameters)
        if any(p.ndim not in (2, 3) for p in parameters):
            raise ValueError("Muon is for matrices and stacks of matrices")
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update; parameters without a gradient stay."""
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault((p.shape[-2], p.shape[-1]), []).append(p)
            for (rows, columns), same in shapes.items():
                directions = [self._direction(p, group["momentum"]).reshape(-1, rows, columns) for p in same]
                update = orthogonalise(torch.cat(directions)) * (-group["lr"] * max(1.0, rows / columns) ** 0.5)
                for p, u in zip(same, update.split([len(d) for d in directions]), strict=True):
                    p.add_(u.view_as(p))

    def _direction(self, p: nn.Parameter, momentum: float) -> Tensor:
        """Nesterov momentum of the gradient."""
        assert p.grad is not None
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
        state["momentum"].lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(state["momentum"], momentum)
