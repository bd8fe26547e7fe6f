"""Dr. GRPO: centred on the group's mean, never divided by a deviation."""

from __future__ import annotations

import numpy as np

from rl.stats import GroupStats


def dr_grpo(stats: GroupStats) -> np.ndarray:
    """R_i - mean (arXiv 2503.20783): no bias to groups of small deviation. Returns float64 [G].

    Its other half, no division by a sample's own length, holds for every loss here: the denominator is global.
    """
    return stats.centred(stats.mean)
