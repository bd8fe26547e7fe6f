"""Desk work without a sandbox: files in a dict, a solver from files to files, and the environment's verdict on them."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Callable
from typing import Any

from environments.task import Task
from environments.workspace import Workspace

Files = dict[str, str | bytes]
Solver = Callable[[str, Files, bool], Files]
"""(prompt, files, whether to make the plausible mistake) -> what is written."""


class Desk:
    """The part of a sandbox that judges of files need."""

    def __init__(self, files: Files) -> None:
        self.kept = files

    async def read_file(self, path: str) -> bytes:
        if path not in self.kept:
            raise FileNotFoundError(path)
        data = self.kept[path]
        return data.encode() if isinstance(data, str) else data


def reward(env: Workspace, task: Task, files: Files) -> float | None:
    return asyncio.run(env.judge(task, Desk(files), "done")).reward  # type: ignore[arg-type]


def text(files: Files, name: str) -> str:
    data = files[name]
    return data if isinstance(data, str) else data.decode()


def rows(files: Files, name: str, delimiter: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text(files, name)), delimiter=delimiter))


def written(header: str, lines: list[Any]) -> str:
    """CSV in another dress than the oracle's: everything quoted, CRLF."""
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\r\n").writerows([header.split(","), *lines])
    return out.getvalue()


def near_misses(files: Files) -> list[Files]:
    """The right files with one missing, one row lost, one cell changed, or as a hint of what they would hold."""
    name = min(files)
    whole = text(files, name)
    lines = whole.splitlines(keepends=True)
    return [
        {n: t for n, t in files.items() if n != name},
        {**files, name: "".join(lines[:-1])},
        {**files, name: whole.replace(lines[-1], lines[-1].rstrip("\r\n") + "1\n")},
        {**files, name: whole + lines[-1]},
        {**files, name: ""},
        {**files, name: "[" * 100_000},
        {**files, name: "x" * 2_000_000},
    ]
