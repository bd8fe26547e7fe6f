"""A long episode: files, a shell, a service and a package, over pauses, killed workers and other machines."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from backends import Rig, local, sandboxd
from test_sandbox_sandboxd import start_server

ROOT = Path(__file__).resolve().parents[2]
TURNS = 200
SERVICE = "mkfifo -m 600 /tmp/ask /tmp/told; while :; do read -r x < /tmp/ask; echo served $x > /tmp/told; done"

# A worker: argv is store, journal, url, token file. It appends a line for each finished turn, with its snapshot.
WORKER = (
    """
import asyncio, json, os, sys
from pathlib import Path
from environments.sandbox.api import Limits
from environments.sandbox.backends import make_sandboxes
store, journal, url, token = sys.argv[1:]
SERVICE = """
    + repr(SERVICE)
    + """
TURNS = """
    + str(TURNS)
    + """
async def on_restore(sandbox):
    result = await sandbox.exec(["setsid", "--fork", "bash", "-c", SERVICE + " > /dev/null 2>&1"], background=True)
    assert result.ok, result
    assert (await sandbox.exec("until [ -p /tmp/told ]; do sleep 0.01; done")).ok
async def main():
    factory = make_sandboxes("sandboxd" if url else "bwrap", store, Limits(), 8, url=url, token_file=token)
    rows = [json.loads(line) for line in open(journal)] if os.path.exists(journal) else []
    start = len(rows)
    sandbox = await factory.create("long", rows[-1]["snapshot"] if rows else None)
    shell = sandbox.session()
    if not rows:
        await sandbox.write_file("package/hello", b"#!/bin/bash\\necho hello $1\\n", 0o755)
        result = await shell.run("install -D -m 755 package/hello ~/.local/bin/hello; export PATH=~/.local/bin:$PATH")
        assert result.ok, result
    await on_restore(sandbox)
    with open(journal, "a") as lines:
        for turn in range(start, TURNS):
            if turn % 50 == 49:  # new weights: the episode stands still and goes on
                await sandbox.pause()
                await asyncio.sleep(0.05)
                await sandbox.resume()
            result = await shell.run(
                "N=$((N + 1)); mkdir -p d$N; cd d$N; hello $N > out; echo $N >> ~/log; cd ..; "
                "echo $N > /tmp/ask; read -r said < /tmp/told; echo $said >> ~/served; echo $N", timeout=20)
            assert result.stdout == b"%d\\n" % (turn + 1), (turn, result)
            lines.write(json.dumps({"turn": turn, "snapshot": await sandbox.snapshot()}) + "\\n")
            lines.flush()
            print(turn, flush=True)
    await sandbox.close()
    await factory.close()
asyncio.run(main())
"""
)


def work(store: Path, journal: Path, url: str, token: str, stop_at: int | None) -> None:
    """Run a worker to its end, or kill it as soon as it has finished some turn."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(store), str(journal), url, token],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if stop_at is not None and int(line) >= stop_at:
            time.sleep(random.uniform(0, 0.03))
            process.send_signal(signal.SIGKILL)
            break
    code = process.wait(timeout=60)
    assert code == (0 if stop_at is None else -signal.SIGKILL)


@pytest.mark.parametrize("backend", ["local", "sandboxd"])
def test_two_hundred_turns_over_killed_workers_and_machines(tmp_path: Path, backend: str) -> None:
    store, journal = tmp_path / "store", tmp_path / "journal"
    stops = [random.randrange(20, 60), random.randrange(90, 140), None]
    for machine, stop_at in enumerate(stops):
        if backend == "local":
            work(store, journal, "", "", stop_at)
            continue
        (tmp_path / str(machine)).mkdir()
        server, url = start_server(tmp_path / str(machine))  # each worker finds another machine, with an empty store
        try:
            work(store, journal, url, str(tmp_path / str(machine) / "token"), stop_at)
        finally:
            server.kill()
            server.wait()
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [row["turn"] for row in rows] == list(range(TURNS)) and len({row["snapshot"] for row in rows}) == TURNS
    # the verdict: a fresh sandbox on the last frozen content, and one on a turn in the middle
    with local(store) as rig:
        for turn in (TURNS - 1, rows[stops[0] or 0]["turn"]):
            check_content(rig, rows[turn]["snapshot"], turn + 1)


def check_content(rig: Rig, snapshot: str, turns: int) -> None:
    with rig.sandbox(snapshot) as fresh:
        numbers = [b"%d" % n for n in range(1, turns + 1)]
        assert rig(fresh.read_file("log")).split() == numbers
        assert rig(fresh.read_file("served")).split(b"\n")[:-1] == [b"served " + n for n in numbers]
        assert rig(fresh.exec("cat d*/out | wc -l")).stdout.split() == [b"%d" % turns]
        assert rig(fresh.session().run("hello $N")).stdout == b"hello %d\n" % turns
        assert rig(fresh.exec("ls /tmp")).stdout == b"", "the agent's processes or /tmp reached the verdict"


@pytest.mark.parametrize("backend", [local, sandboxd])
@pytest.mark.parametrize(("kilobytes", "freezes", "most"), [(1, 40, 18), (20_000, 12, 9)])
def test_many_freezes_keep_the_content_and_bound_what_is_kept(
    tmp_path: Path, backend, kilobytes: int, freezes: int, most: int
) -> None:
    """Layers are merged when there are many, or when they hold much: nobody sees a difference."""
    with backend(tmp_path) as rig, rig.sandbox() as sandbox:
        for i in range(freezes):
            change = f"rm -rf gone; mkdir gone; echo {i} > gone/{i}; echo {i} >> log"
            rig(sandbox.exec(f"{change}; head -c {kilobytes}K /dev/urandom > big"))
            rig(sandbox.freeze())
        (child,) = rig(sandbox.fork(1))
        for one in (sandbox, child):
            assert rig(one.exec("ls gone; wc -l < log")).stdout.split() == [b"%d" % (freezes - 1), b"%d" % freezes]
        mounts = rig(sandbox.exec("grep workspace /proc/mounts")).stdout
        assert mounts.count(b"/tmp/live/") + mounts.count(b"/tmp/layers/") <= most
        rig(child.close())
