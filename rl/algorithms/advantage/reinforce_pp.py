"""REINFORCE++ with a group baseline: centred in the group, whitened over the whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl.stats import GroupStats


def reinforce_pp(stats: GroupStats) -> np.ndarray:
    """R_i - mean; `whiten` then divides by the deviation over the batch (arXiv 2501.03262). Returns float64 [G]."""
    return stats.centred(stats.mean)


def whiten(advantages: Sequence[np.ndarray], valid: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Zero mean and unit deviation (population) over the VALID samples of all groups; 0 elsewhere.

    Lists of float64 [G] and bool [G]; a batch without spread comes back as zeros.
    """
    votes = np.concatenate([a[v] for a, v in zip(advantages, valid, strict=True)]) if advantages else np.zeros(0)
    if votes.size == 0:
        return [np.zeros_like(a) for a in advantages]
    mean = votes.mean()
    std = np.sqrt(np.square(votes - mean).mean())
    if std <= 1e-12:
        return [np.zeros_like(a) for a in advantages]
    return [np.where(v, (a - mean) / std, 0.0) for a, v in zip(advantages, valid, strict=True)]
