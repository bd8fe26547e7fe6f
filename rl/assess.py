"""From a finished group to what the learner needs: shaped rewards, advantages, or the reason why it is not trained."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from rewards.grade import GradeStatus
from rl.algorithms import ADVANTAGES
from rl.batch import trainable
from rl.config import Config
from rl.stats import GroupStats
from rollout.trajectory import Group, Trajectory

if TYPE_CHECKING:
    from rewards.effort import EffortReward


_PRICE_SIGNAL = 0.05
"""Spread of shaped rewards from which a group of equal outcomes teaches length: without groups of right answers a
priced effort would see length only where answers also fail, and grow. Failures differ under `override_all_failed`."""


class Retired(StrEnum):
    """Why a finished group is not trained; every member is counted."""

    TOO_FEW_VALID = "too_few_valid"
    """Fewer valid samples than `rollout.min_group`: nothing to compare."""
    ALL_SOLVED = "all_solved"
    """Every raw outcome is a success, and their prices hardly differ: no signal (dynamic sampling)."""
    ALL_FAILED = "all_failed"
    """Every raw outcome is the same failure, and none is over its budget: no signal (dynamic sampling)."""


@dataclass(eq=False)
class Assessed:
    """One group with its numbers, each float64 or bool of shape [G] in the order of the trajectories."""

    group: Group
    raw: np.ndarray
    """Outcome reward; 0 where invalid."""
    valid: np.ndarray
    lengths: np.ndarray
    """Output tokens."""
    shaped: np.ndarray
    """After effort shaping; 0 where invalid."""
    advantages: np.ndarray
    """Of the shaped rewards; 0 where invalid."""
    outcome_advantages: np.ndarray
    """Of the raw outcomes, by the same estimator: what `EnvScale` measures an environment by."""
    retired: Retired | None
    step: int
    """The step at which it was shaped: it stays so, however long it waits and over a resume."""

    @property
    def solve_rate(self) -> float | None:
        """Share of valid samples that are solved; None without a valid one."""
        return float((self.raw[self.valid] >= 1.0).mean()) if self.valid.any() else None


def assess(group: Group, reward: EffortReward, base_length: float, step: int, config: Config) -> Assessed:
    """Shape the rewards, estimate the advantages, and decide by the RAW outcomes whether the group has a signal;
    right answers alone have one where their prices differ.

    base_length: b0 of the task, in output tokens; step: what the reward's warm-up and ramp count.
    """
    valid = np.array([trainable(t) for t in group.trajectories])
    raw = np.array([t.grade.reward if v and t.grade else 0.0 for t, v in zip(group.trajectories, valid, strict=True)])
    lengths = np.array([t.output_tokens for t in group.trajectories], dtype=np.float64)
    shaped = reward.shape(raw, valid, lengths, group.order.effort, base_length, step)
    outcome, priced = GroupStats(raw, valid, lengths), GroupStats(shaped, valid, lengths)
    estimate = ADVANTAGES[config.algorithm.advantage]
    retired = None
    if outcome.n < config.rollout.min_group:
        retired = Retired.TOO_FEW_VALID
    elif config.algorithm.dynamic_sampling and outcome.zero_variance and priced.spread < _PRICE_SIGNAL:
        retired = Retired.ALL_SOLVED if outcome.mean >= 1.0 else Retired.ALL_FAILED
    return Assessed(group, raw, valid, lengths, shaped, estimate(priced), estimate(outcome), retired, step)


def ungraded(groups: list[Assessed]) -> dict[str, str]:
    """Environments of which no sample was valid, or whose code blocked, and what the first such sample says."""
    samples: dict[str, list[tuple[bool, Trajectory]]] = {}
    for a in groups:
        pairs = zip(a.valid, a.group.trajectories, strict=True)
        samples.setdefault(a.group.order.task.environment, []).extend((bool(v), t) for v, t in pairs)
    out: dict[str, str] = {}
    for environment, rows in samples.items():
        if not any(valid for valid, _ in rows):
            first = rows[0][1]
            told = first.grade.evidence.get("error") if first.grade else None
            why = told or first.error or f"it ended as {first.stop}"
            out[environment] = f"none of {len(rows)} samples has a grade, and none is trained on; the first: {why}"
        elif blocked := [g for _, t in rows if (g := t.grade) and g.status is GradeStatus.BLOCKED]:
            why = blocked[0].evidence["error"]
            out[environment] = f"{len(blocked)} of {len(rows)} samples are masked; the first: {why}"
    return out


def step_metrics(groups: list[Assessed]) -> dict[str, Any]:
    """Outcome metrics of one step: pooled, by effort, by environment; invalid samples are counted, never averaged."""
    out: dict[str, Any] = {"groups": len(groups)}
    rows = [
        (a.group.order.task.environment, str(a.group.order.effort), a.raw[i], a.shaped[i], a.lengths[i], a.valid[i], t)
        for a in groups
        for i, t in enumerate(a.group.trajectories)
    ]
    for t in (r[6] for r in rows):
        for key in (f"stop/{t.stop}", f"grade/{t.grade.status if t.grade else 'none'}"):
            out[key] = out.get(key, 0) + 1
    out["samples"] = len(rows)
    out["samples_invalid"] = sum(not r[5] for r in rows)

    def put(suffix: str, chosen: list[tuple]) -> None:
        good = [r for r in chosen if r[5]]
        if good:
            out[f"solve_rate/{suffix}"] = float(np.mean([r[2] >= 1.0 for r in good]))
            out[f"reward/{suffix}"] = float(np.mean([r[2] for r in good]))
            out[f"shaped_reward/{suffix}"] = float(np.mean([r[3] for r in good]))
            out[f"tokens_p50/{suffix}"] = float(np.median([r[4] for r in good]))

    put("all", rows)
    for effort in sorted({r[1] for r in rows}):
        put(f"all/{effort}", [r for r in rows if r[1] == effort])
    for env in sorted({r[0] for r in rows}):
        put(env, [r for r in rows if r[0] == env])
    return out
