"""Find which files of a delivery were damaged, lost or added, by its manifest of checksums."""

from __future__ import annotations

import hashlib
import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, read_text
from rewards.grade import Grade

FOLDERS = ("images", "reports", "raw", "meta", "notes")


class Checksums(Workspace):
    """`verdict.txt` must name every damaged, missing and extra file, then names hold blanks, then some are renamed."""

    id = "terminal/checksums"
    domain = "terminal"
    skills = ("shell", "integrity")

    def draw(self, rng: random.Random, level: int) -> Draft:
        paths: list[str] = []
        while len(paths) < 8 * level:
            blank = " " * (level > 1 and rng.random() < 0.3)
            path = f"{rng.choice(FOLDERS)}/{rng.choice('abcdefgh')}{blank}{rng.randrange(1000):03d}.dat"
            if path not in paths:
                paths.append(path)
        files = {p: f"{rng.getrandbits(64):016x}\n" * rng.randint(1, 3) for p in paths}
        manifest = {p: hashlib.sha256(text.encode()).hexdigest() for p, text in files.items()}
        picked = rng.sample(paths, 2 + 2 * level)
        half = rng.randint(1, len(picked) - 1)
        states = {}
        for path in picked[:half]:
            states[path] = "damaged"
            at = rng.randrange(len(files[path]) - 1)
            files[path] = files[path][:at] + ("x" if files[path][at] != "x" else "y") + files[path][at + 1 :]
        for path in picked[half:]:
            states[path] = "missing"
            del files[path]
        for path in rng.sample([p for p in paths if p not in picked], 3 * (level > 2)):
            states[path] = "renamed"
            files[f"{rng.choice(FOLDERS)}/y{rng.randrange(1000):03d} (1).dat"] = files.pop(path)
        for _ in range(level):
            path = f"{rng.choice(FOLDERS)}/z{rng.randrange(1000):03d}.dat"
            states[path], files[path] = "extra", "0\n"
        listed = rng.sample(paths, len(paths))
        more = ", or `renamed` (missing, but a file that is not listed has its content; that file is not extra then)"
        text = (
            "delivery/ was copied from another machine. delivery/SHA256SUMS lists the sha256 sum and path (relative to "
            "delivery/) of every file that was sent. Write verdict.txt with one line `state path` for each file that "
            "is not as it was sent, sorted by path (byte order): state is `damaged` (content differs), `missing`, "
            f"{'or ' * (level < 3)}`extra` (not listed; SHA256SUMS itself does not count){more * (level > 2)}. Then "
            "answer `done`."
        )
        info = {
            "files": {f"delivery/{p}": t for p, t in files.items()},
            "sums": "".join(f"{manifest[p]}  {p}\n" for p in listed),
            "wanted": "".join(f"{states[p]} {p}\n" for p in sorted(states)),
        }
        return Draft(text, "done", info)

    def files(self, task: Task) -> dict[str, str | bytes]:
        return {**task.info["files"], "delivery/SHA256SUMS": task.info["sums"]}

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        script = """import hashlib, pathlib
root = pathlib.Path("delivery")
sums = {line[66:]: line[:64] for line in (root / "SHA256SUMS").read_text().splitlines()}
there = {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in root.rglob("*") if p.is_file()}
del there["SHA256SUMS"]
new = {path: found for path, found in there.items() if path not in sums}
lost = {path: found for path, found in sums.items() if path not in there}
states = {path: "damaged" for path in sums if path in there and there[path] != sums[path]}
states.update((path, "renamed" if found in new.values() else "missing") for path, found in lost.items())
states.update((path, "extra") for path, found in new.items() if found not in lost.values())
pathlib.Path("verdict.txt").write_text("".join(f"{states[path]} {path}\\n" for path in sorted(states)))
"""
        return [("write_file", {"path": "v.py", "text": script}), ("bash", {"command": "python3 v.py"})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        found = await read_text(place, "verdict.txt")
        lines = [] if found is None else [line.split() for line in found.splitlines() if line.strip()]
        return Grade.outcome(lines == [line.split() for line in task.info["wanted"].splitlines()], found=lines[:50])
