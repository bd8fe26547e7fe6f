"""GSPO: one importance ratio per sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.algorithms.loss.streams import MAX_LOG_RATIO, LossResult, Streams, clipped_surrogate

if TYPE_CHECKING:
    from rl.config import AlgorithmConfig


def gspo(streams: Streams, config: AlgorithmConfig) -> LossResult:
    """The clipped surrogate with s = exp(mean over the row's tokens of log r) in place of each token's ratio, summed.

    arXiv 2507.18071; a row is one segment of a trajectory. The ranges there are tiny (3e-4, 4e-4): set clip_low and
    clip_high accordingly. Summed over tokens, so a row weighs by its length, as in every loss here.
    """
    tokens = streams.mask.sum(-1, keepdim=True).clamp_min(1)
    mean = streams.log_ratio(streams.anchor).sum(-1, keepdim=True) / tokens
    ratio = mean.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().expand_as(streams.current)
    return clipped_surrogate(streams, ratio, config.clip_low, config.clip_high)
