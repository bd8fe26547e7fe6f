"""95 % intervals hold the truth as often as they say, also where few tasks or no differences were seen."""

from __future__ import annotations

import numpy as np
import pytest

from rl import evaluate, report
from rl.intervals import paired, wilson


def test_wilson_bounds_are_known_and_not_around_the_rate() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-3)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-3)
    assert wilson(3, 10) == pytest.approx((0.1078, 0.6032), abs=1e-3)
    with pytest.raises(ValueError, match="at least one"):
        wilson(0, 0)


@pytest.mark.parametrize("truth", [0.02, 0.3, 0.95])
def test_wilson_covers_the_truth(truth: float) -> None:
    rng = np.random.default_rng(0)
    bounds = [wilson(int(rng.binomial(18, truth)), 18) for _ in range(1000)]
    assert sum(low <= truth <= high for low, high in bounds) >= 920


def test_the_paired_interval_covers_the_truth() -> None:
    """In 1,000 draws of 12 paired tasks it holds the true difference at least 93 % of the time."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        a, b = rng.random(12) < 0.4, rng.random(12) < 0.6
        centre, half = paired([[float(x)] for x in b.astype(int) - a.astype(int)])
        held += abs(centre - 0.2) <= half
    assert held >= 930
    assert paired([[0.0]] * 8)[1] > 0.1, "eight ties prove little"
    assert paired([[1.0], [0.0], [0.0], [0.0]]) == pytest.approx((1 / 6, 1.96 * ((2 / 6 - 1 / 36) / 6) ** 0.5))


def test_differences_of_one_task_count_as_one() -> None:
    """Three efforts of a task that always go together tell no more than one of them."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(500):
        tasks = rng.choice([-1.0, 0.0, 1.0], 40, p=[0.2, 0.4, 0.4])
        centre, half = paired([[d, d, d] for d in tasks])
        held += abs(centre - 0.2) <= half
    assert held >= 450, "as if 120 independent tasks had been seen"
    alone, together = paired([[d] for d in tasks for _ in "abc"]), paired([[d, d, d] for d in tasks])
    assert alone[0] == together[0] and together[1] == pytest.approx(3**0.5 * alone[1], rel=0.02)


def test_an_evaluation_counts_graded_rows_and_gives_true_bounds() -> None:
    row = {"environment": "a/x", "effort": "low", "level": 1, "purpose": "sampled", "tokens": 5}
    rows = [{**row, "reward": r} for r in (1.0, 1.0, 1.0, 1.0, None, None)]
    out = evaluate.summary(rows)
    assert (out["n"], out["masked"], out["solve/all"]) == (4, 2, 1.0)
    assert (out["ci_low/all"], out["ci_high/all"]) == wilson(4, 4) == pytest.approx((0.5101, 1.0), abs=1e-3)


def test_a_report_counts_a_task_once_however_many_efforts_it_was_asked_at() -> None:
    def rows(right: int, name: str) -> list[report.Row]:
        base = {"environment": "a/x", "purpose": "sampled", "tokens": 5}
        return [
            {**base, "effort": effort, "task_id": f"{i}{name and effort}", "reward": float(i < right)}
            for i in range(40)
            for effort in ("low", "high", "max")
        ]

    same, apart = (report.compare(rows(10, name), rows(20, name)) for name in ("", "own"))
    assert same is not None and apart is not None
    assert (same.tasks, same.gain) == (apart.tasks, apart.gain) == (120, 0.25)
    assert same.half == pytest.approx(3**0.5 * apart.half, rel=0.05)
