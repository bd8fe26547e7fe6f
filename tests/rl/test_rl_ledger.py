"""The conservation law: nothing lost, nothing trained twice, whatever the order of events and wherever it is killed."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.ledger import GroupState, Ledger, LedgerError


def test_a_group_walks_through_its_states_once(tmp_path: Path) -> None:
    led = Ledger(tmp_path / "ledger.jsonl")
    led.plan("a", {"seed": 1})
    led.dispatch("a")
    led.dispatch("a")  # re-dispatched after a loss
    led.finish("a")
    led.train(["a"], 3)
    assert led.entries["a"].dispatches == 2
    assert led.entries["a"].step == 3
    for illegal in (
        lambda: led.train(["a"], 4),
        lambda: led.retire("a", "late"),
        lambda: led.finish("b"),
        lambda: led.plan("a", {}),
    ):
        with pytest.raises(LedgerError):
            illegal()
    assert led.counts() == {"planned": 0, "dispatched": 0, "finished": 0, "trained": 1, "retired": 0}


def test_a_batch_that_names_an_untrainable_group_trains_none(tmp_path: Path) -> None:
    led = Ledger(tmp_path / "l")
    for g in "ab":
        led.plan(g, {})
        led.dispatch(g)
    led.finish("a")
    with pytest.raises(LedgerError):
        led.train(["a", "b"], 0)
    with pytest.raises(LedgerError):
        led.train(["a", "a"], 0)
    assert led.entries["a"].state is GroupState.FINISHED
    led.train(["a"], 0)


def test_the_file_is_the_record_and_a_torn_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "l"
    led = Ledger(path)
    led.plan("a", {"x": 1})
    led.dispatch("a")
    led.close()
    with path.open("a") as f:
        f.write('{"seq":3,"event":"fini')
    again = Ledger(path)
    assert again.entries["a"].state is GroupState.DISPATCHED
    assert again.entries["a"].order == {"x": 1}
    again.finish("a")
    again.close()
    assert [json.loads(line)["seq"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_damage_inside_the_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "l"
    led = Ledger(path)
    for g in "abc":
        led.plan(g, {})
    led.close()
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[2]]) + "\n")
    with pytest.raises(LedgerError, match="sequence number"):
        Ledger(path)


def test_rollback_forgets_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    led = Ledger(tmp_path / "l")
    for g in "ab":
        led.plan(g, {"g": g})
        led.dispatch(g)
    led.finish("a")
    mark = led.sync()
    led.train(["a"], 0)
    led.retire("b", "deadline")
    led.rollback(mark)
    assert [e.id for e in led.having(GroupState.FINISHED)] == ["a"], "the checkpoint holds it"
    assert [e.id for e in led.having(GroupState.PLANNED)] == ["b"], "it was in flight"
    led.train(["a"], 0)
    mark2 = led.sync()
    led.retire("b", "x")
    led.rollback(mark2)
    led.close()
    again = Ledger(tmp_path / "l")
    assert again.entries["a"].state is GroupState.TRAINED
    assert again.entries["b"].state is GroupState.PLANNED
    with pytest.raises(LedgerError, match="has only"):
        again.rollback(10_000)


EVENTS = ("plan", "dispatch", "finish", "train", "retire", "mark", "rollback", "reopen")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 5)), max_size=60))
def test_conservation_under_any_history(tmp_path_factory: pytest.TempPathFactory, history: list) -> None:
    """After any legal or illegal sequence: states add up, a replay gives the same books, trained groups are unique."""
    path = tmp_path_factory.mktemp("ledger") / "l"
    led = Ledger(path)
    mark = 0
    for event, k in history:
        g = f"g{k}"
        try:
            if event == "plan":
                led.plan(g, {"k": k})
            elif event == "train":
                led.train([g, f"g{k + 1}"], k)
            elif event == "retire":
                led.retire(g, "why")
            elif event == "mark":
                mark = led.sync()
            elif event == "rollback":
                led.rollback(mark)
            elif event == "reopen":
                led.close()
                led = Ledger(path)
            else:
                getattr(led, event)(g)
        except LedgerError:
            pass
    assert sum(led.counts().values()) == len(led.entries)
    before = {i: (e.state, e.step, e.reason, e.dispatches) for i, e in led.entries.items()}
    led.close()
    again = Ledger(path)
    assert {i: (e.state, e.step, e.reason, e.dispatches) for i, e in again.entries.items()} == before
    again.close()
