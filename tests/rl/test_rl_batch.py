"""Laws of the batch: every trained token once, one denominator, no effect of padding, order, sharing, cuts or ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.task import Task
from rewards.efforts import Effort
from rewards.grade import Grade, GradeStatus
from rl.algorithms import EnvScale
from rl.batch import SLACK, MicroBatch, build_batch
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


def _group(name, lengths, rewards=None, env="a", prompt=3, **more):
    task = _task(env)
    order = GroupOrder(name, task, Effort.LOW, tuple(range(len(lengths))))
    rewards = rewards or [1.0] * len(lengths)
    rows = [
        _trajectory(f"{name}/{i}", prompt, n, r, task=task, **more)
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
                    int(m.past[i] + t),
                    float(m.behaviour[i, t]),
                    shard.environments[m.environment[i]],
                )
                seen[key] = seen.get(key, 0.0) + 1.0 / shard.tokens
    return seen


_lengths = st.lists(st.integers(1, 30), min_size=2, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(_lengths, min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 120), st.booleans(), st.randoms())
def test_the_step_does_not_depend_on_ranks_micro_batches_sharing_or_order(groups, ranks, micro, share, random):
    made = [_group(f"g{i}", lengths, env="ab"[i % 2]) for i, lengths in enumerate(groups)]
    advantages = [np.linspace(-1, 1, len(lengths)) + 0.01 * i for i, lengths in enumerate(groups)]
    whole = build_batch(made, advantages)
    want = _token_sums(whole.shards(1, 10**9, share=False))
    order = list(range(len(made)))
    random.shuffle(order)
    shuffled = build_batch([made[i] for i in order], [advantages[i] for i in order])
    shards = shuffled.shards(ranks, micro, share)
    got = _token_sums(shards)
    assert got.keys() == want.keys()
    assert all(abs(got[k] - want[k]) < 1e-12 for k in want)
    assert len({len(s.micro_batches) for s in shards}) == 1  # equally many collectives on every rank
    for m in (m for s in shards for m in s.micro_batches):
        assert sum(map(bool, m.ids)) == 1 or (m.positions if share else m.input_ids.size) <= micro
    assert {s.tokens for s in shards} == {whole.tokens}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=8, max_size=40), st.integers(2, 4))
def test_ranks_get_equal_work(lengths, ranks):
    batch = build_batch([_group("g", lengths)], [np.ones(len(lengths))])
    loads = [sum(m.positions for m in s.micro_batches if not m.dummy) for s in batch.shards(ranks, 10**9)]
    assert max(loads) - min(loads) <= max(lengths) + 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), _lengths), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 90))
def test_a_shared_prompt_and_its_rows_are_the_rows_that_were_given(groups, ranks, micro):
    made = [_group(f"g{i}", lengths, prompt=prompt) for i, (prompt, lengths) in enumerate(groups)]
    for x in (x for g in made for x in g.trajectories):
        x.nodes[1] = replace(x.nodes[1], token_ids=x.nodes[1].token_ids + len(x.nodes[1]))
    batch = build_batch(made, [np.linspace(-1, 1, len(x.trajectories)) for x in made])
    rows, seen = {r.id: r for r in batch.rows}, []
    for m in (m for s in batch.shards(ranks, micro) for m in s.micro_batches if not m.dummy):
        parents = np.full(len(m.ids), -1) if m.parents is None else m.parents
        for i, name in enumerate(m.ids):
            n, whole = m.lengths[i], rows[name or m.ids[i + 1]]
            if parents[i] < 0:
                parts = [(i, n)]
                assert m.predictors[i, 0] == -1
            else:
                parts = [(parents[i], m.lengths[parents[i]]), (i, n)]
                assert m.ids[parents[i]] == "" and not m.mask[parents[i]].any()
            for column, field in ((m.input_ids, "token_ids"), (m.mask, "mask"), (m.temperature, "temperature")):
                got = np.concatenate([column[j, :k] for j, k in parts])
                assert np.array_equal(got, getattr(whole, field)[: len(got)])
            if name:
                assert sum(k for _, k in parts) == len(whole)
                for t in np.flatnonzero(m.mask[i]):
                    before = whole.token_ids[m.past[i] + t - 1]
                    assert m.input_ids.flatten()[m.predictors[i, t]] == before
                seen.append(name)
    assert sorted(seen) == sorted(rows)


def test_what_siblings_share_is_computed_once_and_only_that():
    groups = [_group("a", [4, 6, 9], prompt=7), _group("b", [2, 3], prompt=5), _group("c", [3], prompt=8)]
    batch = build_batch(groups, [np.array([1.0, -1.0, 0.5]), np.ones(2), np.ones(1)])
    (m,) = batch.shards(1, 10**9)[0].micro_batches
    assert m.positions == (7 + 4 + 6 + 9) + (5 + 2 + 3) + (8 + 3)
    assert sorted(m.copies) == [1] * 6 + [2, 3]
    assert [sum(m.positions for m in s.micro_batches) for s in batch.shards(1, 10**9, share=False)] == [66]
    # An invalid sample is no sibling.
    invalid = build_batch([_group("g", [10, 5, 3], rewards=[None, 1.0, 0.0])], [np.array([1e9, 0.5, -0.5])])
    assert invalid.shards(1, 10**9)[0].micro_batches[0].positions == 3 + 5 + 3
    # A group that does not fit is cut, and its prompt repeated.
    assert [m.positions for m in batch.shards(1, 20)[0].micro_batches] == [16, 7 + 6 + 4, 11, 10]


def test_prompts_with_other_recorded_routes_or_tokens_are_not_shared():
    def rows(change):
        group = _group("g", [3, 3], prompt=4)
        for x in group.trajectories:
            x.nodes = [replace(n, routes=np.zeros((len(n), 2, 1), np.uint16)) for n in x.nodes]
        change(group.trajectories[1].nodes[0])
        return build_batch([group], [np.array([1.0, -1.0])]).rows

    def reroute(node):
        node.routes[2] = 1

    def rewrite(node):
        node.token_ids[0] = 99

    assert MicroBatch.of(rows(lambda node: None), share=True).parents.tolist() == [-1, 0, 0]
    assert MicroBatch.of(rows(reroute), share=True).parents is None
    assert MicroBatch.of(rows(rewrite), share=True).parents is None


def _names(shard):
    return [name for m in shard.micro_batches for name in m.ids if name]


def test_groups_stay_together_where_the_balance_allows_it():
    lengths = [8, 11, 5, 14, 9, 7, 12, 10]
    groups = [_group(f"g{i}", lengths, prompt=40 + i) for i in range(30)]
    batch = build_batch(groups, [np.linspace(-1, 1, 8)] * 30)
    shards = batch.shards(2, 10**9)
    assert all(len(_names(s)) % 8 == 0 for s in shards)
    loads = [sum(m.positions for m in s.micro_batches) for s in shards]
    assert sum(loads) == sum(40 + i + sum(lengths) for i in range(30))  # every prompt once
    assert abs(loads[0] - loads[1]) <= SLACK * sum(loads) / 2


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


def test_the_head_of_a_micro_batch_keeps_its_first_rows_and_its_width():
    rows = build_batch([_group("g", [9, 5, 3])], [np.ones(3)]).rows
    whole = MicroBatch.of(rows)
    part = whole.head(int(whole.lengths[:2].sum()))
    assert part.ids == whole.ids[:2] and part.routes is None
    for name in ("input_ids", "lengths", "mask", "behaviour", "advantage", "temperature", "environment"):
        assert np.array_equal(getattr(part, name), getattr(whole, name)[:2])
    assert whole.head(1).ids == whole.ids[:1], "one row at least"
    shared = MicroBatch.of(rows, share=True)
    assert shared.ids[0] == "" and shared.head(1).ids == shared.ids[:2], "a prompt alone trains nothing"
    groups = [_group("g", [9], env="a"), _group("h", [2, 2], env="b")]
    two = MicroBatch.of(build_batch(groups, [np.ones(1), np.ones(2)]).rows, share=True)
    assert two.parents.tolist() == [-1, -1, 1, 1] and two.head(16).ids == two.ids[:1], "nor does one at the end"
    assert MicroBatch.idle().head(100).dummy


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
    advantages = [np.array([1.0, -1.0]), np.array([100.0, -100.0, 1e9])]
    batch = build_batch(groups, advantages, scale, outcomes=advantages)
    assert sorted(round(r.advantage, 6) for r in batch.rows) == [-1.0, -1.0, 1.0, 1.0]
    assert scale.scale("b") == pytest.approx(100.0)
    with pytest.raises(ValueError, match="raw outcomes"):
        build_batch(groups, advantages, scale)


def test_the_scale_is_told_raw_outcomes_and_divides_shaped_ones():
    scale = EnvScale()
    groups = [_group("a", [2, 2], env="a"), _group("b", [2, 2], env="b")]
    shaped, raw = [np.array([0.01, -0.01]), np.array([0.4, -0.6])], [np.zeros(2), np.array([0.5, -0.5])]
    batch = build_batch(groups, shaped, scale, outcomes=raw)
    assert [round(r.advantage, 6) for r in batch.rows] == [0.02, -0.02, 0.8, -1.2]
    assert scale.state_dict()["square"].keys() == {"b"}, "a price alone is no size of an outcome"
