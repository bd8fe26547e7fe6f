"""Truncated importance sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.algorithms.correction.ratio import OffPolicy

if TYPE_CHECKING:
    from torch import Tensor

    from rl.config import AlgorithmConfig


def tis(off_policy: OffPolicy, config: AlgorithmConfig) -> Tensor:
    """min(proximal / behaviour, tis_cap) per token (Yao et al. 2025; V-trace's rho)."""
    return off_policy.ratio.clamp_max(config.tis_cap)
