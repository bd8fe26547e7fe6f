"""Checks of many environments in processes of their own: one that hangs or dies takes no other with it.

A `Helper` is one such process (`helper.py`), asked by JSON lines. Each job has two: one that checks, and its twin with
another hash seed, in which the tasks are drawn again.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from environments.check.report import CheckReport

_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); from environments.check.helper import main; main()"
_LOOK_S = 60.0
DEADLINE_S = 300.0
"""Of the check of one environment, in seconds; all but broken ones need less than a tenth."""


class HelperLost(RuntimeError):
    """The process did not answer in time, or ended; the message says which."""


class Helper:
    """A process that answers one question at a time; started when it is first asked, and anew after it was lost."""

    def __init__(self, hash_seed: int) -> None:
        self.hash_seed = hash_seed
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = ""

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer; raises HelperLost, and ends the process, where there is none within `seconds`."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        deadline, data = time.monotonic() + seconds, b""
        answers = select.poll()  # select() fails for descriptors from 1024 on
        answers.register(process.stdout, select.POLLIN)
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            while not data.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not answers.poll(1000 * left):
                    raise HelperLost(f"it has not ended after {seconds:.0f} s")
                if not (more := os.read(process.stdout.fileno(), 1 << 16)):
                    raise HelperLost(f"its process ended with exit code {process.wait()}")
                data += more
        except BrokenPipeError:
            raise HelperLost(f"its process ended with exit code {process.wait()}") from None
        finally:
            if not data.endswith(b"\n"):
                self.close()
        return json.loads(data)

    def look(self, blob: bytes, places: Sequence[tuple[str, int, int, int]]) -> list[str] | str:
        """What tasks of a pickled environment look like there (`drawing.look`), or why they cannot be seen."""
        question = {"look": base64.b64encode(blob).decode(), "places": [[*at] for at in places]}
        try:
            answer = self.ask(question, _LOOK_S)
        except HelperLost as error:
            return str(error)
        return answer["error"] if "error" in answer else answer["seen"]

    def close(self) -> None:
        """End the process, with the sandboxes that it holds."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        # The path of this process: an environment may be where the user stands.
        path = json.dumps([_ROOT, *(p or os.getcwd() for p in sys.path)])
        self._folder = tempfile.mkdtemp(prefix="jointrl-check-")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": str(self.hash_seed), "OMP_NUM_THREADS": "1", "TMPDIR": self._folder},
            start_new_session=True,  # an interrupt of the terminal is the parent's to handle
        )
        return self._process


def check_all(
    names: Sequence[str],
    rows: int = 4,
    jobs: int = 1,
    quick: bool = False,
    seen: Callable[[CheckReport], object] = lambda report: None,
    seconds: float = DEADLINE_S,
) -> list[CheckReport]:
    """Reports of environments by id or import path, in the order of the names; `seen` is told each as it comes."""
    todo: SimpleQueue[str] = SimpleQueue()
    for name in names:
        todo.put(name)
    reports: dict[str, CheckReport] = {}
    lock, stop = threading.Lock(), threading.Event()
    helpers: list[Helper] = []
    broken: list[BaseException] = []

    def work(number: int) -> None:
        helper = Helper(1 + number)
        helpers.append(helper)
        try:
            while not stop.is_set():
                name = todo.get_nowait()
                report = _ask(helper, name, {"rows": rows, "quick": quick}, seconds)
                with lock:
                    reports[name] = report
                    seen(report)
        except Empty:
            pass
        except BaseException as error:
            broken.append(error)
        finally:
            helper.close()

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(min(jobs, len(names)))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        for helper in helpers:
            helper.close()
    if broken:
        raise broken[0]
    return [reports[name] for name in names]


def _ask(helper: Helper, name: str, how: dict[str, Any], seconds: float) -> CheckReport:
    begin = time.monotonic()
    try:
        answer = helper.ask({"check": name, **how}, seconds)
    except HelperLost as error:
        report = CheckReport(name)
        report.findings["ends"].note(False, str(error))
        report.skip("the check was lost", *(law for law in report.findings if law != "ends"))
        report.seconds["check"] = round(time.monotonic() - begin, 3)
        return report
    if "error" in answer:
        report = CheckReport(name)
        report.findings["ends"].note(False, answer["error"])
        return report
    return CheckReport.from_json(answer["report"])
