"""Programs are judged by hidden sessions: all of them for 1, and a program that guesses outputs gets none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from places import Place, place_at

from environments.runner import run_episode, scripted
from environments.software.ledger_cli import SOURCE as LEDGER
from environments.software.ledger_cli import LedgerCli
from environments.software.store_server import SOURCE as STORE
from environments.software.store_server import StoreServer
from environments.task import Message
from environments.tools import calling
from rewards.grade import Grade

DONE: Message = {"role": "assistant", "content": "done"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_at(tmp_path_factory.mktemp("store")) as place:
        yield place


def play(place: Place, env: StoreServer | LedgerCli, source: str, *calls: Message) -> Grade:
    task = env.task("train", 1, 2)
    name = task.info.get("name", "store.py")
    write = calling("write_file", path=name, text=source.replace('"GET"', f'"{task.info.get("get")}"'))
    grade = place(run_episode(env, task, scripted([write, *calls, DONE]), place.factory)).grade
    assert grade is not None
    return grade


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("data = live(old)", "data = old.copy() if False else data"),  # a rollback that keeps what was done
        ("total = int(value) + int(rest[1])", "total = int(rest[1])"),
        ("stack.append(dict(data))", "stack[:] = [dict(data)]"),  # transactions that do not nest
    ],
)
def test_a_store_with_one_fault_fails_sessions(place: Place, right: str, wrong: str) -> None:
    assert right in STORE
    assert play(place, StoreServer(), STORE).reward == 1.0
    assert (play(place, StoreServer(), STORE.replace(right, wrong)).reward or 0.0) < 1.0


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('json.dump(state, open(FILE, "w"))', "pass"),  # nothing is kept between runs
        ('raise Refused("limit")', "pass"),
        ("total += a", "total = a"),
    ],
)
def test_a_ledger_with_one_fault_fails_sessions(place: Place, right: str, wrong: str) -> None:
    assert right in LEDGER
    assert (play(place, LedgerCli(), LEDGER.replace(right, wrong)).reward or 0.0) < 1.0


def test_a_ledger_that_is_right_is_right_in_any_folder(place: Place) -> None:
    """What the agent left in its own folder is not what sessions begin with."""
    used = calling("bash", command="for i in 1 2 3; do python3 *.py open rent; python3 *.py pay rent 5; done")
    assert play(place, LedgerCli(), LEDGER, used).reward == 1.0


def test_a_program_that_prints_constants_fails(place: Place) -> None:
    assert play(place, StoreServer(), "import sys\nfor _ in sys.stdin: print('OK')").reward == 0.0
