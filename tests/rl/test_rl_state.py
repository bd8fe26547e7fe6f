"""What a run begins with comes from tasks of the train split."""

from __future__ import annotations

from typing import Any

import pytest

from environments.catalogue import resolve
from rewards.efforts import Effort
from rl.config import Config
from rl.state import RunState


def row(tokens: int, reward: float | None, effort: str = "low", split: str = "train") -> dict[str, Any]:
    return {
        "environment": "primer/copy",
        "effort": effort,
        "level": 1,
        "split": split,
        "purpose": "sampled",
        "reward": reward,
        "tokens": tokens,
    }


def test_base_lengths_and_solve_rates_come_from_graded_train_tasks() -> None:
    state = RunState(Config(), [resolve("primer/copy")])
    rows = [row(10, 1.0), row(20, 1.0, "max"), row(30, 1.0), row(40, 1.0, "high"), row(900, 0.0), row(900, None)]
    state.calibrate(rows)
    assert state.lengths.get("primer/copy", 1) == pytest.approx(34.0), "all efforts in one pool, right answers alone"
    solve = {effort: state.mixture.cells["primer/copy", 1, effort].solve for effort in (Effort.LOW, Effort.MAX)}
    assert solve == {Effort.LOW: pytest.approx(3 / 5), Effort.MAX: pytest.approx(2 / 3)}


def test_held_out_tasks_calibrate_nothing() -> None:
    state = RunState(Config(), [resolve("primer/copy")])
    with pytest.raises(ValueError, match="held-out"):
        state.calibrate([row(10, 1.0), row(10, 1.0, split="test")])
