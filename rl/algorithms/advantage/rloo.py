"""RLOO: every sample is compared with the others of its group."""

from __future__ import annotations

import numpy as np

from rl.stats import GroupStats


def rloo(stats: GroupStats) -> np.ndarray:
    """R_i - mean of the OTHER valid samples (arXiv 2402.14740): an unbiased baseline. Returns float64 [G]."""
    return stats.centred(stats.leave_one_out_mean)
