"""Several projections of one input as one matrix product; joined once per weight change, live where gradients are."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Joined:
    """The stacked weights [sum of outputs, ...] of modules that read the same input.

    Where gradients are enabled they are joined anew (gradients reach each module's weight); elsewhere the joint matrix
    of the last `refresh` is used. Raises RuntimeError there if a weight changed since.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self._modules = modules
        self._joint: Tensor | None = None
        self._versions: list[int] = []

    def _weights(self) -> list[Tensor]:
        return [m.weight for m in self._modules]  # type: ignore[misc]

    def refresh(self) -> None:
        """Join the present weights for calls without gradients."""
        self._joint = torch.cat([w.detach() for w in self._weights()])
        self._versions = [w._version for w in self._weights()]

    def __call__(self) -> Tensor:
        weights = self._weights()
        if torch.is_grad_enabled() or self._joint is None:
            return torch.cat(weights)
        if any(w._version > v for w, v in zip(weights, self._versions, strict=True)):
            raise RuntimeError("weights changed: call refresh_quantized() before the next forward")
        return self._joint


class Derived(nn.Module):
    """A module that keeps something computed from its weights."""

    def refresh(self) -> None:
        """Recompute it; called by Policy.refresh_quantized after every change of the weights."""
        raise NotImplementedError
