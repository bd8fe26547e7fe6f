"""A foreign package in an interpreter of its own, from our side: calls with deadlines, restarts, and a clean end.

One process serves every episode of a worker. It keeps no state that matters: a call carries everything (a game is
replayed from its actions), so a process that died or hung is killed, counted and started anew by the next call.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

from environments.sandbox.api import SandboxError

ROOT = Path(__file__).resolve().parents[2]

_START_S = 90.0
"""Of the first call: importing a foreign package takes seconds, on a machine that swaps a minute."""

_BOOT = """import sys
sys.path[:0] = sys.argv[2:]
from environments.adapters.foreign.serve import main
main(sys.argv[1])
"""


class PeerLost(SandboxError):
    """A foreign process or server died, hung or answered nonsense: infrastructure, so the sample is masked."""


class ForeignError(RuntimeError):
    """The foreign package raised on what it was asked."""


def interpreter(name: str) -> Path:
    """The Python of `.venv-<name>`; `jointrl env install <name>` makes it."""
    return ROOT / f".venv-{name}" / "bin" / "python"


class Lines:
    """A process that is spoken to in lines, and that ends with everything it started."""

    def __init__(self, argv: list[str], environment: dict[str, str], peer: str, cwd: str = "/") -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the process)
        self._buffer = b""
        self._process = subprocess.Popen(
            argv,
            env=environment,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self.peer = f"{peer} (pid {self._process.pid})"

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def send(self, row: dict[str, Any], deadline: float) -> None:
        """Write one JSON line; raises OSError and TimeoutError."""
        assert self._process.stdin is not None
        write = self._process.stdin.fileno()
        os.set_blocking(write, False)
        line = json.dumps(row).encode() + b"\n"
        while line:
            _wait(write, select.POLLOUT, deadline)
            line = line[os.write(write, line) :]

    def receive(self, deadline: float) -> dict[str, Any]:
        """Read one JSON line; raises EOFError, OSError, ValueError and TimeoutError."""
        assert self._process.stdout is not None
        read = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            _wait(read, select.POLLIN, deadline)
            data = os.read(read, 1 << 16)
            if not data:
                raise EOFError("it ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError(f"it answered {line[:80]!r}")
        return row

    def lost(self, what: str, timeout: float, error: Exception) -> PeerLost:
        """Kill it, and say who was lost, at what, and what its last words were."""
        self.kill()
        self._errors.seek(0)
        said = self._errors.read()[-600:].decode(errors="replace").strip()
        why = f"gave no answer within {timeout:g} s" if isinstance(error, TimeoutError) else f"is lost ({error})"
        return PeerLost(f"{self.peer} {why} at {what!r}" + (f"; its last words: {said}" if said else ""))

    def kill(self) -> None:
        """End it and what it started; killing twice is nothing."""
        if self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


LOST = (OSError, EOFError, ValueError, TimeoutError)
"""What `Lines` raises where the process is of no more use."""


def clean_environment(**more: str) -> dict[str, str]:
    """Variables of a foreign process: no keys and no tokens of ours, one thread, no home to write to, and a fixed hash
    seed, because packages iterate over sets of strings."""
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "LD_LIBRARY_PATH") if key in os.environ}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    fixed = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/dev/null"}
    return kept | threads | fixed | more


class Host:
    """One foreign process, started by the first call; calls from any thread run one after another."""

    def __init__(self, python: str | Path, driver: str, paths: tuple[str, ...] = ()) -> None:
        self.python, self.driver, self.paths = str(python), driver, paths
        self.lost = 0
        """Processes that died or were killed for hanging."""
        self._lines: Lines | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def call(self, op: str, timeout: float = 30.0, **args: Any) -> Any:
        """The result of a driver's function, within `timeout` seconds (more for the first call of a process).

        Raises PeerLost (the process is gone; the next call starts another) and ForeignError (it raised).
        """
        with self._lock:
            if self._lines is None or not self._lines.alive:
                self._lines = self._start()
                timeout += _START_S
            lines, number = self._lines, next(self._numbers)
            deadline = time.monotonic() + timeout
            try:
                lines.send({"id": number, "op": op, "args": args}, deadline)
                answer = lines.receive(deadline)
                if answer.get("id") != number:
                    raise ValueError(f"answer {answer.get('id')!r} to request {number}")
            except LOST as error:
                self.lost += 1
                self._lines = None
                raise lines.lost(op, timeout, error) from error
            except BaseException:  # an interrupt: its answer would be taken for the next one's
                self._lines = None
                lines.kill()
                raise
        if "error" in answer:
            raise ForeignError(f"{lines.peer}: {op}: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        """End the process; a later call starts a new one."""
        with self._lock:
            if self._lines is not None:
                self._lines.kill()
                self._lines = None

    def _start(self) -> Lines:
        if not Path(self.python).exists():
            name = Path(self.python).parents[1].name.removeprefix(".venv-")
            raise PeerLost(f"there is no {self.python}: run `jointrl env install {name}`")
        argv = [self.python, "-P", "-c", _BOOT, self.driver, *self.paths, str(ROOT)]
        return Lines(argv, clean_environment(), f"driver {self.driver} in {self.python}")


def _wait(fd: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


@cache
def host(python: str | Path, driver: str, *paths: str) -> Host:
    """The one host of this process for an interpreter and a driver."""
    made = Host(python, driver, paths)
    atexit.register(made.close)
    return made
