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
    """`verdict.txt` must name every damaged, missing and extra file; some differ in one byte."""

    id = "terminal/checksums"
    domain = "terminal"
    skills = ("shell", "integrity")

    def draw(self, rng: random.Random, level: int) -> Draft:
        paths: list[str] = []
        while len(paths) < 8 * level:
            path = f"{rng.choice(FOLDERS)}/{rng.choice('abcdefgh')}{rng.randrange(1000):03d}.dat"
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
        for _ in range(level):
            path = f"{rng.choice(FOLDERS)}/z{rng.randrange(1000):03d}.dat"
            states[path], files[path] = "extra", "0\n"
        listed = rng.sample(paths, len(paths))
        text = (
            "delivery/ was copied from another machine. delivery/SHA256SUMS lists the sha256 sum and path (relative to "
            "delivery/) of every file that was sent. Write verdict.txt with one line `state path` for each file that "
            "is not as it was sent, sorted by path: state is `damaged` (content differs), `missing`, or `extra` (not "
            "listed; SHA256SUMS itself does not count). Then answer `done`."
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
        script = r"""cd delivery
awk '{print $2}' SHA256SUMS | LC_ALL=C sort > /tmp/listed
find . -type f ! -name SHA256SUMS | sed 's|^\./||' | LC_ALL=C sort > /tmp/there
{ LC_ALL=C comm -23 /tmp/listed /tmp/there | sed 's/^/missing /'
  LC_ALL=C comm -13 /tmp/listed /tmp/there | sed 's/^/extra /'
  sha256sum -c SHA256SUMS 2>/dev/null | awk -F': ' '$2 == "FAILED" {print "damaged " $1}'; } |
LC_ALL=C sort -k2 > ../verdict.txt"""
        return [("bash", {"command": script})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        found = await read_text(place, "verdict.txt")
        lines = [] if found is None else [line.split() for line in found.splitlines() if line.strip()]
        return Grade.outcome(lines == [line.split() for line in task.info["wanted"].splitlines()], found=lines[:50])
