"""Laws of the porter: it holds nothing of the sandboxes, it forks for the nursery, and nothing goes on without it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import Place, place_at

from environments.sandbox import linux
from environments.sandbox.api import SandboxLost


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_at(tmp_path / "store") as place:
        yield place


def descriptors(pid: int) -> dict[str, str]:
    return {n: os.readlink(f"/proc/{pid}/fd/{n}").partition(":")[0] for n in sorted(os.listdir(f"/proc/{pid}/fd"))}


def test_it_holds_one_socket_and_its_namespace_however_many_sandboxes_there_are(place: Place) -> None:
    boxes = [place.create() for _ in range(3)]
    for box in boxes:
        place(box.session().run("true"))
        place.run(box, ["no-such-program"])
        place.run(box, "sleep 60 & sleep 60", timeout=0.1)
    held = descriptors(place.porter())
    assert {n: held[n] for n in held if int(n) > 2} == {"3": "socket", "4": "pid"}
    assert len(descriptors(place.nursery())) > 5 * len(boxes)


def test_what_it_forks_is_the_nurserys_child_with_the_kernels_exit_status(place: Place) -> None:
    box = place.create()
    assert place.run(box, "sleep 60 > /dev/null 2>&1 &\nexec sleep 60 > /dev/null 2>&1", timeout=0.2).timed_out
    assert place.run(box, "kill -SEGV $$").signal == signal.SIGSEGV and place.run(box, "exit 3").code == 3
    place(box.session().run("sleep 60 &"))
    (shell,) = await_shells(place, "sleep")
    assert shell != place.porter() and linux.children(place.porter()) == []


def await_shells(place: Place, running: str) -> list[int]:
    """The nursery's shells with this one child: a child of the shell's bears the shell's name until it has exec'ed."""
    begin = time.monotonic()
    while time.monotonic() - begin < 10:
        shells = [p for p in linux.children(place.nursery()) if comm(p) == "bash" and children(p) == [running]]
        if shells:
            return shells
        time.sleep(0.01)
    raise AssertionError({p: (comm(p), children(p)) for p in linux.children(place.nursery())})


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return ""


def children(pid: int) -> list[str]:
    return [comm(child) for child in linux.children(pid)]


def test_a_request_may_be_larger_than_what_a_socket_takes_at_once(place: Place) -> None:
    words = [f"{n}" * 50_000 for n in range(1, 9)]
    told = place.run(place.create(), ["bash", "-c", 'echo $# "${#1}" "${8:0:3}"', "x", *words])
    assert told.stdout == b"8 50000 888\n", told.stderr


def test_without_it_everything_ends_and_the_next_sandbox_has_a_new_one(place: Place) -> None:
    box, porter = place.create(), place.porter()
    os.kill(porter, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        place.run(box, "true")
    other = place.create()
    assert place.porter() != porter and place.text(other, "echo 1") == "1\n"


def test_a_creation_that_the_nursery_does_not_live_to_answer_is_made_by_a_new_one(place: Place) -> None:
    place.create()
    old = place.nursery()
    os.kill(old, signal.SIGKILL)  # the factory hears of it while it waits for the answer
    box = place.create()
    assert place.nursery() != old and place.text(box, "echo 1") == "1\n"
