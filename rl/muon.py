"""Muon for matrices and stacks of matrices: momentum, then the nearest orthogonal matrix (K. Jordan, 2024)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz iteration: five steps bring all singular values into about 0.7 to 1.2."""


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Nearest orthogonal matrices of [..., R, C], approximately, in its dtype; a zero matrix stays zero."""
    a, b, c = _QUINTIC
    x = g.reshape(-1, *g.shape[-2:])
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).reshape(g.shape)


class Muon(torch.optim.Optimizer):
    """Each matrix moves by lr x sqrt(max(1, rows / columns)) x the orthogonalised Nesterov momentum of its gradient.

    Parameters are [R, C], or stacks [N, R, C] of matrices that move independently (experts). All matrices of one shape
    are orthogonalised in one batch: few kernels a step. Raises ValueError for a parameter that is no matrix.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        parameters = list(parameters)
        if any(p.ndim not in (2, 3) for p in parameters):
            raise ValueError("Muon is for matrices and stacks of matrices")
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; parameters without a gradient stay."""
        for group in self.param_groups:
            moving = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in moving if p.grad is not None]
            for p in moving:
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            momenta = [self.state[p]["momentum"] for p in moving]
            torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
            directions = torch._foreach_lerp(grads, momenta, group["momentum"])
            torch._foreach_add_(moving, _updates(directions), alpha=-group["lr"])


def orthogonalise_all(matrices: Iterable[Tensor]) -> list[Tensor]:
    """`orthogonalise` of each of them, in order; one batch for each shape."""
    matrices = list(matrices)
    shapes: dict[tuple[int, ...], list[int]] = {}
    for at, m in enumerate(matrices):
        shapes.setdefault(tuple(m.shape[-2:]), []).append(at)
    out = list(matrices)
    for (rows, columns), places in shapes.items():
        stacks = [matrices[at].reshape(-1, rows, columns) for at in places]
        batch = orthogonalise(torch.cat(stacks))
        for at, update in zip(places, batch.split([len(s) for s in stacks]), strict=True):
            out[at] = update.view_as(matrices[at])
    return out


def _updates(directions: Iterable[Tensor]) -> list[Tensor]:
    """Orthogonalised and scaled directions, in order."""
    done = orthogonalise_all(directions)
    return [d.mul_(max(1.0, d.shape[-2] / d.shape[-1]) ** 0.5) for d in done]
