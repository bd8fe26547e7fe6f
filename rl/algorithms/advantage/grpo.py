"""GRPO: centred on the group's mean, divided by the group's deviation."""

from __future__ import annotations

import numpy as np

from rl.stats import GroupStats


def grpo(stats: GroupStats) -> np.ndarray:
    """(R_i - mean) / std with ddof 1 (arXiv 2402.03300); 0 where all rewards are equal. Returns float64 [G]."""
    centred = stats.centred(stats.mean)
    return centred / stats.std if stats.signal else centred
