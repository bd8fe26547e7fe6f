"""DAPO: PPO-clip with a range of its own above ("clip-higher")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.algorithms.loss.streams import LossResult, Streams, clipped_surrogate

if TYPE_CHECKING:
    from rl.config import AlgorithmConfig


def dapo(streams: Streams, config: AlgorithmConfig) -> LossResult:
    """-min(r A, clip(r, clip_low, clip_high) A), summed (arXiv 2503.14476; 0.8 and 1.28 there): rare tokens may grow.

    Its token-level mean holds for every loss here, its dynamic sampling is `algorithm.dynamic_sampling`.
    """
    return clipped_surrogate(streams, streams.ratio, config.clip_low, config.clip_high)
