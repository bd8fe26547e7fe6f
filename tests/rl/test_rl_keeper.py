"""Nothing that a run started outlives it, however its driver dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rl.keeper import MARK, Keeper, marked, unmarked

ROOT = Path(__file__).resolve().parents[2]
SLEEPER = "import time; time.sleep(600)"
# A session of its own, an ignored hang-up, and a parent that is gone: what Ray's agents are when the driver dies early.
ORPHAN = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "{SLEEPER}"], start_new_session=True)
"""
DRIVER = f"""
import os, subprocess, sys, time
from rl.keeper import MARK, Keeper
with Keeper():
    subprocess.run([sys.executable, "-c", {ORPHAN!r}], check=True)
    print(os.environ[MARK], flush=True)
    time.sleep(600 if sys.argv[1] == "killed" else 0)
    if sys.argv[1] == "failed":
        raise SystemExit(3)
print("left", flush=True)
"""


@pytest.mark.parametrize("end", ["killed", "failed", "done"])
def test_an_orphan_does_not_outlive_the_run(end: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, end], env=env, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    mark = driver.stdout.readline().strip()
    if end == "killed":
        assert len(marked(mark)) == 1
        driver.send_signal(signal.SIGKILL)
    rest, _ = driver.communicate()
    assert (driver.returncode, rest) == {"killed": (-9, ""), "failed": (3, ""), "done": (0, "left\n")}[end]
    if end != "killed":
        assert not marked(mark), "the keeper is waited for"
    patience = time.monotonic() + 30
    while marked(mark):
        assert time.monotonic() < patience, "an orphan was left"
        time.sleep(0.05)


def test_what_another_thread_starts_unmarked_outlives_the_keeper() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with unmarked():
            started.append(subprocess.Popen([sys.executable, "-c", SLEEPER]))

    thread = threading.Thread(target=start)
    with Keeper() as keeper:
        thread.start()
        thread.join(0.2)
        assert not started, "it waits while this thread marks"
        mark = os.environ[MARK]
        keeper.unmark()
        thread.join()
        assert MARK not in os.environ and not marked(mark)
    assert started[0].poll() is None
    started[0].kill()
    started[0].wait()


def test_the_mark_is_this_runs_alone_and_stays_readable() -> None:
    bystander = subprocess.Popen([sys.executable, "-c", SLEEPER])
    before = {name: os.environ.get(name) for name in (MARK, "SPT_NOENV")}
    with Keeper():
        mark = os.environ[MARK]
        assert os.environ["SPT_NOENV"] == "1", "Ray would write its titles over the mark"
        with Keeper():
            assert os.environ[MARK] != mark
        assert os.environ[MARK] == mark
    assert {name: os.environ.get(name) for name in before} == before
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
