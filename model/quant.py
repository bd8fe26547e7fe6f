"""What is fake-quantised: routed experts' weights (MXFP4) and their GEMMs' inputs (MXFP8), no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels import mx

_ACTIVATIONS = {"mxfp8": mx.MXFP8, "mxfp8_e5m2": mx.MXFP8_E5M2}


@dataclass(frozen=True)
class QuantSpec:
    """Which roundings are on; the same object serves learner, engine and exporter. Raises ValueError otherwise."""

    expert_weights: str = "mxfp4"
    """mxfp4 or none."""
    expert_activations: str = "mxfp8"
    """mxfp8 (E4M3), mxfp8_e5m2 or none."""
    scale_rule: str = "even"
    """even (compressed-tensors) or floor (OCP)."""

    def __post_init__(self) -> None:
        allowed = {
            "expert_weights": ("mxfp4", "none"),
            "expert_activations": (*_ACTIVATIONS, "none"),
            "scale_rule": ("even", "floor"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {values}")

    @property
    def weight_rounding(self) -> Callable[[Tensor], Tensor] | None:
        """Rounds expert weights along their input axis (the last one), or None."""
        return partial(mx.fake_quantise_mxfp4, rule=self.scale_rule) if self.expert_weights == "mxfp4" else None

    @property
    def activation_rounding(self) -> Callable[[Tensor], Tensor] | None:
        """Rounds expert inputs along the last axis, or None."""
        fmt = self.activation_format
        return None if fmt is None else partial(mx.fake_quantise_mxfp8, rule=self.scale_rule, fmt=fmt)

    @property
    def activation_format(self) -> mx.Format | None:
        """The element format of expert inputs, or None."""
        return _ACTIVATIONS.get(self.expert_activations)


class _Round(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rounding: Any) -> Tensor:  # type: ignore[override]
        return rounding(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad, None


def straight_through_round(x: Tensor, rounding: Callable[[Tensor], Tensor] | None) -> Tensor:
    """rounding(x) forwards, identity backwards; x itself if rounding is None."""
    return x if rounding is None else _Round.apply(x, rounding)


@torch.no_grad()
def weight_error(x: Tensor, spec: QuantSpec) -> float:
    """Relative RMS error that the weight rounding makes on x; a metric."""
    rounding = spec.weight_rounding
    return 0.0 if rounding is None else float((rounding(x) - x).norm() / x.norm().clamp_min(1e-30))
