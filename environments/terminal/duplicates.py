"""Free space by deleting copies, but never the last one, by a rule of which to keep."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, probe
from rewards.grade import Grade

_TREE = """
import os
found = {}
for folder, _, names in os.walk("share"):
    for name in names:
        path = os.path.join(folder, name)
        regular = os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path) < 4096
        found[path] = open(path, encoding="utf-8", errors="replace").read() if regular else None
json.dump(found, out)
"""


class Duplicates(Workspace):
    """Equal names with other content are no copies, and equal content under other names is one."""

    id = "terminal/duplicates"
    domain = "terminal"
    skills = ("shell", "files")

    def draw(self, rng: random.Random, level: int) -> Draft:
        people = ("ada", "ben", "cleo", "dov", "archive", "shared")[: 3 + level]
        contents = [
            f"{rng.choice(['report', 'photo', 'draft', 'list'])} {rng.getrandbits(40):x}\n" for _ in range(4 * level)
        ]
        files: dict[str, str] = {}
        for content in contents:
            for _ in range(rng.choice((1, 2, 2, 3, 4))):
                depth = "/".join(rng.choices(("a", "b", "old", "new"), k=rng.randint(0, level)))
                name = f"{rng.choice(('x', 'y', 'copy of x', 'report', 'z'))}{rng.randrange(30)}.txt"
                path = "/".join(filter(None, ("share", rng.choice(people), depth, name)))
                files.setdefault(path, content)
        groups: dict[str, list[str]] = {}
        for path, content in files.items():
            groups.setdefault(content, []).append(path)
        kept = {min(paths, key=_rank): content for content, paths in groups.items()}
        text = (
            "Files below share/ that have the same content are copies of one another, whatever their names. Of each "
            "set of copies keep exactly one and delete the others: keep one below share/archive/ if there is one; "
            "among what is left, the one with the shortest path (in characters); among those, the first in "
            "alphabetical (byte) order. Files without a copy stay. Then answer with the number of files that you "
            "deleted."
        )
        return Draft(text, str(len(files) - len(kept)), {"files": files, "kept": kept})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return dict(task.info["files"])

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        script = """import hashlib, pathlib
groups = {}
for path in pathlib.Path("share").rglob("*"):
    if path.is_file():
        groups.setdefault(hashlib.sha256(path.read_bytes()).digest(), []).append(path)
for paths in groups.values():
    paths.sort(key=lambda p: (not str(p).startswith("share/archive/"), len(str(p)), str(p)))
    for path in paths[1:]:
        path.unlink()
"""
        return [("write_file", {"path": "d.py", "text": script}), ("bash", {"command": "python3 d.py"})], task.answer

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        found = await probe(place, _TREE, None, alone=True)
        return Grade.outcome(found == task.info["kept"] and answer == task.answer, read=answer)


def _rank(path: str) -> tuple[bool, int, str]:
    return not path.startswith("share/archive/"), len(path), path
