"""Restore files from a pile of nested, overlapping backups: the newest copy of each that is not damaged."""

from __future__ import annotations

import base64
import gzip
import io
import random
import tarfile
import zipfile
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, read_text
from rewards.grade import Grade

NAMES = ("accounts.csv", "letters/draft.txt", "letters/final.txt", "plan.md", "src/main.c", "src/util.c", "todo.txt")


class Archives(Workspace):
    """Backups are tar.gz files and zips, some inside another one; the date is in the name, and some do not open."""

    id = "terminal/archives"
    domain = "terminal"
    skills = ("shell", "recovery")

    def draw(self, rng: random.Random, level: int) -> Draft:
        count = 2 + 2 * level
        dates = rng.sample([f"2024-{m:02d}-{d:02d}" for m in range(1, 13) for d in (3, 11, 19, 27)], count)
        broken = set(rng.sample(dates, level))
        newest: dict[str, tuple[str, str]] = {}
        backups: dict[str, str] = {}
        inner: tuple[str, bytes] | None = None
        for date in sorted(dates, reverse=rng.random() < 0.5):
            held = {n: f"{n} of {date}: {rng.getrandbits(48):012x}\n" for n in NAMES if rng.random() < 0.6}
            members = {n: text.encode() for n, text in held.items()}
            if inner is not None:  # the backup before this one was put into it
                members[f"old/{inner[0]}"] = inner[1]
                inner = None
            name, data = _pack(date, members, rng.random() < 0.5)
            if date in broken:
                backups[f"backups/{name}"] = base64.b64encode(data[: len(data) // 3]).decode()
                continue
            for path, text in held.items():
                if path not in newest or newest[path][0] < date:
                    newest[path] = (date, text)
            if rng.random() < 0.3 * (level - 1):
                inner = (name, data)
            else:
                backups[f"backups/{name}"] = base64.b64encode(data).decode()
        if inner is not None:
            backups[f"backups/{inner[0]}"] = base64.b64encode(inner[1]).decode()
        text = (
            "backups/ holds backups named by date, as .tar.gz or .zip. Some are damaged and do not open as a whole: "
            "ignore those entirely. A backup may hold other backups in old/, which count by their own date. Restore "
            "into restored/ the newest copy of every file that any readable backup holds (without the backups "
            "themselves), with the same relative path. Then answer with the number of restored files."
        )
        # A backup that was put into a damaged one is lost with it.
        return Draft(text, str(len(_readable(backups))), {"backups": backups, "wanted": _readable(backups)})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return {name: base64.b64decode(data) for name, data in task.info["backups"].items()}

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        script = """import io, pathlib, tarfile, zipfile
newest = {}
def read(name, data):
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(data)) as z:
                members = {n: z.read(n) for n in z.namelist()}
        else:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as t:
                members = {m.name: t.extractfile(m).read() for m in t if m.isfile()}
    except Exception:
        return
    date = name[:10]
    for path, content in members.items():
        if path.startswith("old/"):
            read(path[4:], content)
        elif path not in newest or newest[path][0] < date:
            newest[path] = (date, content)
for path in pathlib.Path("backups").iterdir():
    read(path.name, path.read_bytes())
for path, (_, content) in newest.items():
    target = pathlib.Path("restored", path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
"""
        run = [("write_file", {"path": "r.py", "text": script}), ("bash", {"command": "python3 r.py"})]
        return run, task.answer

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        listing = await place.exec("cd restored && find . -mindepth 1 ! -type d | LC_ALL=C sort")
        wanted = task.info["wanted"]
        names = sorted(f"./{name}" for name in wanted)
        if listing.stdout.decode("utf-8", "replace").split("\n")[:-1] != names:
            return Grade.outcome(False, listed=listing.stdout[:500].decode("utf-8", "replace"))
        wrong = [n for n, text in wanted.items() if await read_text(place, f"restored/{n}") != text]
        return Grade.outcome(not wrong and answer == task.answer, wrong=wrong, read=answer)


def _pack(date: str, members: dict[str, bytes], zipped: bool) -> tuple[str, bytes]:
    """(name, bytes) of a backup; no time or owner of this machine is in it."""
    out = io.BytesIO()
    if zipped:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name), data)
        return f"{date}.zip", out.getvalue()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return f"{date}.tar.gz", gzip.compress(out.getvalue(), mtime=0)


def _readable(backups: dict[str, str]) -> dict[str, str]:
    """The newest copy of each file, as an exact reader of these archives finds it."""
    newest: dict[str, tuple[str, str]] = {}

    def read(name: str, data: bytes) -> None:
        try:
            if name.endswith(".zip"):
                with zipfile.ZipFile(io.BytesIO(data)) as archive:
                    members = {n: archive.read(n) for n in archive.namelist()}
            else:
                with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as tar:
                    members = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
        except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError):
            return
        for path, content in members.items():
            if path.startswith("old/"):
                read(path.removeprefix("old/"), content)
            elif path not in newest or newest[path][0] < name[:10]:
                newest[path] = (name[:10], content.decode())

    for path, data in backups.items():
        read(path.removeprefix("backups/"), base64.b64decode(data))
    return {path: text for path, (_, text) in newest.items()}
