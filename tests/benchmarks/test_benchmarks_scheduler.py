"""Laws of scheduler, collector and buffer together, on a simulated clock; the naive policy breaks them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scheduler import SKIPPED, Blind, FirstCome, Ran, bound, longest_and_mean, ran
from benchmarks.simulated import LONGEST, House, Load
from rollout.buffer import RolloutBuffer

SMALL = Load(groups=12, size=4, kinds=6, engines=2, slots=24, train_s=60.0)
"""Two cohorts fit the engines; the slowest kind takes ten times as long as the quickest."""
UNEVEN = replace(SMALL, scales=[0.3, 0.3, 0.5, 0.7, 2.0, 3.0])


def gap(side: Ran) -> float:
    return side.slow_drawn - side.slow_trained


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_share_trained_is_share_drawn(staleness: int) -> None:
    side = ran(UNEVEN, staleness, steps=40)
    assert abs(gap(side)) < 0.02 and side.oldest <= staleness and side.groups == UNEVEN.groups


def test_the_naive_policy_starves_slow_tasks() -> None:
    """The planted fault: what comes first is trained, and what comes late has become too old."""
    side = ran(UNEVEN, 1, steps=40, buffer=FirstCome)
    assert gap(side) > 0.05, "the law above would not notice a first-come policy"


@pytest.mark.parametrize("enough", [3, 2])
def test_slow_tasks_are_not_starved_where_some_samples_are_enough(enough: int) -> None:
    side = ran(replace(UNEVEN, enough=enough), 1, steps=40)
    assert abs(gap(side)) < 0.02 and side.spare == pytest.approx(1 - enough / UNEVEN.size)


def test_narrow_engines_starve_nobody_either() -> None:
    narrow = replace(UNEVEN, slots=8, engine_tokens=8 * 3000)
    for staleness in (0, 2):
        side = ran(narrow, staleness, steps=40)
        assert abs(gap(side)) < 0.03 and side.oldest <= staleness


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_no_step_is_faster_than_its_bound(staleness: int) -> None:
    side = ran(UNEVEN, staleness, steps=40)
    # Of the mean over forty steps of a maximum over 48 lengths: its error is a few per cent.
    assert side.step_s >= 0.95 * max(bound(UNEVEN, staleness).values())


@pytest.mark.parametrize("staleness", [1, 2])
def test_what_has_no_signal_is_made_up_for_in_advance(staleness: int) -> None:
    """Batches vary, but not on average; nothing is too old, no kind starves, no late replacement is waited for."""
    load = replace(UNEVEN, groups=40, slots=160, silent=0.5, rounds=4)
    side = ran(load, staleness, steps=50)
    assert side.oldest <= staleness and abs(gap(side)) < 0.03
    assert side.groups == pytest.approx(load.groups, rel=0.1)
    assert side.step_s < 1.1 * max(bound(load, staleness).values())


def test_without_replacement_nothing_more_is_drawn() -> None:
    load = replace(UNEVEN, groups=40, slots=160, silent=0.5, rounds=1)
    side = ran(load, 1, steps=20)
    assert 0.5 * load.groups < side.groups < 0.75 * load.groups


def test_the_bound_is_what_one_step_takes() -> None:
    alone = replace(SMALL, scales=[1.0] * 6, within=1e-9)
    longest, mean = longest_and_mean(alone, [1.0] * 6)
    assert longest == pytest.approx(3000, abs=2) and mean == pytest.approx(3000, abs=2)
    assert ran(alone, 0, steps=3).step_s == pytest.approx(bound(alone, 0)["longest"], rel=1e-3)
    cut = replace(alone, scales=[100.0] * 6)
    assert longest_and_mean(cut, [100.0] * 6) == (LONGEST, LONGEST)


def test_longest_first_ends_a_narrow_step_sooner() -> None:
    narrow = replace(UNEVEN, groups=24, engines=1, slots=16, episodes=20, train_s=0.0)
    ordered, blind = ran(narrow, 0, steps=20), ran(narrow, 0, steps=20, lengths=Blind(3000))
    assert ordered.step_s < 0.95 * blind.step_s


def test_engines_go_on_while_the_learner_works(tmp_path: Path) -> None:
    """Orders that wait are dispatched during a step too; the planted fault is a loop that does not look."""
    narrow = replace(UNEVEN, slots=6, engine_tokens=6 * 3000, train_s=300.0)
    tended = ran(narrow, 1, steps=20)
    with pytest.MonkeyPatch.context() as patch:
        sleep = House.train.__globals__["Time"].sleep
        patch.setattr("benchmarks.simulated.Time.sleep", lambda self, seconds, *_: sleep(self, seconds))
        deaf = ran(narrow, 1, steps=20)
    assert tended.busy > 1.05 * deaf.busy


def test_a_simulation_repeats_itself() -> None:
    one, two = ran(SMALL, 1, steps=4), ran(SMALL, 1, steps=4)
    assert (one.step_s, one.busy, one.slow_trained) == (two.step_s, two.busy, two.slow_trained) and SKIPPED > 0


def test_the_planted_policy_differs_in_its_wait_alone() -> None:
    assert set(vars(FirstCome)) & set(vars(RolloutBuffer)) == {"ready", "__doc__", "__module__"}
