"""Laws of admission, on a simulated clock: room is never exceeded, the longest come first, nobody waits for ever."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import Echo, Files, Looking, order

from benchmarks.simulated import Time
from rewards.grade import Grade
from rl.config import Config
from rollout.admission import Lengths, Line
from rollout.scheduler import Scheduler
from rollout.trajectory import Group, GroupOrder, Node, Sampling, StopReason, Trajectory


def group(o: GroupOrder, tokens: int, *stops: StopReason) -> Group:
    """A finished group whose samples are so long."""
    out = []
    for i, stop in enumerate(stops or [StopReason.DONE] * len(o.seeds)):
        t = Trajectory(f"{o.id}/{i}", o.task, o.effort, stop=stop)
        n = 1 if stop is StopReason.SPARE else tokens
        ones = np.ones(n, np.int32)
        t.append(Node("assistant", ones, np.zeros(n, np.float32), ones.astype(np.uint8), 0 * ones, Sampling()))
        t.grade = Grade.outcome(True) if stop is StopReason.DONE else None
        out.append(t)
    return Group(o, out)


class Hand:
    """A worker: a group takes `seconds(order)`; what it holds is written down."""

    def __init__(self, time: Time, seconds: Any, tokens: Any) -> None:
        self.time, self.seconds, self.tokens = time, seconds, tokens
        self.begun: list[str] = []
        self.held: dict[str, GroupOrder] = {}
        self.down: list[str] = []
        self.seen: list[dict[str, GroupOrder]] = []

    def ping(self, future: Future[Any]) -> None:
        future.set_result({"pid": 0, "down": list(self.down)})

    def abort(self, future: Future[Any], group_id: str) -> None:
        self.held.pop(group_id, None)

    def run_group(self, future: Future[Any], o: GroupOrder, dispatch: int) -> None:
        self.begun.append(o.id)
        self.held[o.id] = o
        self.seen.append(dict(self.held))

        def over() -> None:
            if self.held.pop(o.id, None):
                future.set_result(group(o, self.tokens(o)))

        self.time.at(self.seconds(o), over)


class Place:
    """A scheduler over hands, none of which has begun yet."""

    def __init__(self, workers: int = 1, engines: int = 1, seconds: Any = lambda o: 10.0,
                 tokens: Any = lambda o: 100, **how: Any) -> None:  # fmt: skip
        c = Config()
        c.rollout.workers, c.rollout.group_timeout_s = workers, how.pop("group_timeout_s", 1e6)
        c.engine.max_context, c.engine.max_batch = 1000, how.pop("max_batch", 1000)
        c.sandbox.max_live = how.pop("max_live", 64)
        for key, value in how.items():
            setattr(c.rollout, key, value)
        self.time = Time()
        self.hands = [Hand(self.time, seconds, tokens) for _ in range(workers)]
        self.told: list[dict[str, Any]] = []
        names = {f"engine{i}": None for i in range(engines)}
        self.s = Scheduler(c, names, spawn=lambda name, i: self.hands[i], calls=self.time, tell=self.told.append)
        while not all(w.life for w in self.s._workers):
            self.s.tend(0.5)

    def settle(self, limit_s: float = 1e5) -> list[Group]:
        """Everything that was submitted; fails if it is not in within so many simulated seconds."""
        out, end = [], self.time.now() + limit_s
        while self.s.outstanding:
            out += self.s.completed(1.0)
            assert self.time.now() < end, self.s.who_holds_what()
        return out


def test_a_length_is_that_of_its_cell_and_unknown_ones_are_the_longest() -> None:
    lengths = Lengths(1000)
    assert lengths.expect(order(Echo)) == 1000
    lengths.observe(group(order(Echo), 100))
    assert lengths.expect(order(Echo)) == 100 and lengths.expect(order(Looking)) == 1000
    for _ in range(50):
        lengths.observe(group(order(Echo), 300))
    assert 295 < lengths.expect(order(Echo)) <= 300, "the policy moves"


def test_what_was_cut_counts_as_no_shorter_than_the_others_and_what_failed_not_at_all() -> None:
    lengths = Lengths(1000)
    lengths.observe(group(order(n=2), 400))
    lengths.observe(group(order(n=2), 400, StopReason.DONE, StopReason.SPARE))
    lengths.observe(group(order(n=2), 7, StopReason.ERROR, StopReason.ERROR))
    assert lengths.expect(order()) == pytest.approx(400)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 50)), max_size=30))
def test_the_line_is_sorted_by_due_then_by_length_then_by_arrival(rows: list[tuple[bool, int, int]]) -> None:
    line = Line()
    for i, (boxed, due, expected) in enumerate(rows):
        line.put((i, boxed), boxed, due, expected)
    out = []
    while (item := line.first()) is not None:
        assert line.pop(item[1]) == item
        out.append(item[0])
    assert out == sorted(range(len(rows)), key=lambda i: (rows[i][1], -rows[i][2], i)) and len(line) == 0


def test_the_longest_are_dispatched_first() -> None:
    tokens = {"Echo": 50, "Looking": 700, "Files": 300}
    p = Place(episodes_per_worker=2, tokens=lambda o: tokens[o.task.environment[7:]])
    for env in (Echo, Looking, Files):  # one of each: then their lengths are known
        p.s.submit([order(env, id=f"first {env.__name__}")])
    p.settle()
    p.hands[0].begun.clear()
    kinds = [Echo, Files, Looking, Echo, Looking, Files]
    p.s.submit([order(env, id=f"{env.__name__}{i}") for i, env in enumerate(kinds)])
    p.settle()
    assert [name[:-1] for name in p.hands[0].begun] == ["Looking"] * 2 + ["Files"] * 2 + ["Echo"] * 2


def test_what_is_due_first_goes_before_what_is_longer() -> None:
    p = Place(episodes_per_worker=2, tokens=lambda o: 10)
    p.s.submit([order(Echo, id="known")])
    p.settle()
    p.s.submit([order(Echo, id="held")], due=0)
    p.s.submit([order(Looking, id="later, longer")], due=2)
    p.s.submit([order(Echo, id="sooner")], due=1)
    p.s.submit([order(Echo, id="evaluation")], due=-1)
    p.settle()
    assert p.hands[0].begun == ["known", "held", "evaluation", "sooner", "later, longer"]


def test_tokens_in_flight_stay_within_what_engines_have() -> None:
    p = Place(2, engines=2, engine_tokens=3000, tokens=lambda o: 200 + 10 * (int(o.id) % 7))
    p.s.submit([order(id=str(i), n=4) for i in range(60)])
    most: list[float] = []
    groups: list[float] = []
    while p.s.outstanding:
        p.s.completed(1.0)
        most.append(p.s.stats()["rollout/tokens"])
        groups.append(p.s.stats()["rollout/running_groups"])
    # Unknown lengths are the longest: the first group takes 4 x 1000 of 6000, alone; later 4 x 230 fit six times.
    assert p.hands[0].begun[0] == "0" and p.hands[1].seen[0].keys() != {"1"} and max(most) <= 6000
    assert groups[0] == 1 and max(groups) >= 6
    assert p.s.stats()["rollout/blocked_tokens_s"] > 0 and p.s.stats()["rollout/tokens"] == 0


def test_a_group_larger_than_all_room_runs_alone() -> None:
    p = Place(engine_tokens=1000, max_live=2, episodes_per_worker=3)
    p.s.submit([order(Files, id="large", n=9), order(id="small", n=1)])
    assert len(p.settle()) == 2
    assert all(len(s) == 1 for s in p.hands[0].seen)


def test_an_engine_that_is_down_has_no_room() -> None:
    p = Place(engines=2, max_batch=4, tokens=lambda o: 1000)
    p.hands[0].down = ["engine1"]
    for _ in range(6):  # the next sign of life says so
        p.s.tend(0.5)
    p.s.submit([order(id=str(i), n=4) for i in range(3)])
    assert len(p.hands[0].held) == 1, "one engine of 4 x 1000 tokens"
    p.hands[0].down = []
    for _ in range(6):
        p.s.tend(0.5)
    assert len(p.hands[0].held) == 2
    p.hands[0].down = ["engine0", "engine1"]
    assert len(p.settle()) == 3, "one at a time is tried, though no engine is known to be up"


def test_sandboxes_stay_within_what_a_worker_may_have_and_others_pass() -> None:
    p = Place(1, max_live=8, seconds=lambda o: 100.0 if o.task.environment.endswith("Files") else 10.0)
    p.s.submit([order(Files, id=f"box{i}", n=4) for i in range(5)] + [order(id=f"plain{i}", n=4) for i in range(5)])
    assert Counter(name[:3] for name in p.hands[0].held) == {"box": 2, "pla": 5}
    assert p.s.stats()["rollout/running_sandboxed"] == 8
    assert "no room in sandboxes" in p.s.who_holds_what()
    p.settle()
    for held in p.hands[0].seen:
        assert sum(len(o.seeds) for o in held.values() if o.task.environment.endswith("Files")) <= 8
    stats = p.s.stats()
    assert stats["rollout/blocked_sandboxes_s"] > 100 and stats["rollout/running_sandboxed"] == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(4, 20), st.integers(2, 12))
def test_whoever_waits_is_let_in_though_others_keep_coming(seed: int, workers: int, room: int, live: int) -> None:
    """Small groups come without end; large ones, with sandboxes or without, still get their turn."""
    rng = random.Random(seed)
    p = Place(workers, episodes_per_worker=room, max_live=live, engine_tokens=4000,
              seconds=lambda o: random.Random(o.id).uniform(1, 20), tokens=lambda o: 100)  # fmt: skip
    n = 0
    p.s.submit([order(Files, id="patient box", n=min(room, live)), order(Looking, id="patient", n=room)], due=0)
    begin = p.time.now()
    waiting = {"patient box", "patient"}
    while waiting:
        while p.s.outstanding < 40:
            env = rng.choice([Echo, Echo, Files])
            p.s.submit([order(env, id=str(n), n=rng.randint(1, 2))], due=0)
            n += 1
        waiting -= {g.order.id for g in p.s.completed(1.0)}
        assert p.time.now() - begin < 3000, (waiting, p.s.who_holds_what())
    for hand in p.hands:
        for held in hand.seen:
            sizes = [len(o.seeds) for o in held.values()]
            boxes = [len(o.seeds) for o in held.values() if o.task.environment.endswith("Files")]
            assert sum(sizes) <= room or len(sizes) == 1
            assert sum(boxes) <= live or len(boxes) == 1


def test_room_is_free_again_after_a_deadline_and_what_is_late_goes_first() -> None:
    slow = {"late"}
    p = Place(episodes_per_worker=4, max_live=4, group_timeout_s=50.0,
              seconds=lambda o: 1e9 if o.id in slow else 10.0)  # fmt: skip
    p.s.submit([order(Files, id="late", n=4)])
    p.s.submit([order(Files, id="next", n=4)])
    while not p.told:
        p.s.completed(1.0)
    assert p.told[0]["event"] == "stalled" and p.s.stats()["rollout/running_sandboxed"] == 4
    slow.clear()
    done = p.settle()
    assert [g.order.id for g in done] == ["late", "next"] and p.s.counts["redispatched"] == 1
    assert p.s.stats()["rollout/running_episodes"] == p.s.stats()["rollout/tokens"] == 0


def test_what_finishes_while_the_caller_waits_elsewhere_is_kept() -> None:
    p = Place(episodes_per_worker=2)
    p.s.submit([order(id="a"), order(id="b")])
    for _ in range(50):
        p.s.tend(0.5)
    assert p.hands[0].begun == ["a", "b"], "the second one was dispatched meanwhile"
    now = p.time.now()
    assert [g.order.id for g in p.s.completed(5.0)] == ["a", "b"] and p.time.now() == now
    assert p.s.completed(5.0) == []


def test_samples_that_were_cut_are_counted() -> None:
    p = Place()
    p.hands[0].run_group = lambda future, o, dispatch: p.time.at(  # type: ignore[method-assign]
        1.0, lambda: future.set_result(group(o, 9, StopReason.DONE, StopReason.SPARE, StopReason.ABORTED))
    )
    p.s.submit([order(n=3)])
    p.settle()
    stats = p.s.stats()
    assert stats["rollout/samples_spare"] == 1 and stats["rollout/samples_cut"] == 1
