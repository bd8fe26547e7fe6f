"""Statistics of one group of rewards: the only place that computes them, for every estimator and every filter."""

from __future__ import annotations

from functools import cached_property

import numpy as np

EQUAL = 1e-9
"""Rewards that differ by less (relative to the largest, at least 1) count as equal: outcomes are sums of fractions."""


class GroupStats:
    """Statistics over the valid samples of one group, two-pass in float64: a masked outlier changes nothing.

    rewards float [G]; valid_mask bool [G]; lengths float [G] (sampled tokens, for length-weighted means).
    A reward that is not finite is invalid, whatever its mask (`n_nonfinite` counts them). Fewer than two valid samples:
    `too_small`, and every centred value is 0. Raises ValueError where shapes differ or a length is negative.
    """

    def __init__(self, rewards: np.ndarray, valid_mask: np.ndarray, lengths: np.ndarray | None = None):
        rewards = np.asarray(rewards, dtype=np.float64)
        asked = np.asarray(valid_mask, dtype=bool)
        self.lengths = None if lengths is None else np.asarray(lengths, dtype=np.float64)
        for name, array in (("valid_mask", asked), ("lengths", self.lengths)):
            if array is not None and array.shape != rewards.shape:
                raise ValueError(f"{name} has shape {array.shape}, rewards have {rewards.shape}")
        if rewards.ndim != 1:
            raise ValueError(f"rewards of one group have one axis, not shape {rewards.shape}")
        if self.lengths is not None and not (self.lengths >= 0).all():
            raise ValueError("lengths must be finite and not negative")
        self.valid: np.ndarray = asked & np.isfinite(rewards)
        self.n_nonfinite = int((asked & ~np.isfinite(rewards)).sum())
        self.n = int(self.valid.sum())
        self.rewards: np.ndarray = np.where(self.valid, rewards, 0.0)
        """float64 [G]; 0 where invalid."""
        self._voters = self.rewards[self.valid]

    @property
    def too_small(self) -> bool:
        """Fewer than two valid samples: nothing to compare."""
        return self.n < 2

    @cached_property
    def spread(self) -> float:
        """Largest minus smallest valid reward; 0 where there is none."""
        return float(np.ptp(self._voters)) if self.n else 0.0

    @cached_property
    def zero_variance(self) -> bool:
        """All valid rewards are equal (or there is none): no signal."""
        return self.n == 0 or self.spread <= EQUAL * max(1.0, float(np.abs(self._voters).max()))

    @property
    def signal(self) -> bool:
        """Whether the group tells anything: at least two valid samples that differ."""
        return not self.too_small and not self.zero_variance

    @cached_property
    def mean(self) -> float:
        """Mean over valid samples; 0 where there is none."""
        return float(self._voters.mean()) if self.n else 0.0

    @cached_property
    def std(self) -> float:
        """Standard deviation with ddof 1; exactly 0 without a signal."""
        return float(np.sqrt(np.square(self._voters - self.mean).sum() / (self.n - 1))) if self.signal else 0.0

    @cached_property
    def leave_one_out_mean(self) -> np.ndarray:
        """float64 [G]: for each valid sample the mean of the OTHER valid ones; 0 where invalid or too small."""
        if self.too_small:
            return np.zeros_like(self.rewards)
        return np.where(self.valid, (self._voters.sum() - self.rewards) / (self.n - 1), 0.0)

    @cached_property
    def length_weighted_mean(self) -> float:
        """sum R_i L_i / sum L_i over valid samples (OPO, arXiv 2505.23585); 0 where none is valid.

        Raises ValueError without lengths, or where valid samples have no token at all.
        """
        if self.lengths is None:
            raise ValueError("a length-weighted mean needs lengths")
        if self.n == 0:
            return 0.0
        weights = self.lengths[self.valid]
        if weights.sum() <= 0:
            raise ValueError("valid samples without a single token have no length-weighted mean: mask them")
        return float((self._voters * weights).sum() / weights.sum())

    def centred(self, baseline: float | np.ndarray) -> np.ndarray:
        """rewards - baseline, float64 [G]; exactly 0 where invalid, and everywhere without a signal."""
        if not self.signal:
            return np.zeros_like(self.rewards)
        return np.where(self.valid, self.rewards - baseline, 0.0)
