"""The default: a two-sided ratio mask with a squared-log regulariser (Kimi K2.5, arXiv 2602.02276)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.algorithms.loss.streams import LossResult, Streams

if TYPE_CHECKING:
    from rl.config import AlgorithmConfig


def two_sided(streams: Streams, config: AlgorithmConfig) -> LossResult:
    """-clip(r, clip_low, clip_high) A + kl_tau (log pi/pi_behaviour)^2, summed.

    Outside [clip_low, clip_high] the policy gradient of a token is 0 WHATEVER the sign of its advantage (PPO is not
    bounded above for negative ones); the regulariser keeps pulling such tokens back.
    """
    ratio = streams.ratio
    pull = streams.log_ratio(streams.behaviour).square()
    token_loss = config.kl_tau * pull - ratio.clamp(config.clip_low, config.clip_high) * streams.advantage
    return streams.result(token_loss, ratio, ratio < config.clip_low, ratio > config.clip_high)
