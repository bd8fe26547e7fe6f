"""What a loss sees: per-token streams, and what it gives back. Tensor methods only: importing it costs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from rl.config import AlgorithmConfig

MAX_LOG_RATIO = 20.0
"""exp(20) = 5e8: beyond it a ratio is cut, so that exp stays finite in float32; every clip range lies far inside."""


@dataclass(frozen=True)
class Streams:
    """Per-token streams of one micro-batch, all of the SAME shape [B, T] (rows are sequences, padded with mask 0).

    `current` float32 carries the gradient. `anchor` is the log-prob that ratios are taken against: the behaviour's, or
    the proximal policy's (the weights before this step) where a correction carries the rest. `weight` multiplies each
    token's loss. What stands under mask 0 is set to 0 here, so that not even a NaN there reaches a loss or a gradient.
    Raises ValueError if shapes differ: nothing may broadcast.
    """

    advantage: Tensor
    behaviour: Tensor
    anchor: Tensor
    current: Tensor
    mask: Tensor
    weight: Tensor

    def __post_init__(self) -> None:
        want = tuple(self.current.shape)
        if len(want) != 2:
            raise ValueError(f"streams have two axes [B, T], not shape {want}")
        for name in ("advantage", "behaviour", "anchor", "mask", "weight"):
            if tuple(getattr(self, name).shape) != want:
                raise ValueError(f"stream {name} has shape {tuple(getattr(self, name).shape)}, current has {want}")
        for name in ("advantage", "behaviour", "anchor", "current", "weight"):
            object.__setattr__(self, name, getattr(self, name).masked_fill(~self.mask, 0.0))

    def log_ratio(self, to: Tensor) -> Tensor:
        """current - to; exactly 0 where masked."""
        return self.current - to

    @property
    def ratio(self) -> Tensor:
        """exp(current - anchor), cut at exp(+-MAX_LOG_RATIO); 1 where masked."""
        return self.log_ratio(self.anchor).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()

    def total(self, token_loss: Tensor) -> Tensor:
        """Sum of weight * token_loss over the mask (the weight is 0 elsewhere)."""
        return (token_loss * self.weight).sum()

    def result(self, token_loss: Tensor, ratio: Tensor, cut_low: Tensor, cut_high: Tensor) -> LossResult:
        """The loss summed over the mask, with what the metrics need."""
        return LossResult(self.total(token_loss), ratio.detach(), cut_low & self.mask, cut_high & self.mask)


@dataclass(frozen=True)
class LossResult:
    """Summed loss (the caller divides by ONE global token count), and which tokens the clip cut off below and above.

    ratio float32 [B, T] without gradient; cut_low, cut_high bool [B, T], false where masked.
    """

    loss: Tensor
    ratio: Tensor
    cut_low: Tensor
    cut_high: Tensor


class Loss(Protocol):
    """One policy loss."""

    def __call__(self, streams: Streams, config: AlgorithmConfig) -> LossResult:
        """Sum over the tokens of the mask."""
        ...


def clipped_surrogate(streams: Streams, ratio: Tensor, low: float, high: float) -> LossResult:
    """-min(r A, clip(r, low, high) A), summed: PPO's pessimistic bound, shared by ppo_clip, dapo and gspo.

    A token's gradient is cut only on the side where the clip binds: above for A > 0, below for A < 0.
    """
    advantage = streams.advantage
    bound = (ratio * advantage).minimum(ratio.clamp(low, high) * advantage)
    return streams.result(-bound, ratio, (ratio < low) & (advantage < 0), (ratio > high) & (advantage > 0))
