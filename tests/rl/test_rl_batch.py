"""Laws of the batch: every trained token once, one denominator, no effect of padding, order, micro-batches or ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.task import Task
from rewards.efforts import Effort
from rewards.grade import Grade, GradeStatus
from rl.algorithms import EnvScale
from rl.batch import MicroBatch, build_batch
from rollout.trajectory import Group, GroupOrder, Node, Sampling, StopReason, Trajectory


def _trajectory(name, prompt, reply, reward=1.0, routes=None, task=None, stop=StopReason.DONE, temperature=1.0):
    grade = Grade.failed(GradeStatus.INFRA_ERROR, "x") if reward is None else Grade.outcome(reward == 1.0)
    t = Trajectory(name, task or _task("a"), Effort.LOW, grade=grade, stop=stop)
    t.append(Node.given("user", list(range(1, prompt + 1))))
    ids = np.arange(50, 50 + reply, dtype=np.int32)
    logprobs = np.linspace(-2, -0.1, reply).astype(np.float32)
    t.append(
        Node(
            "assistant",
            ids,
            logprobs,
            np.ones(reply, np.uint8),
            np.zeros(reply, np.int32),
            Sampling(temperature),
            routes=routes,
        )
    )
    return t


def _task(env):
    return Task(id=f"{env}/train/1/0/0", environment=env, prompt=({"role": "user", "content": "x"},))


def _group(name, lengths, rewards=None, env="a", **more):
    task = _task(env)
    order = GroupOrder(name, task, Effort.LOW, tuple(range(len(lengths))))
    rewards = rewards or [1.0] * len(lengths)
    rows = [
        _trajectory(f"{name}/{i}", 3, n, r, task=task, **more)
        for i, (n, r) in enumerate(zip(lengths, rewards, strict=True))
    ]
    return Group(order, rows)


def _token_sums(shards):
    """What a loss would see: for every (advantage, token, position) the sum of 1 / tokens."""
    seen: dict = {}
    for shard in shards:
        for m in shard.micro_batches:
            for i, t in zip(*np.nonzero(m.mask), strict=True):
                key = (
                    round(float(m.advantage[i, t]), 5),
                    int(m.input_ids[i, t]),
                    int(t),
                    float(m.behaviour[i, t]),
                    shard.environments[m.environment[i]],
                )
                seen[key] = seen.get(key, 0.0) + 1.0 / shard.tokens
    return seen


_lengths = st.lists(st.integers(1, 30), min_size=2, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(_lengths, min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 120), st.randoms())
def test_the_step_does_not_depend_on_ranks_micro_batches_or_order(groups, ranks, micro, random):
    made = [_group(f"g{i}", lengths, env="ab"[i % 2]) for i, lengths in enumerate(groups)]
    advantages = [np.linspace(-1, 1, len(lengths)) + 0.01 * i for i, lengths in enumerate(groups)]
    whole = build_batch(made, advantages)
    want = _token_sums(whole.shards(1, 10**9))
    order = list(range(len(made)))
    random.shuffle(order)
    shuffled = build_batch([made[i] for i in order], [advantages[i] for i in order])
    shards = shuffled.shards(ranks, micro)
    got = _token_sums(shards)
    assert got.keys() == want.keys()
    assert all(abs(got[k] - want[k]) < 1e-12 for k in want)
    assert len({len(s.micro_batches) for s in shards}) == 1  # equally many collectives on every rank
    assert all(m.padded_tokens <= micro or len(m.lengths) == 1 or m.dummy for s in shards for m in s.micro_batches)
    assert {s.tokens for s in shards} == {whole.tokens}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=8, max_size=40), st.integers(2, 4))
def test_ranks_get_equal_work(lengths, ranks):
    batch = build_batch([_group("g", lengths)], [np.ones(len(lengths))])
    loads = [sum(int(m.lengths.sum()) for m in s.micro_batches if not m.dummy) for s in batch.shards(ranks, 256)]
    assert max(loads) - min(loads) <= max(lengths) + 3


def test_padding_width_changes_only_masked_columns():
    rows = build_batch([_group("g", [2, 5])], [np.array([1.0, -1.0])]).rows
    narrow, wide = MicroBatch.of(rows), MicroBatch.of(rows, width=40)
    for name in ("input_ids", "mask", "behaviour", "advantage"):
        a, b = getattr(narrow, name), getattr(wide, name)
        assert np.array_equal(a, b[:, : a.shape[1]]) and not b[:, a.shape[1] :].any()
    assert np.array_equal(narrow.lengths, wide.lengths)


def test_invalid_samples_are_left_out_of_numerator_and_denominator_and_counted():
    # 10 tokens of an infrastructure failure, 5 of a finished row: the denominator is 5, not 15.
    batch = build_batch([_group("g", [10, 5, 3], rewards=[None, 1.0, 0.0])], [np.array([1e9, 0.5, -0.5])])
    assert batch.tokens == 8
    assert batch.counts["samples_invalid"] == 1 and batch.counts["samples"] == 3
    assert max(abs(r.advantage) for r in batch.rows) == 0.5
    aborted = build_batch([_group("g", [4, 4], stop=StopReason.ABORTED)], [np.ones(2)])
    assert aborted.tokens == 0 and aborted.counts["samples_invalid"] == 2


def test_a_group_without_signal_does_not_dilute_the_denominator():
    batch = build_batch([_group("a", [10, 10]), _group("b", [10, 10])], [np.zeros(2), np.array([0.5, -0.5])])
    assert batch.tokens == 20
    assert batch.counts["groups_without_signal"] == 1 and batch.counts["samples_without_signal"] == 2


def test_an_empty_batch_still_gives_every_rank_one_dummy():
    for shard in build_batch([], []).shards(2, 64):
        assert shard.tokens == 0 and [m.dummy for m in shard.micro_batches] == [True]


def test_segments_are_rows_of_their_own_and_share_the_advantage():
    t = _trajectory("t", 3, 4)
    t.segments.append(len(t.nodes))
    again = _trajectory("t", 2, 6)
    t.nodes += again.nodes
    group = _group("g", [2, 2])
    group.trajectories[0] = t
    rows = build_batch([group], [np.array([0.25, -0.25])]).rows
    assert [(len(r), int(r.mask.sum()), r.advantage) for r in rows] == [(7, 4, 0.25), (8, 6, 0.25), (5, 2, -0.25)]


def test_routes_keep_their_rows_and_unrecorded_ones_route_live():
    routes = np.array([[[1, 2]], [[3, 4]], [[65535, 65535]]], np.uint16)
    group = _group("g", [3, 5])
    group.trajectories[0] = _trajectory("t", 2, 3, routes=routes)
    batch = MicroBatch.of(build_batch([group], [np.array([1.0, -1.0])]).rows)
    assert batch.routes.shape == (2, 8, 1, 2) and batch.routes.dtype == np.int16
    assert batch.routes[0, :, 0].tolist() == [[-1, -1], [-1, -1], [1, 2], [3, 4]] + [[-1, -1]] * 4
    assert (batch.routes[1] == -1).all()


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ValueError, match="greedily"):
        build_batch([_group("g", [2, 2], temperature=0.0)], [np.array([1.0, -1.0])])
    with pytest.raises(ValueError, match="first token"):
        bare = _group("g", [2, 2])
        bare.trajectories[0].nodes.pop(0)
        build_batch([bare], [np.array([1.0, -1.0])])
    with pytest.raises(ValueError, match="samples"):
        build_batch([_group("g", [2, 2])], [np.ones(1)])
    with pytest.raises(ValueError, match="samples"):
        build_batch([_group("g", [2, 2])], [np.array([np.nan, 1.0])])


def test_the_scale_divides_by_environment_and_is_told_valid_samples_only():
    scale = EnvScale()
    groups = [_group("a", [2, 2], env="a"), _group("b", [2, 2, 2], env="b", rewards=[1.0, 0.0, None])]
    batch = build_batch(groups, [np.array([1.0, -1.0]), np.array([100.0, -100.0, 1e9])], scale=scale)
    assert sorted(round(r.advantage, 6) for r in batch.rows) == [-1.0, -1.0, 1.0, 1.0]
    assert scale.scale("b") == pytest.approx(100.0)
