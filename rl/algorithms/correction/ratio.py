"""The ratio that corrections weigh by, their interface, and the correction that does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rl.algorithms.loss.streams import MAX_LOG_RATIO

if TYPE_CHECKING:
    from torch import Tensor

    from rl.config import AlgorithmConfig


@dataclass(frozen=True)
class OffPolicy:
    """Log-probs [B, T] of the sampled tokens under the policy that sampled them and under the weights before this step.

    No gradient flows. Raises ValueError if shapes differ.
    """

    behaviour: Tensor
    proximal: Tensor
    advantage: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        for name in ("proximal", "advantage", "mask"):
            shape, want = tuple(getattr(self, name).shape), tuple(self.behaviour.shape)
            if shape != want:
                raise ValueError(f"{name} has shape {shape}, behaviour has {want}")

    @property
    def log_ratio(self) -> Tensor:
        """proximal - behaviour; exactly 0 where masked."""
        return (self.proximal.detach() - self.behaviour).masked_fill(~self.mask, 0.0)

    @property
    def ratio(self) -> Tensor:
        """exp of it, cut at exp(+-MAX_LOG_RATIO)."""
        return self.log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


class Correction(Protocol):
    """One correction."""

    def __call__(self, off_policy: OffPolicy, config: AlgorithmConfig) -> Tensor:
        """The weight of every token, float32 [B, T], no gradient; 0 takes a token out of the numerator only."""
        ...


def none(off_policy: OffPolicy, config: AlgorithmConfig) -> Tensor:
    """Weight 1 everywhere."""
    return off_policy.ratio.new_ones(off_policy.ratio.shape)
