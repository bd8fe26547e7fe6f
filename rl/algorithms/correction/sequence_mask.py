"""Sequence masking: off-policy failures are not learned from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.algorithms.correction.ratio import OffPolicy

if TYPE_CHECKING:
    from torch import Tensor

    from rl.config import AlgorithmConfig


def sequence_mask(off_policy: OffPolicy, config: AlgorithmConfig) -> Tensor:
    """Weight 0 for rows of NEGATIVE advantage whose geometric-mean ratio leaves [clip_low, clip_high], else 1.

    DeepSeek-V3.2: what the policy would no longer do teaches nothing when it failed. A row is one segment of a
    trajectory. Its tokens stay in the denominator, as in icepop.
    """
    tokens = off_policy.mask.sum(-1, keepdim=True).clamp_min(1)
    mean = (off_policy.log_ratio.sum(-1, keepdim=True) / tokens).exp()
    outside = (mean < config.clip_low) | (mean > config.clip_high)
    return off_policy.ratio.new_ones(off_policy.ratio.shape).masked_fill(outside & (off_policy.advantage < 0), 0.0)
