"""The default: a baseline in which every sample votes with its length."""

from __future__ import annotations

import numpy as np

from rl.stats import GroupStats


def length_weighted(stats: GroupStats) -> np.ndarray:
    """R_i - b with b = sum R_j L_j / sum L_j (OPO, arXiv 2505.23585; SWE-2): the baseline of least gradient variance
    where a sample's gradient grows with its length. No division by a deviation. Returns float64 [G].
    """
    return stats.centred(stats.length_weighted_mean)
