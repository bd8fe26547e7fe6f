"""Laws of the trajectory: columns have one length, rows come back bit for bit, records travel packed."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import call, order, say

from rewards.grade import Grade, GradeStatus
from rollout.store import EpisodeJournal
from rollout.store import journal as journal_module
from rollout.store.stream import Stream
from rollout.trajectory import Node, Sampling, StopReason, Trajectory


def node(n: int = 5, **wrong: int) -> Node:
    size = {"logprobs": n, "loss_mask": n, "versions": n, "routes": n} | wrong
    return Node(
        "assistant",
        np.arange(n, dtype=np.int32),
        -np.linspace(0.1, 3.3, size["logprobs"], dtype=np.float32),
        np.ones(size["loss_mask"], np.uint8),
        np.full(size["versions"], 4, np.int32),
        Sampling(0.7, 40, 2**63 - 1, (1, 2)),
        "snap",
        np.full((size["routes"], 2, 3), 65535, np.uint16),
    )


@pytest.mark.parametrize("column", ["logprobs", "loss_mask", "versions", "routes"])
@pytest.mark.parametrize("length", [4, 6, 0])
def test_columns_of_another_length_are_refused_never_padded(column: str, length: int) -> None:
    with pytest.raises(ValueError, match=f"5 token ids but {length} {column}"):
        node(5, **{column: length})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_log_probs_must_be_finite(bad: float) -> None:
    logprobs = np.zeros(3, np.float32)
    logprobs[1] = bad
    with pytest.raises(ValueError, match="not finite"):
        Node("assistant", np.zeros(3, np.int32), logprobs, np.ones(3, np.uint8), np.zeros(3, np.int32))


def test_nodes_are_frozen_and_given_ones_are_masked() -> None:
    given_node = Node.given("tool", [3, 4])
    assert given_node.loss_mask.sum() == 0 and set(given_node.versions.tolist()) == {-1}
    with pytest.raises(FrozenInstanceError):
        given_node.token_ids = np.zeros(1)  # type: ignore[misc]


def trajectory(id: str = "g0/0") -> Trajectory:
    o = order()
    t = Trajectory(id, o.task, o.effort)
    t.append(Node.given("prompt", [1, 2, 3]))
    t.append(node())
    t.conversation = [*o.task.prompt, say("", call("look", '{"place": "x'))]
    t.stop, t.grade = StopReason.DONE, Grade(0.5, GradeStatus.PARTIAL, {"x": 0.1}, {"read": [1]})
    t.seconds = {"generate": 0.1}
    return t


def assert_equal(a: Trajectory, b: Trajectory) -> None:
    for x, y in zip(a.nodes, b.nodes, strict=True):
        for name in ("token_ids", "logprobs", "loss_mask", "versions", "routes", "picks"):
            left, right = getattr(x, name), getattr(y, name)
            assert (left is None) == (right is None)
            if left is not None:
                assert left.dtype == right.dtype and left.tobytes() == right.tobytes()
        assert (x.role, x.sampling, x.snapshot, x.images) == (y.role, y.sampling, y.snapshot, y.images)
    rest = ("id", "task", "effort", "segments", "conversation", "stop", "grade", "seconds", "error")
    assert all(getattr(a, name) == getattr(b, name) for name in rest)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1024, 0, width=32), min_size=1, max_size=8))
def test_a_trajectory_comes_back_bit_for_bit(logprobs: list[float]) -> None:
    t, n = trajectory(), len(logprobs)
    lp = np.asarray(logprobs, np.float32)
    t.append(Node("assistant", np.arange(n, dtype=np.int32), lp, np.ones(n, np.uint8), np.arange(n, dtype=np.int32)))
    assert_equal(t, Trajectory.from_json(json.loads(json.dumps(t.to_json()))))


def test_counts_and_versions_look_at_sampled_tokens_only() -> None:
    t = trajectory()
    assert t.output_tokens == 5 and t.turns == 1 and t.version_range() == (4, 4)
    assert Trajectory("x", t.task, t.effort).version_range() == (-1, -1)
    assert t.column("token_ids").tolist() == [1, 2, 3, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("protocol", [4, 5])
def test_records_are_packed_where_a_node_is_pickled_and_read_as_they_were(protocol: int) -> None:
    routes = np.random.default_rng(0).integers(0, 896, (2000, 4, 16)).astype(np.uint16)
    routes[-1] = 65535
    picks = np.sort(np.random.default_rng(1).integers(0, 30_000, (2000, 1, 64)).astype(np.uint16))
    whole = replace(Node.given("tool", np.arange(2000)), routes=routes, picks=picks)
    data = pickle.dumps([whole, Node.given("tool", [1])], protocol)
    assert len(data) < 0.75 * (routes.nbytes + picks.nbytes)
    back, plain = pickle.loads(data)
    assert plain.routes is None and plain.picks is None
    for _ in range(2):  # packed it stays, also through another process
        assert back.routes.tobytes() == routes.tobytes() and back.picks.tobytes() == picks.tobytes()
        assert "routes" not in back.__dict__ and "picks" not in back.__dict__
        with pytest.raises(ValueError, match="read-only"):
            back.routes[0] = 0
        back = pickle.loads(pickle.dumps(back, protocol))
    again = replace(back, snapshot="s")
    assert again.routes.tobytes() == routes.tobytes() and again.snapshot == "s"
    with pytest.raises(AttributeError, match="other"):
        _ = back.other


def test_the_journal_keeps_the_same_episode_only_and_drops_the_future(tmp_path: Path) -> None:
    journal, t = EpisodeJournal(tmp_path, "one"), trajectory()
    journal.save(t)
    kept = journal.load(Trajectory(t.id, t.task, t.effort))
    assert kept is not None
    assert_equal(kept, t)
    other = order(index=1).task
    assert other != t.task and journal.load(Trajectory(t.id, other, t.effort)) is None
    assert journal.load(Trajectory("g0/1", t.task, t.effort)) is None
    assert journal.prune(version=4) == 0 and journal.load(t) is not None
    assert journal.prune(version=3) == 1 and journal.load(t) is None


def test_runs_that_share_a_store_have_journals_of_their_own(tmp_path: Path) -> None:
    one, other, t = EpisodeJournal(tmp_path, "one"), EpisodeJournal(tmp_path, "other"), trajectory()
    one.save(t)
    assert other.load(t) is None
    other.forget(t.id)
    assert other.prune(version=0) == 0 and one.load(t) is not None


def test_a_turn_costs_the_journal_what_it_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the nodes before it nor the file that holds them are read again: an episode may have a thousand turns."""
    journal, t = EpisodeJournal(tmp_path, "one"), trajectory()
    journal.save(t)
    looked: list[str] = []
    plain = journal_module._digest
    monkeypatch.setattr(journal_module, "_digest", lambda n: looked.append(n.role) or plain(n))
    monkeypatch.setattr(Stream, "_scan", lambda self: looked.append("file"))
    for turn in range(3):
        t.append(node(turn))
        t.nodes[-2] = replace(t.nodes[-2])  # what the next prompt told of it
        journal.save(t)
        assert looked == [t.nodes[-2].role] * 2
        looked.clear()
    monkeypatch.undo()
    kept = EpisodeJournal(tmp_path, "one").load(Trajectory(t.id, t.task, t.effort))
    assert kept is not None
    assert_equal(kept, t)


def test_a_journal_adds_what_is_new_and_a_torn_turn_is_not_there(tmp_path: Path) -> None:
    journal, t = EpisodeJournal(tmp_path, "one"), trajectory()
    begun = Trajectory(t.id, t.task, t.effort)
    t.append(Node.given("tool", np.random.default_rng(0).integers(0, 10**6, 50_000)))
    journal.save(t)
    (path,) = (tmp_path / "episodes" / "one").iterdir()
    first = path.stat().st_size
    t.append(node())
    t.conversation.append(say("more"))
    t.nodes[1] = replace(t.nodes[1], routes=np.zeros((5, 2, 3), np.uint16))  # what the next prompt told of it
    journal.save(t)
    assert path.stat().st_size < first + 5000
    kept = EpisodeJournal(tmp_path, "one").load(begun)
    assert kept is not None
    assert_equal(kept, t)
    whole = path.read_bytes()
    for end in (first, first + 1, first + 500, len(whole) - 1):
        path.write_bytes(whole[:end])
        kept = EpisodeJournal(tmp_path, "one").load(begun)
        assert kept is not None and len(kept.nodes) == 3 and (kept.nodes[1].routes == 65535).all()
    again = EpisodeJournal(tmp_path, "one")
    kept = again.load(begun)
    assert kept is not None
    kept.append(node(7))
    again.save(kept)  # behind a torn turn
    found = EpisodeJournal(tmp_path, "one").load(begun)
    assert found is not None
    assert_equal(found, kept)
    journal.save(t)  # a worker that was thought dead: its own turns, whole
    found = EpisodeJournal(tmp_path, "one").load(begun)
    assert found is not None
    assert_equal(found, t)
    assert [p.suffix for p in path.parent.iterdir()] == [".arrow"]
