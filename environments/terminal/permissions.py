"""Set the modes of a tree by a written policy."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, probe
from rewards.grade import Grade

_MODES = """
import os, stat
found = {}
for folder, folders, names in os.walk("site"):
    for name in folders + names:
        path = os.path.join(folder, name)
        mode = os.lstat(path).st_mode
        text = open(path).read(100) if stat.S_ISREG(mode) else None
        found[path] = None if stat.S_ISLNK(mode) else [oct(stat.S_IMODE(mode)), text]
json.dump(found, out)
"""
_FOLDERS = ("site/bin", "site/etc", "site/etc/keys", "site/data", "site/data/tmp", "site/docs")


class Permissions(Workspace):
    """Later rules overrule earlier ones, and a script is known by its first line, not by its name."""

    id = "terminal/permissions"
    domain = "terminal"
    skills = ("shell", "security")
    tags = (*Workspace.tags, "cyber")

    def draw(self, rng: random.Random, level: int) -> Draft:
        files: dict[str, str] = {}
        modes: dict[str, int] = {}
        while len(files) < 6 * level + 2:
            name = rng.choice(("run", "sync", "users", "host", "main", "old", "index")) + str(rng.randrange(100))
            path = f"{rng.choice(_FOLDERS)}/{name}{rng.choice(('', '.sh', '.conf', '.key', '.txt', '.py'))}"
            files[path] = rng.choice(
                ("#!/bin/sh\ntrue\n", "#!/usr/bin/env python3\n", "plain text\n", "# settings\na = 1\n")
            )
            modes[path] = rng.choice((0o600, 0o644, 0o666, 0o755, 0o777, 0o640))
        wanted = {f: "0o755" for f in _FOLDERS} | {f: "0o700" for f in ("site/etc/keys",)}
        for path, text in files.items():
            mode = "0o755" if text.startswith("#!") else "0o644"
            if path.startswith("site/data/"):
                mode = "0o640"
            if path.endswith(".key") or path.startswith("site/etc/keys/"):
                mode = "0o600"
            wanted[path] = mode
        text = (
            "Set the permissions below site/ by these rules; a later rule overrules an earlier one.\n1. Directories "
            "are 755, files 644.\n2. Scripts (files whose first two bytes are #!) are 755.\n3. Files below site/data/ "
            "are 640.\n4. Files that end in .key, and all files below site/etc/keys/, are 600; the directory "
            "site/etc/keys itself is 700.\nChange no content. Then answer `done`."
        )
        return Draft(text, "done", {"files": files, "modes": {p: oct(m) for p, m in modes.items()}, "wanted": wanted})

    async def start(self, task: Task, sandbox: Sandbox | None) -> None:
        assert sandbox is not None
        for path, text in task.info["files"].items():
            await sandbox.write_file(path, text.encode(), int(task.info["modes"][path], 8))
        await sandbox.exec(["mkdir", "-p", *_FOLDERS])

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        script = """find site -type d -exec chmod 755 {} +
find site -type f -exec chmod 644 {} +
find site -type f | while read -r f; do [ "$(head -c 2 "$f")" = '#!' ] && chmod 755 "$f"; done
find site/data -type f -exec chmod 640 {} +
find site -type f -name '*.key' -exec chmod 600 {} +
find site/etc/keys -type f -exec chmod 600 {} +
chmod 700 site/etc/keys"""
        return [("bash", {"command": script})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        found = await probe(place, _MODES, None, alone=True)
        if not isinstance(found, dict):
            return Grade.outcome(False, why="site/ cannot be listed")
        wanted = {path: [mode, task.info["files"].get(path)] for path, mode in task.info["wanted"].items()}
        wrong = sorted(path for path in found.keys() | wanted.keys() if found.get(path) != wanted.get(path))
        return Grade.outcome(not wrong, wrong=wrong[:20])
