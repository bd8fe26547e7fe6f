"""95 % intervals of solve rates and of their changes: the one place that computes them.

Both are centred between the observed value and a prior one, so an interval is its bounds, never "observed ± half".
"""

from __future__ import annotations

import math
from collections.abc import Iterable

_Z = 1.96
"""Two-sided 95 % normal quantile."""


def wilson(right: int, n: int) -> tuple[float, float]:
    """Lower and upper bound of the Wilson score interval of a rate, in [0, 1]. Raises ValueError for n = 0."""
    if n <= 0:
        raise ValueError("an interval needs at least one sample")
    p, weight = right / n, _Z**2 / n
    centre = (p + weight / 2) / (1 + weight)
    half = _Z * math.sqrt(p * (1 - p) / n + weight / (4 * n)) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)


def paired(clusters: Iterable[list[float]]) -> tuple[float, float]:
    """Centre and half-width of the interval of the mean of paired differences in [-1, 1].

    Differences of one cluster (one task at several efforts) may go together; only clusters count as independent.
    Two pseudo-pairs (one half each of +1 and -1, one tie) keep it honest where few tasks or no differences were seen
    (Agresti and Min 2005, adjusted Wald interval for matched pairs).
    """
    clusters = list(clusters)
    n = sum(len(c) for c in clusters) + 2
    mean = sum(sum(c) for c in clusters) / n
    # The pseudo-pairs' own squares: (1 - mean)^2 / 2 + (1 + mean)^2 / 2 + mean^2.
    squares = sum(sum(d - mean for d in c) ** 2 for c in clusters) + 1 + 2 * mean * mean
    return mean, _Z * math.sqrt(squares) / n
