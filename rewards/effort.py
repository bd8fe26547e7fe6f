"""Effort-conditioned reward: the outcome, minus a price of length on right answers, and a budget override.

For a sample with outcome s, T output tokens, and b0 the task's calibrated base length, at an effort with (lam, tau):

    shaped = s x (1 - price(T))             right answers (s = 1), price(T) = ramp x lam x min(T / b0, tau)
    shaped = s x (1 - price(tau x b0))      partial outcomes (0 < s < 1): below every right answer, whatever its length
    shaped = 0                              wrong answers: their length is not charged
    shaped = OVER_BUDGET                    T > tau x b0, once the ramp has ended (kind "budget")

The price is clipped below 1, so within budget no wrong answer beats a right one at any length. Whether the override
speaks in a group where every sample failed is a switch: length pressure there is known to collapse training, and
without it low effort stays long on hard tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rewards.efforts import Effort

MAX_PRICE = 0.94
"""Largest price of a right answer: it keeps something of its reward, however long it is."""

OVER_BUDGET = -1.0
"""Reward of a sample over its budget, worse than a wrong answer within it (Kimi K3, arXiv 2607.24653, section 4.1)."""

KINDS = ("budget", "price", "none")


class Level(Protocol):
    """One effort's price and budget: `rl.config.EffortLevel`."""

    lam: float
    tau: float


class Config(Protocol):
    """What `rl.config.EffortConfig` says about the reward; it also has one `Level` per effort, by the effort's name."""

    kind: str
    warmup_steps: int
    ramp_steps: int
    override_all_failed: bool


class EffortReward:
    """Shapes the outcomes of one group; pure, no state.

    Raises ValueError for an unknown kind, a negative lam or a tau that is not positive.
    """

    def __init__(self, config: Config) -> None:
        if config.kind not in KINDS:
            raise ValueError(f"effort.kind must be one of {', '.join(KINDS)}, not {config.kind!r}")
        for effort in Effort:
            level = getattr(config, effort)
            if not (level.lam >= 0 and level.tau > 0):
                raise ValueError(f"effort.{effort}: lam must be >= 0 and tau > 0, got lam {level.lam}, tau {level.tau}")
        self.config = config

    def ramp(self, step: int) -> float:
        """Share of the price at a step: 0 through the warm-up, then rising to 1 over `ramp_steps`."""
        after = step - self.config.warmup_steps
        if after < 0:
            return 0.0
        return min(1.0, after / self.config.ramp_steps) if self.config.ramp_steps > 0 else 1.0

    def budget(self, effort: Effort, base_length: float) -> float:
        """tau x b0, the output tokens beyond which a sample counts as failed; infinite where there is no override."""
        return self._level(effort).tau * base_length if self.config.kind == "budget" else np.inf

    def over_budget(self, lengths: np.ndarray, effort: Effort, base_length: float) -> np.ndarray:
        """Which samples are longer than their budget (whether or not the override speaks yet): bool [G]."""
        return np.asarray(lengths) > self.budget(effort, base_length)

    def price(self, lengths: np.ndarray, effort: Effort, base_length: float, step: int) -> np.ndarray:
        """What a right answer of each length pays, in [0, MAX_PRICE]: float64 [G]."""
        level = self._level(effort)
        if self.config.kind == "none" or np.isinf(base_length):
            return np.zeros(np.shape(lengths))
        relative = np.minimum(np.asarray(lengths, np.float64) / base_length, level.tau)
        return np.minimum(self.ramp(step) * level.lam * relative, MAX_PRICE)

    def shape(
        self,
        grade_rewards: np.ndarray,
        valid: np.ndarray,
        lengths: np.ndarray,
        effort: Effort,
        base_length: float,
        step: int,
    ) -> np.ndarray:
        """Shaped rewards of one group.

        grade_rewards [G] outcomes in [0, 1] (anything where masked, also NaN); valid [G] bool; lengths [G] output
        tokens; base_length b0 > 0 in tokens (infinity: not calibrated, no price and no budget).
        Returns float64 [G], 0 where masked: a masked sample influences nothing.
        Raises ValueError for unequal shapes, or a valid outcome that is not in [0, 1].
        """
        rewards, mask = np.asarray(grade_rewards, np.float64), np.asarray(valid, bool)
        tokens = np.asarray(lengths, np.float64)
        if not (rewards.ndim == 1 and rewards.shape == mask.shape == tokens.shape):
            raise ValueError(
                f"effort reward: expected one reward, mask and length per sample, got shapes "
                f"{rewards.shape}, {mask.shape}, {tokens.shape}"
            )
        if not base_length > 0:
            raise ValueError(f"effort reward: the base length must be positive, got {base_length}")
        outcome = np.where(mask, rewards, 0.0)
        if not ((outcome >= 0) & (outcome <= 1)).all():
            raise ValueError(f"effort reward: valid outcomes must be in [0, 1], got {outcome.tolist()}")
        right = outcome >= 1.0
        longest = np.full_like(tokens, self._level(effort).tau * base_length)
        most = self.price(longest, effort, base_length, step)
        shaped = outcome * (1.0 - np.where(right, self.price(tokens, effort, base_length, step), most))
        speaks = self.ramp(step) >= 1.0 and ((outcome > 0).any() or self.config.override_all_failed)
        if speaks:
            shaped = np.where(mask & self.over_budget(tokens, effort, base_length), OVER_BUDGET, shaped)
        return shaped

    def _level(self, effort: Effort) -> Level:
        return getattr(self.config, effort)


@dataclass
class BaseLengths:
    """Calibrated base lengths b0: what a right answer of a task usually takes, per (environment, level).

    b0 is a percentile of the lengths of RIGHT answers in a calibration pass. A level with fewer than `least` of them
    takes the percentile over all levels of its environment; an environment with too few takes the 0.9 percentile of all
    its lengths; one without any observation has b0 = infinity: no price and no budget. Measured once, then frozen, so
    that the price of a token does not follow the policy.

    All efforts are pooled: b0 is the task's own yardstick, and efforts differ by what they multiply it with, lam and
    tau, alone. With a yardstick each, whatever habit an effort starts with would set its price and budget: `max`,
    thinking longer already, would be allowed more once again, and `low` be asked to shrink from wherever it is.
    """

    percentile: float = 0.8
    least: int = 4
    table: dict[str, dict[str, float]] = field(default_factory=dict)
    """environment -> level (as text), or "any" -> b0 in tokens."""
    frozen: bool = False
    _rows: list[tuple[str, int, int, bool]] = field(default_factory=list, repr=False)

    def observe(self, environment: str, level: int, length: int, solved: bool = True) -> None:
        """Add one calibration sample: its output tokens, and whether it was right. Raises ValueError once frozen."""
        if self.frozen:
            raise ValueError("base lengths are frozen: nothing can be observed any more")
        self._rows.append((environment, level, length, solved))

    def freeze(self) -> None:
        """Compute the table from what was observed; after it nothing changes."""
        right: dict[str, dict[str, list[int]]] = {}
        every: dict[str, list[int]] = {}
        for environment, level, length, solved in self._rows:
            every.setdefault(environment, []).append(length)
            if solved:
                for key in (str(level), "any"):
                    right.setdefault(environment, {}).setdefault(key, []).append(length)
        for environment, lengths in every.items():
            pools = {k: pool for k, pool in right.get(environment, {}).items() if len(pool) >= self.least}
            self.table[environment] = {"any": _quantile(lengths, 0.9)} | {
                k: _quantile(pool, self.percentile) for k, pool in pools.items()
            }
        self.frozen, self._rows = True, []

    def get(self, environment: str, level: int) -> float:
        """b0 in tokens (infinity where nothing was observed); raises ValueError before `freeze`."""
        if not self.frozen:
            raise ValueError("base lengths are asked for before they were frozen")
        levels = self.table.get(environment, {})
        return levels.get(str(level), levels.get("any", float("inf")))

    def state_dict(self) -> dict[str, Any]:
        """A JSON-serialisable state; raises ValueError before `freeze`: half a calibration is not saved."""
        if not self.frozen:
            raise ValueError("base lengths are saved before they were frozen")
        return {"percentile": self.percentile, "least": self.least, "table": self.table}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; raises ValueError if the state was calibrated with other settings."""
        for name in ("percentile", "least"):
            if state[name] != getattr(self, name):
                raise ValueError(f"base lengths were calibrated with {name} {state[name]}, not {getattr(self, name)}")
        self.table = {env: {k: float(v) for k, v in levels.items()} for env, levels in state["table"].items()}
        self.frozen, self._rows = True, []


def _quantile(lengths: list[int], q: float) -> float:
    return max(1.0, float(np.quantile(lengths, q)))
