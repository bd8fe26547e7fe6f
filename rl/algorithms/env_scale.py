"""A running advantage scale per environment, so that no domain of large rewards dominates the batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

DECAY = 0.9
"""Weight of the past in the running mean square: about ten steps of memory."""
FLOOR = 0.05
"""Smallest scale: an environment whose rewards hardly differ is not blown up beyond twenty times."""


class EnvScale:
    """Divides advantages by the running root mean square of their environment (bias-corrected, floor FLOOR).

    What enters it are the advantages of RAW outcomes, and of those the non-zero ones: groups without a signal say
    nothing about the size of one, and groups whose right answers differ by their price alone would, where no others
    train, blow up whatever price was configured to the size of an outcome. Such groups are divided all the same. An
    environment without a raw signal so far takes the mean square over the others, so that a price weighs there as much
    against an outcome as it does elsewhere; before anybody's first signal the scale is 1.
    """

    def __init__(self) -> None:
        self._square: dict[str, float] = {}
        self._weight: dict[str, float] = {}

    def update(self, batch: Iterable[tuple[str, np.ndarray]]) -> None:
        """Take in one step's (environment, advantages of raw outcomes [G]) pairs."""
        fresh: dict[str, list[np.ndarray]] = {}
        for env, advantages in batch:
            fresh.setdefault(env, []).append(np.asarray(advantages, dtype=np.float64))
        for env, parts in fresh.items():
            values = np.concatenate(parts)
            values = values[values != 0.0]
            if values.size:
                self._square[env] = DECAY * self._square.get(env, 0.0) + (1 - DECAY) * float(np.square(values).mean())
                self._weight[env] = DECAY * self._weight.get(env, 0.0) + (1 - DECAY)

    def scale(self, env: str) -> float:
        """The divisor of this environment."""
        known = [env] if env in self._weight else sorted(self._weight)
        squares = [self._square[e] / self._weight[e] for e in known]
        return max(FLOOR, math.sqrt(sum(squares) / len(squares))) if squares else 1.0

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        return {"square": dict(self._square), "weight": dict(self._weight)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; raises KeyError for another layout."""
        self._square, self._weight = dict(state["square"]), dict(state["weight"])
