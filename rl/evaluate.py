"""Held-out tasks, the same before, during and after: what each environment and effort can do, and at what length.

The calibration before training is the same on tasks of the train split.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from environments.task import Task
from rewards.efforts import Effort
from rewards.grade import GradeStatus
from rl.intervals import wilson
from rl.mixture import sample_seed
from rollout.trajectory import Group, GroupOrder, Trajectory


def orders(pairs: list[tuple[Task, Effort]], label: str, base_seed: int, greedy: bool) -> list[GroupOrder]:
    """One order of one sample per pair at temperature 1, and one more at temperature 0 if `greedy`."""
    out = []
    for purpose, temperature in (("sampled", 1.0), ("greedy", 0.0))[: 2 if greedy else 1]:
        for i, (task, effort) in enumerate(pairs):
            seed = sample_seed(base_seed, task.id, effort, 0)
            out.append(
                GroupOrder(f"eval/{label}/{purpose}/{i:05d}", task, effort, (seed,), temperature, purpose="eval")
            )
    return out


def row(order: GroupOrder, trajectory: Trajectory | None) -> dict[str, Any]:
    """One evaluation row; a lost episode has reward None and stop `lost`, and is counted, never scored 0."""
    grade = trajectory.grade if trajectory else None
    return {
        "environment": order.task.environment,
        "effort": str(order.effort),
        "level": order.task.level,
        "split": order.task.id.rsplit("/", 4)[1],
        "task_id": order.task.id,
        "purpose": "greedy" if order.temperature == 0 else "sampled",
        "reward": grade.reward if grade else None,
        "status": str(grade.status) if grade else "lost",
        "tokens": trajectory.output_tokens if trajectory else 0,
        "stop": str(trajectory.stop) if trajectory else "lost",
    }


def rows(groups: list[Group], lost: list[tuple[GroupOrder, str]]) -> list[dict[str, Any]]:
    """Rows of all finished groups and lost orders, in the order of the orders' ids."""
    pairs = [(g.order, t) for g in groups for t in g.trajectories]
    every = [(o.id, row(o, t)) for o, t in pairs] + [(o.id, row(o, None)) for o, _ in lost]
    return [r for _, r in sorted(every, key=lambda x: x[0])]


def summary(rows: list[dict[str, Any]], purpose: str = "sampled") -> dict[str, float]:
    """Metrics of one evaluation: `solve/<scope>`, its 95 % interval `ci_low/<scope>` to `ci_high/<scope>`, and
    `tokens_p50/<scope>`.

    Scopes: macro (mean over environments; no interval), all, all/<effort>, <environment>. `n` counts the graded rows;
    masked ones are counted in `masked` alone.
    """
    chosen = [r for r in rows if r["purpose"] == purpose]
    good = [r for r in chosen if r["reward"] is not None]
    out: dict[str, float] = {"n": float(len(good)), "masked": float(len(chosen) - len(good))}

    def put(scope: str, some: list[dict[str, Any]]) -> None:
        if some:
            right = sum(r["reward"] >= 1.0 for r in some)
            out[f"solve/{scope}"] = right / len(some)
            out[f"ci_low/{scope}"], out[f"ci_high/{scope}"] = wilson(right, len(some))
            out[f"tokens_p50/{scope}"] = float(np.median([r["tokens"] for r in some]))

    put("all", good)
    for effort in sorted({r["effort"] for r in good}):
        put(f"all/{effort}", [r for r in good if r["effort"] == effort])
    environments = sorted({r["environment"] for r in good})
    for env in environments:
        put(env, [r for r in good if r["environment"] == env])
    if environments:
        out["solve/macro"] = float(np.mean([out[f"solve/{e}"] for e in environments]))
    return out


def ungraded(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Environments of which no episode has a grade, or whose code blocked, and how many of their episodes that are."""
    out: dict[str, str] = {}
    for name in sorted({r["environment"] for r in rows}):
        own = [r for r in rows if r["environment"] == name]
        masked = Counter(r["status"] for r in own if r["reward"] is None)
        if masked and (masked.total() == len(own) or GradeStatus.BLOCKED in masked):
            why = ", ".join(f"{n} {status}" for status, n in masked.items())
            out[name] = (
                f"{masked.total()} of {len(own)} evaluations have no grade ({why}): see `jointrl env check {name}`"
            )
    return out


def solve_rates(rows: list[dict[str, Any]]) -> dict[tuple[str, int, Effort], float]:
    """Sampled solve rate of every (environment, level, effort), shrunk to one half by two pseudo-samples."""
    cells: dict[tuple[str, int, Effort], list[float]] = {}
    for r in rows:
        if r["purpose"] == "sampled" and r["reward"] is not None:
            cells.setdefault((r["environment"], r["level"], Effort(r["effort"])), []).append(r["reward"])
    return {k: (sum(v) + 1.0) / (len(v) + 2.0) for k, v in cells.items()}
