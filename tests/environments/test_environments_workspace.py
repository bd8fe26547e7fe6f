"""Work in a sandbox is judged by frozen files in a fresh one; what comes back from the agent's code is only data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from places import Place, place_at

from environments.runner import Episode, run_episode, scripted
from environments.task import Message
from environments.terminal.log_totals import LogTotals
from environments.tools import calling
from environments.workspace import probe, read_text

ENV = LogTotals()
TASK = ENV.task("train", 0, 1)
DONE: Message = {"role": "assistant", "content": "done"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_at(tmp_path_factory.mktemp("store")) as place:
        yield place


def play(place: Place, *messages: Message) -> Episode:
    return place(run_episode(ENV, TASK, scripted([*messages, DONE]), place.factory))


def said(episode: Episode) -> list[str]:
    return [m["content"] for m in episode.replies if m["role"] == "tool"]


def bash(command: str) -> Message:
    return calling("bash", command=command)


def test_files_decide_whatever_wrote_them(place: Place) -> None:
    wanted = TASK.info["wanted"]
    assert play(place, calling("write_file", path="totals.txt", text=wanted)).grade.reward == 1.0
    assert play(place, calling("write_file", path="totals.txt", text=wanted[::-1])).grade.reward == 0.0
    assert play(place).grade.reward == 0.0
    linked = bash("printf '%s' '" + wanted + "' > /tmp/t; ln -s /tmp/t totals.txt")
    assert play(place, linked).grade.reward == 0.0  # /tmp is not frozen, and links are not followed


def test_tools(place: Place) -> None:
    episode = play(
        place,
        bash("echo hi; echo no >&2; exit 3"),
        bash("echo fine"),
        bash("true"),
        calling("write_file", path="a/b.txt", text="one two one"),
        calling("edit_file", path="a/b.txt", old="one", new="1"),
        calling("edit_file", path="a/b.txt", old="two", new="2"),
        calling("read_file", path="a/b.txt"),
        calling("read_file", path="a"),
        calling("read_file", path="../etc/passwd"),
        bash("ls; cat /etc/shadow /root/x 2>&1 | wc -l"),
    )
    assert said(episode)[:6] == [
        "exit code 3\nhi\n\nno",
        "fine\n",
        "exit code 0",
        "written",
        "error: the old text occurs 2 times in a/b.txt, not once",
        "edited",
    ]
    assert said(episode)[6] == "one 2 one"
    assert said(episode)[7].startswith("error: a: ") and said(episode)[8].startswith("error: ../etc/passwd: ")
    assert said(episode)[9] == "a\nlogs\n2\n"  # nothing else of the task, and no secrets of the host


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("print('noise'); json.dump([c + 1 for c in cases], out)", [2, 3]),
        ("out.write('no json')", None),
        ("raise SystemExit(1)", None),
        ("out.write('[' * 100000)", None),
        ("out.write('1' * 1000000)", None),
        ("import os; os._exit(0)", None),
    ],
)
def test_probe_gives_data_or_none(place: Place, code: str, result: Any) -> None:
    with_sandbox = place.create()
    assert place(probe(with_sandbox, code, [1, 2])) == result
    place(with_sandbox.close())


def test_read_text_of_what_cannot_be_read_is_none(place: Place) -> None:
    sandbox = place.create()
    place.run(sandbox, "mkdir d; mkfifo f; ln -s /etc/passwd l; printf '\\377a' > t")
    assert [place(read_text(sandbox, name)) for name in ("d", "f", "l", "none", "t")] == [None] * 4 + ["\ufffda"]
    place(sandbox.close())
