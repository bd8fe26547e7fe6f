"""Laws of group statistics and advantages: masked samples never vote, equal rewards carry no signal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.algorithms import ADVANTAGES, EnvScale
from rl.algorithms.advantage.reinforce_pp import whiten
from rl.stats import GroupStats

LENGTHS = np.array([3.0, 5.0, 2.0, 7.0])


def _advantages(name, rewards, valid):
    rewards = np.asarray(rewards, float)
    return ADVANTAGES[name](GroupStats(rewards, np.asarray(valid, bool), np.resize(LENGTHS, rewards.shape)))


@pytest.mark.parametrize(
    ("name", "rewards", "valid", "want"),
    [
        ("dr_grpo", [1, 1, 0, 0], [1, 0, 1, 1], [2 / 3, 0, -1 / 3, -1 / 3]),
        ("grpo", [1, 1, 0, 0], [1, 0, 1, 1], [1.1547005, 0, -0.57735027, -0.57735027]),
        ("grpo", [1, 3, 2, 0], [1, 1, 1, 0], [-1, 1, 0, 0]),
        ("rloo", [1, 1, 0, 0], [1, 0, 1, 1], [1, 0, -0.5, -0.5]),
        # b = (1*3 + 0*2 + 0*7) / 12 = 0.25
        ("length_weighted", [1, 1, 0, 0], [1, 0, 1, 1], [0.75, 0, -0.25, -0.25]),
        ("reinforce_pp", [1, 1, 0, 0], [1, 0, 1, 1], [2 / 3, 0, -1 / 3, -1 / 3]),
    ],
)
def test_known_values(name, rewards, valid, want):
    np.testing.assert_allclose(_advantages(name, rewards, valid), want, atol=1e-7)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_masked_reward_of_1e9_or_nan_changes_nothing(name, data):
    size = data.draw(st.integers(1, 8))
    rewards = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.3, 0.7, 1.0]), min_size=size, max_size=size)))
    valid = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    poisoned = np.where(valid, rewards, data.draw(st.sampled_from([1e9, -1e9, np.nan, np.inf])))
    clean = _advantages(name, np.where(valid, rewards, 0.0), valid)
    assert np.array_equal(clean, _advantages(name, poisoned, valid))  # bit-identical
    assert np.isfinite(clean).all()
    assert not clean[~valid].any()


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@pytest.mark.parametrize(
    ("rewards", "valid"),
    [
        ([np.nan, np.nan, np.nan, 0.7], [1, 1, 1, 1]),  # one finite reward: nothing to compare
        ([0.3], [1]),
        ([0.5, 0.9], [0, 0]),
        ([0.7, 0.7, 0.7 + 1e-13], [1, 1, 1]),  # equal up to rounding
        ([0.1 + 0.2, 0.3], [1, 1]),
    ],
)
def test_no_signal_is_exactly_zero(name, rewards, valid):
    assert not _advantages(name, rewards, valid).any()


def test_non_finite_rewards_are_invalid_and_counted():
    stats = GroupStats(np.array([np.nan, np.inf, 0.0, 1.0]), np.array([1, 1, 1, 1]))
    assert (stats.n, stats.n_nonfinite, stats.mean) == (2, 2, 0.5)
    assert GroupStats(np.array([np.nan, 0.7]), np.array([1, 1])).too_small


def test_the_spread_is_of_valid_rewards_alone():
    rewards = np.array([0.2, 1e9, 0.7, np.nan])
    assert GroupStats(rewards, np.array([1, 0, 1, 1])).spread == pytest.approx(0.5)
    assert GroupStats(rewards, np.zeros(4)).spread == 0.0


def test_shapes_never_broadcast():
    with pytest.raises(ValueError, match="valid_mask"):
        GroupStats(np.zeros(3), np.ones(1, bool))
    with pytest.raises(ValueError, match="lengths"):
        GroupStats(np.zeros(3), np.ones(3, bool), np.ones(1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(1, 50)), min_size=2, max_size=9), st.randoms())
def test_estimators_ignore_the_order_and_centre_as_they_say(samples, random):
    rewards, lengths = (np.array(x, float) for x in zip(*samples, strict=True))
    valid = np.ones(len(samples), bool)
    order = list(range(len(samples)))
    random.shuffle(order)
    for estimator in ADVANTAGES.values():
        a = estimator(GroupStats(rewards, valid, lengths))
        b = estimator(GroupStats(rewards[order], valid, lengths[order]))
        np.testing.assert_allclose(a[order], b, atol=1e-12)
    assert abs((ADVANTAGES["length_weighted"](GroupStats(rewards, valid, lengths)) * lengths).sum()) < 1e-9
    assert abs(ADVANTAGES["dr_grpo"](GroupStats(rewards, valid, lengths)).sum()) < 1e-9


def test_whitening_counts_valid_samples_only():
    # Two groups as rows; the mean over padding would give 1.7321 and 0.
    got = whiten(
        [np.array([2.0, 2.0, 0.0, 0.0]), np.ones(4)], [np.array([True, True, False, False]), np.ones(4, dtype=bool)]
    )
    np.testing.assert_allclose(got[0], [1.4142, 1.4142, 0, 0], atol=1e-4)
    np.testing.assert_allclose(got[1], [-0.7071] * 4, atol=1e-4)


def test_environments_of_different_reward_size_get_advantages_of_one_size():
    scale = EnvScale()
    small, large = np.array([0.5, -0.5, 0.0]), np.array([50.0, -50.0, 0.0])
    for _ in range(3):
        scale.update([("a", small), ("b", large)])
    sizes = [np.abs(small / scale.scale("a")).max(), np.abs(large / scale.scale("b")).max()]
    assert max(sizes) / min(sizes) < 2
    assert EnvScale().scale("never seen") == 1.0
    other = EnvScale()
    other.load_state_dict(scale.state_dict())
    assert [other.scale(e) for e in ("a", "b", "c")] == [scale.scale(e) for e in ("a", "b", "c")]


def test_an_environment_without_a_raw_signal_takes_the_mean_square_of_the_others():
    scale = EnvScale()
    scale.update([("a", np.array([1.0, -1.0])), ("b", np.array([7.0, -7.0])), ("c", np.zeros(4))])
    assert scale.scale("c") == pytest.approx(5.0)


def test_a_group_without_signal_does_not_move_the_scale():
    scale = EnvScale()
    scale.update([("a", np.array([1.0, -1.0]))])
    before = scale.scale("a")
    scale.update([("a", np.zeros(8))])
    assert scale.scale("a") == before == 1.0
