"""Raw outcomes decide whether a group teaches: failures never by their lengths, successes where their prices differ."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from environments.base import Draft, Environment
from rewards.effort import EffortReward
from rewards.efforts import Effort
from rewards.grade import Grade, GradeStatus
from rl import evaluate
from rl.algorithms import EffortScale, EnvScale
from rl.assess import Assessed, Retired, assess, step_metrics, ungraded
from rl.batch import build_batch
from rl.config import Config
from rl.stats import GroupStats
from rollout.trajectory import Group, GroupOrder, Node, Sampling, StopReason, Trajectory


class Toy(Environment):
    id = "toy/a"

    def draw(self, rng: random.Random, level: int) -> Draft:
        return Draft(str(rng.random()), "")


def group(
    outcomes: list[float | None],
    lengths: list[int],
    effort: Effort = Effort.LOW,
    name: str = "g",
    environment: str = "toy/a",
) -> Group:
    task = replace(Toy().task("train", 0, 1), environment=environment)
    order = GroupOrder(name, task, effort, tuple(range(len(outcomes))))
    out = []
    for i, (outcome, n) in enumerate(zip(outcomes, lengths, strict=True)):
        ids = np.ones(n, np.int32)
        node = Node(
            "assistant", ids, np.full(n, -1, np.float32), np.ones(n, np.uint8), np.zeros(n, np.int32), Sampling()
        )
        grade = Grade.failed(GradeStatus.INFRA_ERROR, "x") if outcome is None else Grade.outcome(outcome >= 1)
        nodes = [Node.given("user", [1]), node]
        out.append(Trajectory(f"{name}/{i}", order.task, effort, nodes, stop=StopReason.DONE, grade=grade))
    return Group(order, out)


def judged(outcomes: list[float | None], lengths: list[int], effort: Effort = Effort.LOW, step: int = 99) -> Assessed:
    config = Config()
    config.effort.low.lam, config.effort.low.tau, config.effort.warmup_steps = 0.5, 100.0, 2
    return assess(group(outcomes, lengths, effort), EffortReward(config.effort), 20.0, step, config)


def test_mixed_outcomes_have_a_signal_and_masked_samples_have_no_say() -> None:
    x = judged([1, 0, None, 1], [10, 10, 500, 10])
    assert x.retired is None and x.solve_rate == pytest.approx(2 / 3)
    assert x.valid.tolist() == [True, True, False, True] and x.advantages[2] == 0
    y = judged([1, 0, None, 1], [10, 10, 1, 10])
    assert np.array_equal(x.advantages, y.advantages)


@pytest.mark.parametrize("lengths", [[10, 10, 10], [5, 50, 90]])
def test_failures_teach_nothing_by_their_lengths(lengths: list[int]) -> None:
    assert judged([0, 0, 0], lengths).retired is Retired.ALL_FAILED


def test_the_switch_lets_budgets_speak_among_failures() -> None:
    config = Config()
    config.effort.override_all_failed, config.effort.low.tau = True, 2.0
    x = assess(group([0, 0, 0], [10, 10, 90]), EffortReward(config.effort), 20.0, 99, config)
    assert x.retired is None and x.advantages[2] < 0 < x.advantages[0]


def test_successes_teach_where_their_prices_differ() -> None:
    priced = judged([1, 1, 1], [5, 10, 30])
    assert priced.retired is None
    assert priced.advantages[0] > 0 > priced.advantages[2], "the shorter right answer is worth more"
    assert judged([1, 1, 1], [10, 10, 11]).retired is Retired.ALL_SOLVED
    assert judged([1, 1, 1], [5, 10, 30], Effort.MAX).retired is Retired.ALL_SOLVED, "max has no price"
    assert judged([1, 1, 1], [5, 10, 30], step=0).retired is Retired.ALL_SOLVED, "no price in the warm-up"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_price_counts_as_configured_where_only_right_answers_train(elsewhere: bool) -> None:
    """Six times the price is six times the advantage, however long such groups are the only ones of their kind."""

    def size(lam: float) -> float:
        config, scale = Config(), EnvScale()
        config.effort.low.lam, config.effort.low.tau = lam, 100.0
        reward = EffortReward(config.effort)
        groups = [group([1, 1, 1, 1], [5, 10, 20, 40])] + ([other] if elsewhere else [])
        for _ in range(20):
            found = [assess(g, reward, 100.0, 99, config) for g in groups]
            advantages, outcomes = [x.advantages for x in found], [x.outcome_advantages for x in found]
            batch = build_batch(groups, advantages, scale, outcomes)
        return max(abs(r.advantage) for r in batch.rows if r.id.startswith("g/"))

    other = group([1, 0, 1, 0], [10, 10, 10, 10], Effort.MAX, name="other", environment="toy/b")
    assert size(0.6) == pytest.approx(6 * size(0.1))
    mean_less_shortest = (5**2 + 10**2 + 20**2 + 40**2) / 75 - 5  # weighted by length
    assert size(0.1) == pytest.approx(0.1 * mean_less_shortest / 100 / (0.5 if elsewhere else 1))


def test_a_priced_effort_says_as_much_as_a_free_one() -> None:
    """Right answers that keep a half or a quarter of their reward move the policy as much as free ones; among right
    answers lengths count as much against an outcome as the price says."""
    sizes = {}
    for name, lam in (("free", 0.0), ("half", 0.5), ("most", 0.8)):
        config, scale = Config(), EffortScale()
        config.effort.low.lam, config.effort.low.tau = lam, 100.0
        groups = [group([1, 0, 1, 0], [95, 95, 95, 95]), group([1, 1, 1, 1], [50, 60, 70, 80], name="h")]
        reward = EffortReward(config.effort)
        for _ in range(3):
            found = [assess(g, reward, 100.0, 99, config) for g in groups]
            outcomes = [x.outcome_advantages for x in found]
            batch = build_batch(groups, [x.advantages for x in found], None, outcomes, effort_scale=scale)
        sizes[name] = {r.id.split("#")[0]: r.advantage for r in batch.rows}
    for name, lam in (("half", 0.5), ("most", 0.8)):
        for i in range(4):
            assert sizes[name][f"g/{i}"] == pytest.approx(sizes["free"][f"g/{i}"])
        assert sizes[name]["h/0"] - sizes[name]["h/3"] == pytest.approx(lam * 0.3 / (1 - lam * 0.95))


def test_the_scale_of_an_effort_is_bounded_resumable_and_deaf_to_equal_outcomes() -> None:
    scale = EffortScale()
    assert scale.factor("low") == 1.0
    scale.update([("low", np.zeros(4), np.array([0.3, -0.3, 0.0, 0.0]))])
    assert scale.factor("low") == 1.0, "a price alone says nothing about the size of an outcome"
    scale.update([("low", np.array([0.5, -0.5]), np.array([0.25, -0.25])), ("max", np.ones(2), np.full(2, 1e-9))])
    assert scale.factor("low") == pytest.approx(2.0) and scale.factor("max") == 5.0 and scale.factor("high") == 1.0
    other = EffortScale()
    other.load_state_dict(json.loads(json.dumps(scale.state_dict())))
    for one in (scale, other):
        one.update([("low", np.array([0.5, -0.5]), np.array([0.5, -0.5]))])
    assert 1 < other.factor("low") == scale.factor("low") < 2


def test_groups_are_judged_by_their_statistics_and_by_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """GroupStats is the one place of statistics: with a spread of 0 there, prices teach nothing."""
    monkeypatch.setattr(GroupStats, "spread", 0.0)
    assert judged([1, 1, 1], [5, 10, 30]).retired is Retired.ALL_SOLVED


def test_too_few_valid_samples_are_not_compared() -> None:
    assert judged([1, None, None], [5, 5, 5]).retired is Retired.TOO_FEW_VALID


def test_metrics_count_invalid_samples_and_never_average_them() -> None:
    m = step_metrics([judged([1, 0, None, 1], [10, 10, 500, 10]), judged([0, 0, 0], [1, 2, 3], Effort.HIGH)])
    assert m["samples"] == 7 and m["samples_invalid"] == 1
    assert m["solve_rate/all"] == pytest.approx(2 / 6) and m["solve_rate/all/low"] == pytest.approx(2 / 3)
    assert m["tokens_p50/all/low"] == 10 and m["solve_rate/toy/a"] == m["solve_rate/all"]
    assert m["stop/done"] == 7 and m["grade/correct"] == 2 and m["grade/infra_error"] == 1


def test_an_environment_whose_code_blocked_is_named_though_others_of_its_samples_have_a_grade() -> None:
    x = judged([1.0, 0.0, 1.0, None], [5, 5, 5, 5])
    assert not ungraded([x])
    x.group.trajectories[3].grade = Grade.failed(GradeStatus.BLOCKED, "its code did not yield")
    (why,) = ungraded([x]).values()
    assert why == "1 of 4 samples are masked; the first: its code did not yield"

    row = {"environment": "mine:Slow", "reward": 1.0, "status": "correct"}
    lost = {"environment": "mine:Slow", "reward": None, "status": "lost"}
    assert not evaluate.ungraded([row, lost])
    assert "2 of 2 evaluations have no grade (2 lost)" in evaluate.ungraded([lost, lost])["mine:Slow"]
    assert "1 of 2 evaluations" in evaluate.ungraded([row, {**lost, "status": "blocked"}])["mine:Slow"]
