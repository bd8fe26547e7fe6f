"""Laws of the buffer: staleness is bounded by admission, also after a recovery, and slow tasks are not left out."""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import order

from rewards.grade import Grade, GradeStatus
from rollout.buffer import RolloutBuffer
from rollout.trajectory import Group, Node, Sampling, StopReason, Trajectory


def group(id: str, version: int = 0, valid: int = 2, n: int = 2) -> Group:
    o = order(id=id, n=n)
    out = []
    for i in range(n):
        t = Trajectory(f"{id}/{i}", o.task, o.effort, stop=StopReason.DONE)
        ones = np.ones(2, np.uint8)
        t.append(
            Node(
                "assistant",
                ones.astype(np.int32),
                -ones.astype(np.float32),
                ones,
                np.full(2, version, np.int32),
                Sampling(),
            )
        )
        t.grade = Grade.outcome(True) if i < valid else Grade.failed(GradeStatus.INFRA_ERROR, "x")
        out.append(t)
    return Group(o, out)


def test_capacity_is_restored_after_recovery() -> None:
    # AReaL#1388: the accepted count restarted at 0 while the version was 50, and 212 groups were started.
    buffer = RolloutBuffer(groups_per_step=4, max_staleness=2, version=50)
    assert buffer.capacity() == 12
    other = RolloutBuffer(4, 2)
    other.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
    assert other.capacity() == 12 and other.version == 50


def test_synchronous_training_starts_nothing_between_batch_and_update() -> None:
    buffer = RolloutBuffer(2, 0)
    for i in range(2):
        buffer.start(order(id=f"g{i}"))
    assert buffer.capacity() == 0 and not buffer.ready()
    for i in range(2):
        assert buffer.put(group(f"g{i}")) is None
    assert buffer.ready() and len(buffer.take()) == 2
    assert buffer.capacity() == 0  # these would be sampled on weights that are about to change
    buffer.advance(1)
    assert buffer.capacity() == 2


def test_a_short_step_does_not_let_staleness_creep_in() -> None:
    buffer = RolloutBuffer(4, 0)
    for i in range(4):
        buffer.start(order(id=f"g{i}"))
    assert buffer.put(group("g0")) is None
    for i in (1, 2, 3):
        buffer.give_up(f"g{i}")
    assert len(buffer.take()) == 1
    assert buffer.capacity() == 0
    buffer.advance(1)
    assert buffer.capacity() == 4


def test_retired_and_refused_groups_free_their_slot() -> None:
    buffer = RolloutBuffer(2, 0, min_group=2)
    buffer.start(order(id="a"))
    buffer.start(order(id="b"))
    assert (buffer.put(group("a", valid=1)) or "").startswith("too_small")
    buffer.give_up("b")
    assert buffer.capacity() == 2 and buffer.counts["too_small"] == 1


def test_k_of_n_valid_samples_are_enough() -> None:
    buffer = RolloutBuffer(2, 0, min_group=2)
    buffer.start(order(id="a", n=4))
    assert buffer.put(group("a", valid=2, n=4)) is None


def test_a_group_arrives_once() -> None:
    buffer = RolloutBuffer(2, 0)
    buffer.start(order(id="a"))
    with pytest.raises(ValueError, match="already"):
        buffer.start(order(id="a"))
    buffer.put(group("a"))
    for id in ("a", "never"):
        with pytest.raises(ValueError, match="not in flight"):
            buffer.put(group(id))


def test_too_old_groups_are_refused_with_their_reason() -> None:
    buffer = RolloutBuffer(2, 1)
    buffer.start(order(id="a"))
    buffer.advance(2)
    assert (buffer.put(group("a", version=0)) or "").startswith("stale")


def test_oldest_first_then_in_order_of_arrival() -> None:
    buffer = RolloutBuffer(2, 3)
    for id, v in (("a", 2), ("b", 1), ("c", 2), ("d", 1)):
        buffer.start(order(id=id))
        buffer.put(group(id, v))
    assert [g.order.id for g in buffer.take()] == ["b", "d"]
    assert [g.order.id for g in buffer.take()] == ["a", "c"]


def test_state_comes_back_and_a_mismatch_is_loud() -> None:
    buffer = RolloutBuffer(2, 1, version=3)
    for i in range(2):
        buffer.start(order(id=f"g{i}"))
    buffer.put(group("g0", 3))
    other = RolloutBuffer(2, 1)
    other.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
    assert len(other) == 1 and other.in_flight == 0 and other.capacity() == 3
    other.start(order(id="g1"))  # in flight at the checkpoint: the ledger has it started again
    assert [g.order.id for g in other.take(1)] == ["g0"]
    with pytest.raises(ValueError, match="groups_per_step"):
        RolloutBuffer(3, 1).load_state_dict(buffer.state_dict())
    with pytest.raises(ValueError, match="cannot go back"):
        other.advance(1)
    with pytest.raises(ValueError, match="a buffer needs"):
        RolloutBuffer(0, 1)


def simulate(
    max_staleness: int, steps: int, seed: int, per_step: int = 8, slow: float = 5.0
) -> tuple[Counter, Counter, int]:
    """Training on a simulated clock with quick (1 s) and slow tasks; drawn and trained kinds, worst staleness."""
    rng = random.Random(seed)
    buffer, clock, worst = RolloutBuffer(per_step, max_staleness), 0.0, 0
    running: list[tuple[float, int, str, int]] = []
    drawn: Counter = Counter()
    trained: Counter = Counter()
    n = 0
    for step in range(steps):
        while not buffer.ready():
            for _ in range(buffer.capacity()):
                kind = "slow" if rng.random() < 0.3 else "quick"
                drawn[kind] += 1
                buffer.start(order(id=f"{kind}{n}"))
                heapq.heappush(
                    running,
                    (
                        clock + (slow if kind == "slow" else 1.0) * rng.uniform(0.8, 1.2),
                        n,
                        f"{kind}{n}",
                        buffer.version,
                    ),
                )
                n += 1
            clock, _, id, version = heapq.heappop(running)
            assert buffer.put(group(id, version)) is None, "finished work was thrown away"
        for g in buffer.take():
            worst = max(worst, buffer.staleness(g))
            trained[g.order.id.rstrip("0123456789")] += 1
        clock += 0.5
        buffer.advance(step + 1)
    return drawn, trained, worst


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_slow_tasks_are_trained_as_often_as_they_are_drawn(max_staleness: int) -> None:
    drawn, trained, worst = simulate(max_staleness, steps=120, seed=1)
    share = lambda c: c["slow"] / sum(c.values())
    assert abs(share(trained) - share(drawn)) < 0.02
    assert worst <= max_staleness


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 4), st.integers(0, 10_000), st.integers(1, 6), st.floats(1.0, 40.0))
def test_the_staleness_bound_always_holds(max_staleness: int, seed: int, per_step: int, slow: float) -> None:
    _, trained, worst = simulate(max_staleness, 20, seed, per_step, slow)
    assert worst <= max_staleness and sum(trained.values()) == 20 * per_step
