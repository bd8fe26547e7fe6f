"""PPO-clip with its symmetric range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.algorithms.loss.streams import LossResult, Streams, clipped_surrogate

if TYPE_CHECKING:
    from rl.config import AlgorithmConfig


def ppo_clip(streams: Streams, config: AlgorithmConfig) -> LossResult:
    """-min(r A, clip(r, 1 - eps, 1 + eps) A), summed (arXiv 1707.06347).

    eps = 1 - clip_low. Raises ValueError unless clip_high = 1 + eps: with a higher one the loss is called dapo.
    """
    eps = 1.0 - config.clip_low
    if abs(config.clip_high - (1.0 + eps)) > 1e-9:
        raise ValueError(
            f"ppo_clip is symmetric: with clip_low {config.clip_low} set clip_high to {1 + eps:g}, or use loss=dapo"
        )
    return clipped_surrogate(streams, streams.ratio, config.clip_low, config.clip_high)
