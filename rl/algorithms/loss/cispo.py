"""CISPO: the ratio is clipped as a weight, no token loses its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.algorithms.loss.streams import LossResult, Streams

if TYPE_CHECKING:
    from rl.config import AlgorithmConfig


def cispo(streams: Streams, config: AlgorithmConfig) -> LossResult:
    """-stop_gradient(clip(r, clip_low, clip_high)) A log pi, summed (MiniMax-M1, arXiv 2506.13585)."""
    seen = streams.ratio.detach()
    token_loss = -seen.clamp(config.clip_low, config.clip_high) * streams.advantage * streams.current
    return streams.result(token_loss, seen, seen < config.clip_low, seen > config.clip_high)
