"""Reading and appending the files of a run folder: JSON lines that survive a killed writer, resumes and non-numbers."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from rl.errors import UserError

ENGINES = "engines"
"""File of a run that says how many engines it should have from now on."""

_LOCK = "writer.lock"
_LOOKS, _PAUSE_S = 10, 0.05
"""Tries to take the lock: who looks whether a run is running holds it for an instant."""
_COUNTED = ("/n", "/masked")
"""Ends of the keys under which an evaluation's event counts its episodes."""


class Status(StrEnum):
    """Where a run stands, as its files and its lock tell."""

    RUNNING = "running"
    """A process holds the folder."""
    FINISHED = "finished"
    """All steps are done and the closing evaluation is written."""
    FAILED = "failed"
    """It ended with an error; the last event says which."""
    STOPPED = "stopped"
    """It was interrupted or killed: `jointrl resume` continues it."""


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows as JSON lines in one write call; values that JSON has no word for become null.

    An unfinished last line, left by a killed writer, is closed first, so that it costs nothing but itself.
    """
    text = "".join(_line(row) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                text = "\n" + text
        file.write(text.encode(errors="backslashreplace"))  # half a pair of surrogates, which JSON writes as \\udXXX


def write(path: Path, text: str) -> None:
    """Write a whole file: readers see the old one or the new one, never half of it."""
    half = path.with_name(path.name + ".tmp")
    half.write_text(text)
    half.replace(path)


def read(path: Path) -> list[dict[str, Any]]:
    """All rows of a file, in the order they were written; none if it does not exist. Unfinished lines are skipped."""
    if not path.exists():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the last line of a writer that was killed
        if isinstance(row, dict):
            found.append(row)
    return found


def newest(rows: Iterable[dict[str, Any]], key: str = "step") -> list[dict[str, Any]]:
    """For every value of `key` the rows of its newest attempt alone, ordered by it."""
    best: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        kept = best.setdefault(row[key], [row])
        if row["attempt"] > kept[0]["attempt"]:
            best[row[key]] = [row]
        elif row["attempt"] == kept[0]["attempt"] and kept[0] is not row:
            kept.append(row)
    return [row for value in sorted(best) for row in best[value]]


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """One row per step, each from the newest attempt that did the step."""
    return newest(read(run_dir / "metrics.jsonl"))


def evaluation(run_dir: Path, label: str) -> list[dict[str, Any]]:
    """The rows of the newest evaluation with this label (`before`, `after`, `step_N`); empty if there is none."""
    rows = read(run_dir / "evaluations" / f"{label}.jsonl")
    return [row for row in rows if row["attempt"] == rows[-1]["attempt"]]


def lost_lines(run_dir: Path, label: str) -> int:
    """Episodes that the newest evaluation with this label had, by its event, and that its file has no more."""
    told = [e for e in read(run_dir / "events.jsonl") if e["event"] == "evaluation" and e["label"] == label]
    if not told:
        return 0
    episodes = sum(int(n) for key, n in told[-1].items() if key.startswith("eval/") and key.endswith(_COUNTED))
    rows = read(run_dir / "evaluations" / f"{label}.jsonl")
    return max(0, episodes - sum(row["attempt"] == told[-1]["attempt"] for row in rows))


def finite(value: Any) -> tuple[Any, int]:
    """The value as JSON can hold it (arrays as lists, non-finite numbers as None), and how many were not finite."""
    if isinstance(value, Mapping):
        items = [(str(k), *finite(v)) for k, v in value.items()]
        return {k: v for k, v, _ in items}, sum(n for *_, n in items)
    if isinstance(value, list | tuple):
        parts = [finite(v) for v in value]
        return [v for v, _ in parts], sum(n for _, n in parts)
    if isinstance(value, np.ndarray | np.generic):
        return finite(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None, 1
    if value is None or isinstance(value, bool | int | float | str):
        return value, 0
    return str(value), 0


def identity(run_dir: Path) -> str:
    """What tells this run from every other, also of the same name and place: made once, kept over resumes."""
    file = run_dir / "id"
    if not file.exists():
        write(file, f"{uuid.uuid4().hex}\n")
    return file.read_text().strip()


def lock(run_dir: Path) -> int:
    """Take the folder for this process; returns the descriptor that holds it. The system frees it however we end.

    Raises UserError if another process writes the run.
    """
    descriptor = os.open(run_dir / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    for left in reversed(range(_LOOKS)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if left:  # perhaps by `status`, for an instant
                time.sleep(_PAUSE_S)
                continue
        owner = os.read(descriptor, 32).decode().strip()
        os.close(descriptor)
        raise UserError(f"{run_dir} is being written by process {owner}: wait for it, or end it first") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def status(run_dir: Path) -> Status:
    """Where the run stands now; changes nothing."""
    if _held(run_dir / _LOCK):
        return Status.RUNNING
    for row in reversed(read(run_dir / "events.jsonl")):
        if row["event"] in ("finished", "failed"):
            return Status(row["event"])
        if row["event"] in ("started", "resumed", "interrupted"):
            break
    return Status.STOPPED


def _held(file: Path) -> bool:
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _line(row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n"
    except (TypeError, ValueError):  # numpy values, or a number that is not finite
        return json.dumps(finite(row)[0], allow_nan=False, ensure_ascii=False) + "\n"
