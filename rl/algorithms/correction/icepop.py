"""IcePop: tokens on which learner and engine disagree too much are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.algorithms.correction.ratio import OffPolicy

if TYPE_CHECKING:
    from torch import Tensor

    from rl.config import AlgorithmConfig


def icepop(off_policy: OffPolicy, config: AlgorithmConfig) -> Tensor:
    """proximal / behaviour inside [clip_low, clip_high], 0 outside (Ling team, arXiv 2510.18855).

    A token left out stays in the denominator, which is fixed before the forward pass: all trainable tokens.
    """
    ratio = off_policy.ratio
    inside = (ratio >= config.clip_low) & (ratio <= config.clip_high)
    return ratio.masked_fill(~inside, 0.0)
