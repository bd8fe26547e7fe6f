"""Whoever dies, and whenever: no process, mount, slot or file is left, and nothing of the living is touched."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from places import Place, place_at

from environments.sandbox import linux, store
from environments.sandbox.api import SandboxLost, SandboxUnavailable
from environments.sandbox.store import Reaped, reap

ROOT = Path(__file__).resolve().parents[2]

OWNER = """
import asyncio, sys
from environments.sandbox.local import LocalSandboxes
async def main():
    factory = LocalSandboxes(sys.argv[1])
    async def work(n):
        snapshot = None
        while True:
            sandbox = await factory.create("t", snapshot)
            await sandbox.exec("setsid sleep 1000 > /dev/null 2>&1 & (sleep 1000 &) ; echo $$ > f", background=True)
            snapshot = await sandbox.snapshot()
            print("created", flush=True)
            if n % 2:
                await sandbox.close()
    print("ready", flush=True)
    await asyncio.gather(*(work(n) for n in range(3)))
asyncio.run(main())
"""
# All that an owner ever started ends up as a child of this process when its parents are dead (PR_SET_CHILD_SUBREAPER).
ARENA = """
import json, os, random, signal, subprocess, sys, time
from environments.sandbox import linux
linux.prctl(36, 1)
store, owner, trials, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
start = time.monotonic()
owners = []
for _ in range(trials):
    process = subprocess.Popen([sys.executable, "-c", owner, store], stdout=subprocess.PIPE)
    owners.append(process)
for process in owners:
    process.stdout.readline()  # imports are done: what follows is the nursery's start and creations
for some in (owners[::2], owners[1::2]):
    for process in some:
        if process in owners[1::2]:
            process.stdout.readline()  # it has a sandbox, however slow this machine is
        process.deadline = time.monotonic() + rng.uniform(0, 1.2)
    for process in sorted(some, key=lambda p: p.deadline):
        time.sleep(max(0, process.deadline - time.monotonic()))
        process.kill()
        process.wait()
end = time.monotonic() + 20
left = None
while time.monotonic() < end:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        left = []
        break
    left = [(pid, open(f"/proc/{pid}/cmdline").read()) for pid in linux.children(os.getpid())]
    time.sleep(0.005)
print(json.dumps({"left": left, "seconds": 20 - (end - time.monotonic())}))
"""


def test_killing_the_owner_at_any_moment_leaves_no_process(tmp_path: Path) -> None:
    """20 owners, killed within 1.2 s of their start or of their first snapshot: in set-up, creations, snapshots."""
    seed = random.randrange(1 << 30)
    arena = subprocess.run(
        [sys.executable, "-c", ARENA, str(tmp_path), OWNER, "20", str(seed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert arena.returncode == 0, arena.stderr
    said = json.loads(arena.stdout)
    assert said["left"] == [], (seed, said)
    journals = list((tmp_path / "owners").glob("*.jsonl"))
    begun = sum(path.read_text().count('"create"') for path in journals)
    assert journals and begun > 0, "every owner died before it created anything: the test tests nothing"
    found = reap(tmp_path)
    assert found.owners == len(journals) and found.sandboxes > 0, (seed, found)
    assert not list((tmp_path / "owners").iterdir()) and not list((tmp_path / "tmp").iterdir())
    assert reap(tmp_path) == Reaped()


def test_a_journal_that_is_reaped_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.prepare(tmp_path)
    lock, early = fcntl.flock, []

    def late(fd: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not early:  # the owner's own; a reaper does not wait
            early.append(reap(tmp_path).owners)
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    fd = store.open_journal(tmp_path, "a")
    assert early == [1] and store.living(tmp_path) == {"a"}
    os.close(fd)
    assert store.living(tmp_path) == set() and reap(tmp_path).owners == 1


def test_reaping_touches_nothing_of_the_living(tmp_path: Path) -> None:
    with place_at(tmp_path) as place:
        sandbox = place.create()
        (tmp_path / "tmp" / f"{sandbox.id.partition('.')[0]}.unfinished").write_text("x")
        assert reap(tmp_path) == Reaped()
        assert place.text(sandbox, "echo alive") == "alive\n"
    found = reap(tmp_path)
    assert (found.owners, found.files) == (1, 1)


@pytest.mark.parametrize("victim", ["inner", "outer"])
def test_a_dead_nursery_is_noticed_and_replaced(tmp_path: Path, victim: str) -> None:
    with place_at(tmp_path) as place:
        sandbox = place.create()
        assert place.factory._link is not None
        inside, outer = place.inside(), place.factory._link._process.pid
        assert inside
        os.kill(place.nursery() if victim == "inner" else outer, signal.SIGKILL)
        with pytest.raises(SandboxLost):
            place.run(sandbox, "sleep 10")
        place(sandbox.close())
        assert place.text(place.create(), "echo again") == "again\n"
        _eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in inside))


def test_cancelling_at_random_points_leaks_nothing(tmp_path: Path) -> None:
    rng = random.Random(5)
    with place_at(tmp_path, max_live=4) as place:
        keeper = place.create()
        place.run(keeper, "echo 1 > f")
        snapshot = place(keeper.snapshot())

        async def episode() -> None:
            sandbox = await place.factory.create("t", snapshot)
            try:
                await sandbox.exec("sleep 0.01 & echo x >> f; sleep 0.02")
                await sandbox.snapshot()
                await sandbox.read_file("f")
            finally:
                await sandbox.close()

        async def storm() -> int:
            finished = 0
            for _ in range(12):
                tasks = [asyncio.create_task(episode()) for _ in range(4)]
                await asyncio.sleep(rng.uniform(0, 0.15))
                for task in tasks:
                    task.cancel()
                    await asyncio.sleep(rng.choice((0, 0.002)))
                ends = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(e is None or isinstance(e, asyncio.CancelledError) for e in ends), ends
                finished += ends.count(None)
            return finished

        place(storm())
        # One sandbox is left: its bubblewrap and first process; a mount of what was frozen and one of changes since;
        # its files; no half-written snapshot.
        _eventually(
            lambda: mounts(place) == (2, 0) and len(place.inside()) == 2, lambda: (mounts(place), place.inside())
        )
        _eventually(lambda: not list((tmp_path / "tmp").iterdir()), lambda: list((tmp_path / "tmp").iterdir()))
        assert place.text(keeper, "cat f") == "1\n"
        others = [place.create() for _ in range(3)]
        assert [place.text(other, "echo ok") for other in others] == ["ok\n"] * 3


def test_many_sandboxes_leave_neither_processes_nor_files_nor_descriptors(tmp_path: Path) -> None:
    with place_at(tmp_path) as place:
        place(place.create().close())

        async def one() -> None:
            async with await place.factory.create("t") as sandbox:
                await sandbox.exec("sleep 9 &")
                await sandbox.session().run("X=1")
                await sandbox.freeze()
                await sandbox.session("other").run("sleep 9 &")

        async def many() -> None:
            for _ in range(10):
                await asyncio.gather(*(one() for _ in range(4)))

        def zombies() -> set[int]:
            return {pid for pid in linux.children(os.getpid()) if linux._stat(pid)[0] == "Z"}

        older = zombies()  # other tests of this process may have left some
        before = len(os.listdir(f"/proc/{place.nursery()}/fd"))
        place(many())
        _eventually(lambda: not place.inside(), lambda: place.inside())
        assert len(os.listdir(f"/proc/{place.nursery()}/fd")) == before
        _eventually(lambda: mounts(place) == (0, 0), lambda: mounts(place))
        assert not zombies() - older


def test_creation_failures_are_told_and_leak_no_slot(tmp_path: Path) -> None:
    with place_at(tmp_path, max_live=1, wait_s=5) as place:
        for _ in range(3):
            with pytest.raises(SandboxUnavailable, match="not in the store"):
                place.create("1" * 64)
        assert place.text(place.create(), "echo fine") == "fine\n"
        assert len(place.inside()) == 2


def mounts(place: Place) -> tuple[int, int]:
    """Memory filesystems in the nursery: of live sandboxes, and of layers."""
    text = Path(f"/proc/{place.nursery()}/mounts").read_text()
    return text.count(" /tmp/live/"), text.count(" /tmp/layers/")


def _eventually(holds: Callable[[], bool], what: Callable[[], object] = lambda: "", seconds: float = 10.0) -> None:
    """Wait for what the kernel or the nursery does in the background."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what()
        time.sleep(0.005)


def test_a_place_needs_no_main_thread(tmp_path: Path) -> None:
    """A sandbox outlives the thread that created it: parent-death signals are tied to threads."""
    import threading

    place = Place(tmp_path)
    made: list = []
    thread = threading.Thread(target=lambda: made.append(place.create()))
    thread.start()
    thread.join()
    assert place.text(made[0], "echo alive") == "alive\n"
    place(place.factory.close())
    place.loop.close()
