"""Advantage estimators: `GroupStats` of one group in, advantages float64 [G] out (0 where invalid)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rl.algorithms.advantage.dr_grpo import dr_grpo
from rl.algorithms.advantage.grpo import grpo
from rl.algorithms.advantage.length_weighted import length_weighted
from rl.algorithms.advantage.reinforce_pp import reinforce_pp
from rl.algorithms.advantage.rloo import rloo
from rl.stats import GroupStats

ADVANTAGES: dict[str, Callable[[GroupStats], np.ndarray]] = {
    "length_weighted": length_weighted,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
}
