"""The algorithms: one file each, three explicit dicts, no torch at import.

In: `rl.stats.GroupStats` of one group -> `ADVANTAGES[name](stats)` -> advantages [G].
In: per-token `Streams` -> `LOSSES[name](streams, config)` -> summed loss and which tokens were cut.
In: behaviour and proximal log-probs -> `CORRECTIONS[name](off_policy, config)` -> a weight for each token.
`EnvScale` keeps every environment's advantages at one size, `EffortScale` every effort's. `check` refuses settings that
contradict each other.
The learner knows none of these names: it multiplies streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.algorithms.advantage import ADVANTAGES
from rl.algorithms.correction import CORRECTIONS
from rl.algorithms.effort_scale import EffortScale
from rl.algorithms.env_scale import EnvScale
from rl.algorithms.loss import LOSSES

if TYPE_CHECKING:
    from rl.config import AlgorithmConfig

__all__ = ["ADVANTAGES", "CORRECTIONS", "LOSSES", "EffortScale", "EnvScale", "check"]


def check(config: AlgorithmConfig) -> list[str]:
    """What is wrong with these settings, one sentence each with what to change; empty if nothing is."""
    wrong = []
    for field, table in (("advantage", ADVANTAGES), ("loss", LOSSES), ("correction", CORRECTIONS)):
        if getattr(config, field) not in table:
            wrong.append(f"algorithm.{field}={getattr(config, field)} is unknown: choose one of {', '.join(table)}")
    if not 0 < config.clip_low < 1 < config.clip_high:
        wrong.append(f"clip_low {config.clip_low} and clip_high {config.clip_high} must enclose 1 (0 < low < 1 < high)")
    if config.loss == "ppo_clip" and abs(config.clip_low + config.clip_high - 2) > 1e-9:
        wrong.append(f"loss=ppo_clip is symmetric: set clip_high to {2 - config.clip_low:g}, or use loss=dapo")
    if config.advantage == "reinforce_pp":
        scales = ("env_advantage_scale", "effort_advantage_scale")
        wrong += [f"advantage=reinforce_pp whitens over the batch: set {k}=false" for k in scales if getattr(config, k)]
    if config.temperature <= 0:
        wrong.append(f"temperature {config.temperature} cannot train: it must be positive (greedy is for evaluation)")
    if config.tis_cap < 1:
        wrong.append(f"tis_cap {config.tis_cap} would shrink on-policy tokens: it must be at least 1")
    return wrong
