"""Laws of picks on their way from an engine to a row: those of a plain forward, whatever else is in the batch; kept
once, stored to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_tools import arrays, drain, engine_of, policy_of, prompts, request
from hypothesis import given
from hypothesis import strategies as st
from worlds import order

from model import K3Config, Policy, QuantSpec
from rewards.efforts import Effort
from rollout.engine.base import Generation
from rollout.engine.weights import describe
from rollout.picks import filled, merged, no_pick, nothing, pack, pick_type, positions, recorded, stored, told, unpack
from rollout.trajectory import NO_ROUTE, Node, Trajectory

K = 7
"""index_topk of the preset tiny_odd."""


def plain(policy: Policy, ids: list[int]) -> np.ndarray:
    """int32 [T, L, k]: what one forward selects."""
    with torch.no_grad():
        out = policy(torch.tensor([ids]), torch.tensor([len(ids)]), record_picks=True)
    assert out.picks is not None
    return out.picks[0].numpy()


def check(policy: Policy, prompt: list[int], g: Generation) -> None:
    """Both columns are those of a plain forward, at positions from k on, but for the last token, which was not fed."""
    want = plain(policy, [*prompt, *g.token_ids.tolist()])
    want[:K] = want[-1] = -1
    n = len(prompt)
    for got, part in ((g.prompt_picks, want[:n]), (g.picks, want[n:])):
        if (part < 0).all():
            assert got is None
        else:
            assert got is not None and got.dtype == np.uint16
            np.testing.assert_array_equal(positions(got), part)


def test_picks_are_those_of_a_plain_forward_whatever_the_neighbours() -> None:
    policy = policy_of("tiny_odd")
    engine = engine_of(policy, max_batch=3, record_picks=True)
    asked = [[5, 6], *prompts(5, longest=20, seed=4)]
    tokens = (3, 70, 9, 20, 4, 30)  # the first ends below k, the second goes over the blocks of the tape
    for i, (prompt, n) in enumerate(zip(asked, tokens, strict=True)):
        engine.submit(request(f"r{i}", prompt, seeds=(i, i + 50), max_tokens=n))
    out = drain(engine)
    for i, prompt in enumerate(asked):
        for g in out[f"r{i}"]:
            check(policy, prompt, g)
    assert out["r0"][0].picks is None and out["r1"][0].picks is not None


def test_recording_changes_nothing_else() -> None:
    policy, results = policy_of("tiny_odd"), []
    for record in (False, True):
        engine = engine_of(policy, record_picks=record)
        for i, prompt in enumerate(prompts(4, seed=2)):
            engine.submit(request(f"r{i}", prompt, seeds=(i, 9), max_tokens=25))
        results.append(drain(engine))
    for name, generations in results[0].items():
        for a, b in zip(generations, results[1][name], strict=True):
            assert a.token_ids.tobytes() == b.token_ids.tobytes() and a.logprobs.tobytes() == b.logprobs.tobytes()
            assert a.routes is not None and b.routes is not None and a.routes.tobytes() == b.routes.tobytes()
            assert a.picks is None and a.prompt_picks is None


def test_a_context_within_top_k_and_a_policy_without_an_indexer() -> None:
    engine = engine_of(policy_of("tiny_odd"), max_context=K, record_picks=True)
    engine.submit(request("a", [1, 2, 3], max_tokens=9))
    (g,) = drain(engine)["a"]
    assert g.picks is None and g.prompt_picks is None
    dense = Policy(replace(K3Config.preset("tiny"), index_topk=None), QuantSpec())
    dense.reset_parameters(0)
    with pytest.raises(ValueError, match="no indexer"):
        engine_of(dense, record_picks=True)


def test_a_continued_state_and_new_weights_add_what_they_ran() -> None:
    policy, other = policy_of("tiny_odd"), policy_of("tiny_odd", seed=1)
    engine = engine_of(policy, record_picks=True)
    prompt = prompts(1, longest=15, seed=3)[0]
    engine.submit(request("a", prompt, max_tokens=12, keep=True, stop_ids=tuple(range(512))))
    (first,) = drain(engine)["a"]  # any token is a stop
    longer = [*prompt, *first.token_ids.tolist(), *range(10, 22)]
    engine.submit(request("b", longer, max_tokens=20))
    for _ in range(6):
        engine.step()
    weights = arrays(other)
    engine.load(describe(2, weights), weights)
    (second,) = drain(engine)["b"]
    assert second.cached_tokens == len(prompt) and set(second.versions) == {1, 2}
    whole = [*longer, *second.token_ids.tolist()]
    old, new = plain(policy, whole), plain(other, whole)
    assert second.prompt_picks is not None and second.picks is not None
    begin = second.prompt_begin
    assert begin == len(prompt) > K  # what was cached was recorded when it was run
    np.testing.assert_array_equal(positions(second.prompt_picks), old[begin : len(longer)])
    ran = [v for v in second.versions[1:]]  # a token is fed when the next one is sampled
    want = np.stack([(old if v == 1 else new)[len(longer) + i] for i, v in enumerate(ran)])
    np.testing.assert_array_equal(positions(second.picks)[:-1], want)
    assert (old != new).any()


def test_the_smallest_type_that_fits_and_its_none() -> None:
    assert pick_type(512) == pick_type(65_535) == np.uint16 and pick_type(65_536) == np.uint32
    picks = np.array([[[0, 65_534, -1]], [[-1, -1, -1]]], np.int32)
    for kind in (np.dtype(np.uint16), np.dtype(np.uint32)):
        kept = stored(picks, kind)
        assert kept.dtype == kind and recorded(kept).tolist() == [[True], [False]]
        np.testing.assert_array_equal(positions(kept), picks)
        back = unpack(pack(kept))
        assert back.dtype == kind and back.tobytes() == kept.tobytes()
    with pytest.raises(ValueError, match="uint16 or uint32"):
        no_pick(np.dtype(np.int64))


def test_what_was_recorded_first_stays() -> None:
    kind = np.dtype(np.uint16)
    old, new = nothing((3, 2, 2), kind), np.arange(12, dtype=np.uint16).reshape(3, 2, 2)
    old[1] = 50
    old[2, 0, 0] = 7  # one key is a whole record
    got = merged(old, new)
    assert (got[0] == new[0]).all() and (got[1] == 50).all()
    assert got[2, 0].tolist() == [7, no_pick(kind)] and (got[2, 1] == new[2, 1]).all()
    assert merged(None, new) is not new and (merged(None, new) == new).all()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_what_an_engine_tells_reaches_its_tokens_and_what_was_recorded_first_stays(
    lengths: list[int], data: st.DataObject
) -> None:
    total = sum(lengths)
    begin = data.draw(st.integers(0, total - 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    old = rng.integers(0, 9, (total, 2, 3)).astype(np.uint16)
    old[rng.random((total, 2)) < 0.5] = NO_ROUTE
    read = rng.integers(100, 109, (total - begin, 2, 3)).astype(np.uint16)
    want = old.copy()
    want[begin:] = merged(old[begin:], read)
    nodes = np.split(old, np.cumsum(lengths)[:-1])
    untouched = [n.copy() for n in nodes]
    got = list(nodes)
    for i, at, new in told(lengths, begin, read):
        assert sum(lengths[: i + 1]) > begin, "a node was looked at that nothing is told of"
        got[i] = filled(got[i], lengths[i], at, new)
    np.testing.assert_array_equal(np.concatenate(got), want)
    for a, b in zip(nodes, untouched, strict=True):
        np.testing.assert_array_equal(a, b)  # nodes are frozen
    i, at, new = next(told(lengths, begin, read))
    fresh = filled(None, lengths[i], at, new)
    assert i == len(lengths) - 1 and (fresh[:at] == NO_ROUTE).all() and (fresh[at:] == new).all()


def test_a_trajectory_with_picks_is_stored_to_the_bit_and_one_without_as_before() -> None:
    node = Node.given("prompt", [1, 2, 3])
    picks = stored(np.arange(12, dtype=np.int32).reshape(3, 2, 2) - 1, np.dtype(np.uint16))
    t = Trajectory("g0/0", order().task, Effort.HIGH, [node, replace(node, picks=picks)])
    row = t.to_json()
    assert "picks" not in row["nodes"][0]
    back = Trajectory.from_json(row)
    assert back.nodes[0].picks is None and back.nodes[1].picks.tobytes() == picks.tobytes()
    assert back.to_json() == row
    with pytest.raises(ValueError, match="2 picks"):
        replace(node, picks=picks[:2])
