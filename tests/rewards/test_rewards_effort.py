"""Laws of the effort reward: the outcome decides, the price orders right answers, masked samples have no say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.effort import MAX_PRICE, OVER_BUDGET, BaseLengths, EffortReward
from rewards.efforts import Effort
from rl.config import EffortConfig, EffortLevel

CONFIG = EffortConfig(
    low=EffortLevel(lam=0.2, tau=3.0), high=EffortLevel(lam=0.05, tau=6.0), warmup_steps=2, ramp_steps=4
)
DONE = 100
"""A step after warm-up and ramp."""


def shape(rewards, lengths, effort=Effort.LOW, b0=20.0, step=DONE, config=CONFIG, valid=None) -> np.ndarray:
    valid = np.ones(len(rewards), bool) if valid is None else np.array(valid)
    return EffortReward(config).shape(np.array(rewards, float), valid, np.array(lengths), effort, b0, step)


levels = st.builds(EffortLevel, lam=st.floats(0, 5), tau=st.floats(0.1, 50))
configs = st.builds(
    EffortConfig,
    kind=st.sampled_from(["budget", "price", "none"]),
    low=levels,
    medium=levels,
    high=levels,
    max=levels,
    warmup_steps=st.integers(0, 5),
    ramp_steps=st.integers(0, 5),
    override_all_failed=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(
    config=configs,
    effort=st.sampled_from(list(Effort)),
    step=st.integers(0, 20),
    b0=st.floats(1, 500),
    outcomes=st.lists(st.sampled_from([0.0, 0.3, 0.99, 1.0]), min_size=1, max_size=12),
    data=st.data(),
)
def test_within_budget_no_wrong_answer_beats_a_right_one_at_any_length(
    config, effort, step, b0, outcomes, data
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 5000), min_size=len(outcomes), max_size=len(outcomes)))
    shaped = shape(outcomes, lengths, effort, b0, step, config)
    assert shaped.dtype == np.float64 and np.isfinite(shaped).all()
    inside = ~EffortReward(config).over_budget(np.array(lengths), effort, b0)
    right = shaped[(np.array(outcomes) == 1.0) & inside]
    wrong = shaped[np.array(outcomes) < 1.0]
    if len(right) and len(wrong):
        assert right.min() > wrong.max()


@settings(max_examples=100, deadline=None)
@given(config=configs, effort=st.sampled_from(list(Effort)), bad=st.sampled_from([1e9, -1e9, np.nan, np.inf]))
def test_masked_samples_influence_nothing(config, effort, bad) -> None:
    rewards, lengths, valid = [1.0, 0.0, 0.5, bad], [10, 20, 30, 10**9], [True, True, True, False]
    with_bad = shape(rewards, lengths, effort, config=config, valid=valid)
    alone = shape(rewards[:3], lengths[:3], effort, config=config)
    assert with_bad[:3].tobytes() == alone.tobytes() and with_bad[3] == 0.0


def test_right_long_stays_above_wrong_short() -> None:
    for effort in Effort:
        assert shape([1.0, 0.0], [1000, 100], effort, b0=400.0).tolist()[0] > 0.0


def test_the_price_is_charged_to_right_answers_alone() -> None:
    shaped = shape([1.0, 1.0, 0.0, 0.0], [10, 40, 1, 59])
    assert shaped == pytest.approx([1 - 0.2 * 0.5, 1 - 0.2 * 2.0, 0.0, 0.0])


def test_partial_outcomes_lie_between_wrong_and_every_right_one() -> None:
    shaped = shape([1.0, 0.9, 0.5, 0.0], [60, 1, 1, 1])
    assert shaped[0] > shaped[1] > shaped[2] > shaped[3] == 0.0


def test_the_price_is_clipped_below_one() -> None:
    greedy = replace(CONFIG, low=EffortLevel(lam=3.0, tau=10.0))
    assert shape([1.0, 0.0], [200, 1], config=greedy)[0] == pytest.approx(1 - MAX_PRICE)


def test_over_budget_is_worse_than_failing_within_it() -> None:
    assert shape([1.0, 1.0, 0.0, 0.0], [60, 61, 60, 61]).tolist() == pytest.approx([0.4, OVER_BUDGET, 0.0, OVER_BUDGET])


def test_the_override_speaks_in_all_failed_groups_only_by_its_switch() -> None:
    assert shape([0.0, 0.0], [10, 61]).tolist() == [0.0, 0.0]
    spoken = replace(CONFIG, override_all_failed=True)
    assert shape([0.0, 0.0], [10, 61], config=spoken).tolist() == [0.0, OVER_BUDGET]
    masked_success = shape([0.0, 0.0, 1.0], [10, 61, 5], valid=[True, True, False])
    assert masked_success.tolist() == [0.0, 0.0, 0.0], "a masked success is no success"


def test_warm_up_then_ramp_then_override() -> None:
    paid = [1 - shape([1.0], [20], step=s)[0] for s in range(8)]
    assert paid == pytest.approx([0, 0, 0, 0.05, 0.1, 0.15, 0.2, 0.2])
    assert [shape([1.0], [500], step=s)[0] < 0 for s in range(8)] == [False] * 6 + [True] * 2
    at_once = replace(CONFIG, warmup_steps=0, ramp_steps=0)
    assert shape([1.0], [20], step=0, config=at_once)[0] == pytest.approx(0.8)


def test_kinds() -> None:
    price, none = replace(CONFIG, kind="price"), replace(CONFIG, kind="none")
    assert shape([1.0, 1.0, 0.0], [20, 1000, 1000], config=price).tolist() == pytest.approx([0.8, 0.4, 0.0])
    assert shape([1.0, 0.5, 0.0], [20, 1000, 1000], config=none).tolist() == [1.0, 0.5, 0.0]
    with pytest.raises(ValueError, match="budget, price, none"):
        EffortReward(replace(CONFIG, kind="pareto"))
    with pytest.raises(ValueError, match=r"effort\.low"):
        EffortReward(replace(CONFIG, low=EffortLevel(tau=0.0)))


def test_without_a_calibrated_length_there_is_no_length_pressure() -> None:
    assert shape([1.0, 0.5, 0.0], [10, 10**6, 10**6], b0=float("inf")).tolist() == [1.0, 0.5, 0.0]


def test_efforts_order_the_price_of_the_same_answer() -> None:
    defaults = EffortConfig()
    kept = [shape([1.0], [20], e, config=defaults)[0] for e in (Effort.LOW, Effort.HIGH, Effort.MAX)]
    assert kept[0] < kept[1] < kept[2] == 1.0


@pytest.mark.parametrize(
    ("rewards", "valid", "lengths"),
    [([1.0], [True] * 3, [1, 2, 3]), ([1.0, 0.0], [True] * 3, [1, 2, 3]), ([[1.0]] * 3, [True] * 3, [1, 2, 3])],
)
def test_a_wrong_number_of_rewards_is_an_error(rewards, valid, lengths) -> None:
    with pytest.raises(ValueError, match="one reward, mask and length per sample"):
        shape(rewards, lengths, valid=valid)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.5, 1.5])
def test_a_valid_outcome_out_of_range_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        shape([bad, 1.0], [1, 2])


def calibrated() -> BaseLengths:
    base = BaseLengths()
    for n in range(10, 20):
        base.observe("a", 1, n)
    base.observe("a", 1, 1000, solved=False)
    base.observe("a", 2, 100)
    base.observe("b", 1, 50, solved=False)
    base.freeze()
    return base


def test_base_lengths_are_a_percentile_of_right_answers_with_named_fallbacks() -> None:
    base = calibrated()
    assert base.get("a", 1) == pytest.approx(np.quantile(range(10, 20), 0.8))
    assert base.get("a", 2) == base.get("a", 3) == pytest.approx(np.quantile([*range(10, 20), 100], 0.8))
    assert base.get("b", 1) == 50.0, "no right answer: from all lengths"
    assert base.get("c", 1) == float("inf"), "never seen: no length pressure"


def test_base_lengths_are_frozen_and_saved_whole() -> None:
    base = calibrated()
    with pytest.raises(ValueError, match="frozen"):
        base.observe("a", 1, 1)
    again = BaseLengths()
    with pytest.raises(ValueError):
        again.get("a", 1)
    again.load_state_dict(base.state_dict())
    assert (again.table, again.frozen) == (base.table, True)
    with pytest.raises(ValueError, match="percentile"):
        BaseLengths(percentile=0.5).load_state_dict(base.state_dict())
