"""One rule for sync and async: nothing too old is trained, nothing slow is thrown away, every group is in the books."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from environments.base import Draft, Environment
from rewards.grade import Grade, GradeStatus
from rl.assess import Assessed, Retired
from rl.collect import Collector, StarvedError
from rl.config import Config
from rl.ledger import GroupState, Ledger, LedgerError
from rl.mixture import Mixture
from rollout.trajectory import Group, GroupOrder, Node, Sampling, StopReason, Trajectory


class Toy(Environment):
    levels = (1,)

    def __init__(self, id: str) -> None:
        self.id = id

    def draw(self, rng: random.Random, level: int) -> Draft:
        return Draft(f"{self.id}: {rng.randrange(100_000)}", "")


class SimulatedRollout:
    """Only time is simulated: each order takes `duration(order)` ticks; `version` is stamped when it starts."""

    def __init__(self, duration, slots: int = 8, lose=lambda o: False, reward=lambda o, i: float(i % 2)) -> None:
        self.duration, self.slots, self.lose, self.reward = duration, slots, lose, reward
        self.version, self.now = 0, 0
        self.queue: list[GroupOrder] = []
        self.running: list[tuple[int, int, GroupOrder]] = []
        self.gone: list[tuple[GroupOrder, str]] = []

    def submit(self, orders: list[GroupOrder], due: int = 0) -> None:
        self.queue += orders

    def completed(self, timeout: float) -> list[Group]:
        while self.queue and len(self.running) < self.slots:
            order = self.queue.pop(0)
            self.running.append((self.now + self.duration(order), self.version, order))
        if not self.running:
            return []
        self.now = min(t for t, _, _ in self.running)
        done = [r for r in self.running if r[0] == self.now]
        self.running = [r for r in self.running if r[0] != self.now]
        groups = []
        for _, version, order in done:
            if self.lose(order):
                self.gone.append((order, "deadline"))
            else:
                groups.append(Group(order, [self.sample(order, i, version) for i in range(len(order.seeds))]))
        return groups

    def sample(self, order: GroupOrder, i: int, version: int) -> Trajectory:
        one = np.ones(2)
        node = Node("assistant", one.astype(np.int32), -one.astype(np.float32), one.astype(np.uint8),
                    np.full(2, version, np.int32), Sampling())  # fmt: skip
        value = self.reward(order, i)
        grade = Grade.failed(GradeStatus.INFRA_ERROR, "x") if value is None else Grade.outcome(value >= 1.0)
        return Trajectory(f"{order.id}/{i}", order.task, order.effort, [node], stop=StopReason.DONE, grade=grade)

    def lost(self) -> list[tuple[GroupOrder, str]]:
        out, self.gone = self.gone, []
        return out


def simple_assess(group: Group, step: int) -> Assessed:
    valid = np.array([t.grade.valid for t in group.trajectories])
    raw = np.array([t.grade.reward or 0.0 for t in group.trajectories])
    retired = Retired.TOO_FEW_VALID if valid.sum() < 2 else Retired.ALL_SOLVED if raw[valid].min() == 1 else None
    if retired is None and raw[valid].max() == 0:
        retired = Retired.ALL_FAILED
    advantages = raw - raw.mean()
    return Assessed(group, raw, valid, raw * 0 + 2, raw, advantages, advantages, retired, step)


def make(tmp_path: Path, rollout: SimulatedRollout, staleness: int = 0, n: int = 8, **kw) -> tuple[Collector, Ledger]:
    config = Config()
    config.algorithm.groups_per_step, config.algorithm.group_size = n, 4
    config.algorithm.max_staleness, config.algorithm.max_sampling_rounds = staleness, 4
    for k, v in kw.items():
        setattr(config.algorithm, k, v)
    ledger = Ledger(tmp_path / "ledger")
    mixture = Mixture(config, [Toy("toy/fast"), Toy("toy/slow")])
    return Collector(config, mixture, ledger, rollout, simple_assess), ledger


def train(collector: Collector, ledger: Ledger, rollout: SimulatedRollout, steps: int) -> list[list[Assessed]]:
    batches = []
    for step in range(steps):
        batch = collector.batch()
        ledger.train([x.group.order.id for x in batch], step)
        rollout.version = step + 1
        collector.advance(step + 1)
        batches.append(batch)
    return batches


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_nothing_older_than_allowed_is_trained_and_nothing_is_discarded(tmp_path: Path, staleness: int) -> None:
    rollout = SimulatedRollout(lambda o: 50 if o.task.environment == "toy/slow" else 10)
    collector, ledger = make(tmp_path, rollout, staleness)
    batches = train(collector, ledger, rollout, 40)
    ages = [step - x.group.trajectories[0].version_range()[0] for step, b in enumerate(batches) for x in b]
    assert max(ages) <= staleness
    if staleness:
        assert max(ages) > 0, "asynchronous training that never trains on older weights is not asynchronous"
    assert "stale" not in ledger.reasons()
    drawn = Counter(e.order["task"]["environment"] for e in ledger.entries.values())
    trained = Counter(x.group.order.task.environment for b in batches for x in b)
    share = lambda c: c["toy/slow"] / sum(c.values())
    assert share(trained) == pytest.approx(share(drawn), abs=0.05)


def test_who_waits_for_groups_hears_of_a_dead_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead(Exception): ...

    def check() -> None:
        raise Dead

    monkeypatch.setattr("rl.collect._CHECK_S", 0.0)
    collector, _ = make(tmp_path, SimulatedRollout(lambda o: 1))
    collector.check = check
    with pytest.raises(Dead):
        collector.batch()
    with pytest.raises(Dead):
        collector.evaluate([collector.mixture.order(1)])


def test_synchronous_batches_do_not_depend_on_completion_order(tmp_path: Path) -> None:
    ids = []
    for k, duration in enumerate((lambda o: 1, lambda o: hash(o.id) % 17, lambda o: -int(o.id[1:]) % 7)):
        rollout = SimulatedRollout(duration, reward=lambda o, i: float(i % 2) if int(o.id[1:]) % 3 else 1.0)
        collector, ledger = make(tmp_path / str(k), rollout)
        ids.append([[x.group.order.id for x in b] for b in train(collector, ledger, rollout, 6)])
        assert ledger.reasons()["all_solved"] > 0
    assert ids[0] == ids[1] == ids[2]
    assert all(len(b) == 8 for b in ids[0])


def test_lost_and_masked_groups_are_retired_and_replaced(tmp_path: Path) -> None:
    rollout = SimulatedRollout(
        lambda o: 1,
        lose=lambda o: int(o.id[1:]) % 5 == 0,
        reward=lambda o, i: None if int(o.id[1:]) % 7 == 0 else float(i % 2),
    )
    collector, ledger = make(tmp_path, rollout)
    batches = train(collector, ledger, rollout, 5)
    assert [len(b) for b in batches] == [8] * 5
    assert set(ledger.reasons()) == {"deadline", "too_few_valid"}
    assert ledger.counts()["trained"] == 40
    assert not any(ledger.having(s) for s in (GroupState.PLANNED, GroupState.DISPATCHED, GroupState.FINISHED))


def test_dynamic_sampling_ends(tmp_path: Path) -> None:
    rollout = SimulatedRollout(lambda o: 1, reward=lambda o, i: 0.0)
    collector, ledger = make(tmp_path, rollout, max_sampling_rounds=3)
    with pytest.raises(StarvedError, match="all_failed"):
        collector.batch()
    assert ledger.counts()["retired"] == 24 * 8, "seven more rounds, then it gives up"
    late = SimulatedRollout(lambda o: 1, reward=lambda o, i: float(i % 2) if int(o.id[1:]) == 30 else 0.0)
    collector, ledger = make(tmp_path / "late", late, max_sampling_rounds=1)
    assert [x.group.order.id for x in collector.batch()] == ["g000030"], "an empty round is drawn again"
    rare = SimulatedRollout(lambda o: 1, reward=lambda o, i: float(i % 2) if o.id == "g000004" else 0.0)
    collector, ledger = make(tmp_path / "rare", rare, max_sampling_rounds=3)
    assert [x.group.order.id for x in collector.batch()] == ["g000004"]


def test_a_restored_run_trains_what_was_waiting_and_in_flight_with_the_same_seeds(tmp_path: Path) -> None:
    rollout = SimulatedRollout(lambda o: 5 + int(o.id[1:]) % 4, slots=20)
    collector, ledger = make(tmp_path, rollout, staleness=2)
    train(collector, ledger, rollout, 3)
    mark, state, mixture_state = ledger.sync(), collector.state_dict(), collector.mixture.state_dict()
    finished = {e.id: e.order for e in ledger.having(GroupState.FINISHED)}
    flying = {e.id: e.order for e in ledger.having(GroupState.DISPATCHED)}
    assert finished and flying
    ledger.train([x.group.order.id for x in collector.batch()], 3)  # lost: after the checkpoint
    ledger.close()

    def restored() -> Collector:
        again = SimulatedRollout(lambda o: 10)
        again.version = 3
        ledger = Ledger(tmp_path / "ledger")
        ledger.rollback(mark)
        mixture = Mixture(collector.config, [Toy("toy/fast"), Toy("toy/slow")])
        mixture.load_state_dict(mixture_state)
        resumed = Collector(collector.config, mixture, ledger, again, simple_assess)
        resumed.load_state_dict(state)
        return resumed

    resumed = restored()
    batch = resumed.batch()
    orders = {x.group.order.id: x.group.order.to_json() for x in batch}
    assert orders.items() <= (finished | flying).items()
    assert set(finished) <= set(orders), "the oldest are trained first"
    assert resumed.ledger.counts()["planned"] == 0
    resumed.ledger.close()
    state["buffer"]["waiting"].pop()
    with pytest.raises(LedgerError, match="disagree"):
        restored()


def test_evaluation_keeps_training_groups_that_finish_meanwhile(tmp_path: Path) -> None:
    rollout = SimulatedRollout(lambda o: 5 if o.purpose == "eval" else 3)
    collector, ledger = make(tmp_path, rollout, staleness=1)
    batch = collector.batch()
    ledger.train([x.group.order.id for x in batch], 0)
    collector.advance(1)
    evals = [GroupOrder(f"eval/x/{i}", collector.mixture.order(1).task, x.group.order.effort, (1,), purpose="eval")
             for i, x in enumerate(batch)]  # fmt: skip
    done, lost = collector.evaluate(evals)
    assert len(done) == len(evals) and not lost
    assert len(collector.batch()) == 8


@pytest.mark.parametrize("staleness", [0, 2])
def test_one_round_trains_on_what_has_a_signal(tmp_path: Path, staleness: int) -> None:
    """Groups without a signal are not replaced: a step ends when its groups are in, also while others are ahead."""
    rollout = SimulatedRollout(
        lambda o: 5 + int(o.id[1:]) % 7, slots=20, reward=lambda o, i: float(i % 2) if int(o.id[1:]) % 2 else 1.0
    )
    collector, ledger = make(tmp_path, rollout, staleness, max_sampling_rounds=1)
    batches = train(collector, ledger, rollout, 30)
    assert 3 <= np.mean([len(b) for b in batches]) <= 5, "half of the groups have a signal"
    if staleness == 0:
        assert len(ledger.entries) == 30 * 8, "one round a step, nothing replaced"
    else:  # what was retired makes room for groups ahead, at most as many again as a step draws
        assert 30 * 8 < len(ledger.entries) <= 2 * 30 * 8
    ages = [step - x.group.trajectories[0].version_range()[0] for step, b in enumerate(batches) for x in b]
    assert max(ages) <= staleness and (max(ages) > 0 or not staleness)
