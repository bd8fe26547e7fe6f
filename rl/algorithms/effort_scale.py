"""A running advantage scale per effort: a price takes from the reward of right answers, not from their say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from rl.algorithms.env_scale import DECAY

LARGEST = 5.0
"""Largest factor: an effort that keeps a tenth of its rewards is not blown up tenfold."""


class EffortScale:
    """Multiplies an effort's advantages so that, over groups whose outcomes differ, they are as large as those of the
    raw outcomes.

    Right answers of a priced effort are worth less, so all that its groups say would weigh less than what free efforts
    say: habits that the efforts share (whether to think, say) would follow the free ones. Groups whose outcomes are
    equal are multiplied by the same factor, and do not enter it.
    """

    def __init__(self) -> None:
        self._squares: dict[str, list[float]] = {}
        """Per effort: running mean squares of raw and of shaped advantages (not corrected: only their ratio counts)."""

    def update(self, batch: Iterable[tuple[str, np.ndarray, np.ndarray]]) -> None:
        """Take in one step's (effort, advantages of raw outcomes [G], advantages of shaped rewards [G])."""
        fresh: dict[str, list[tuple[float, float]]] = {}
        for effort, raw, shaped in batch:
            if np.any(raw):
                fresh.setdefault(effort, []).append((float(np.square(raw).mean()), float(np.square(shaped).mean())))
        for effort, rows in fresh.items():
            old = self._squares.get(effort, [0.0, 0.0])
            new = np.mean(rows, 0)
            self._squares[effort] = [DECAY * a + (1 - DECAY) * float(b) for a, b in zip(old, new, strict=True)]

    def factor(self, effort: str) -> float:
        """What the advantages of this effort are multiplied by; 1 before its first group whose outcomes differ."""
        raw, shaped = self._squares.get(effort, [1.0, 1.0])
        return min(LARGEST, math.sqrt(raw / shaped)) if shaped > 0 else 1.0

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        return {"squares": {effort: list(pair) for effort, pair in self._squares.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; raises KeyError for another layout."""
        self._squares = {effort: list(pair) for effort, pair in state["squares"].items()}
