"""Ends what a run would leave behind: a small process that outlives the driver, however the driver dies.

Ray ends its servers and actors when the driver is killed, but not what was just being started: those orphans live on
for a minute or more. Everything that is started while a `Keeper` marks, and all that those processes start, inherits a
mark in its environment; when the driver is gone, or has closed the keeper, what still carries the mark is killed. What
must outlive the run's processes is started `unmarked`. This file is run as a script, without imports of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from types import TracebackType
from typing import Self

MARK = "JOINTRL_RUN"
"""Environment variable of every process of a run."""
_GRACE_S = 1.0
"""Processes that end by themselves have this long."""
_QUIET_S = 0.5
"""Nothing was found for this long: nothing will come."""
_LIMIT_S = 20.0
"""A process that cannot be killed (it waits for a device, say) is not waited for any longer."""


_MARKING = threading.RLock()
"""Held while the mark is in this process's environment, which all its threads share."""


@contextlib.contextmanager
def unmarked() -> Iterator[None]:
    """What is started inside carries no mark: waits until no other thread's keeper marks, and lets none begin."""
    with _MARKING:
        yield


class Keeper:
    """Marks, until `unmark`, the processes that this one starts; watches them to the end of the context (on Linux)."""

    def __enter__(self) -> Self:
        mark = f"{os.getpid()}-{uuid.uuid4().hex}"
        # The end of our side of the pipe is our death, or our goodbye.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark], stdin=subprocess.PIPE, start_new_session=True
        )
        _MARKING.acquire()
        # Ray writes titles over a process's environment unless it is told not to: the mark must stay readable.
        self._before = {name: os.environ.get(name) for name in (MARK, "SPT_NOENV")}
        os.environ.update({MARK: mark, "SPT_NOENV": "1"})
        return self

    def unmark(self) -> None:
        """What this process starts from now on is not watched; what the marked ones start still is."""
        before, self._before = self._before, {}
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if before:
            _MARKING.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unmark()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def marked(mark: str) -> list[int]:
    """Living processes whose environment carries the mark."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        # It may have ended meanwhile, or be another user's.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if entry in file.read().split(b"\0"):
                found.append(pid)
    return found


def sweep(mark: str) -> None:
    """Kill what carries the mark until nothing has for a while."""
    begin = quiet = time.monotonic()
    while (now := time.monotonic()) - quiet < _QUIET_S and now - begin < _LIMIT_S:
        for pid in marked(mark):
            quiet = time.monotonic()
            if quiet - begin > _GRACE_S:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    sweep(sys.argv[1])
