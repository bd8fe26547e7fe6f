"""Give a folder of badly named photographs names by one rule, without losing any."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, probe
from rewards.grade import Grade

_LISTING = """
import os
found = {}
for folder, _, names in os.walk("photos"):
    for name in names:
        path = os.path.join(folder, name)
        if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) > 4096:
            found[path] = None
        else:
            found[path] = open(path, encoding="utf-8", errors="replace").read()
json.dump(found, out)
"""


class Rename(Workspace):
    """The date is inside each file; names hold spaces, dashes and capitals; two files of one day must not collide."""

    id = "terminal/rename"
    domain = "terminal"
    skills = ("shell", "files")
    in_sight = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        days = [f"20{rng.randint(19, 25)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}" for _ in range(2 + level)]
        shots: dict[str, tuple[str, str, str]] = {}
        while len(shots) < 5 * level + 2:
            stem = rng.choice(("IMG", "DSC ", "photo-", "My Trip ", "-scan", "Bild_(1) ", "p'")) + str(
                rng.randrange(9999)
            )
            name = f"{stem}.{rng.choice(('JPG', 'jpg', 'jpeg', 'JPEG'))}"
            if name.lower() in {n.lower() for n in shots}:
                continue
            day = rng.choice(days)
            clock = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}"
            if (day, clock) not in {(d, c) for d, c, _ in shots.values()}:
                shots[name] = (day, clock, f"{rng.getrandbits(40):010x}")
        wanted: dict[str, str] = {}
        for day in sorted({d for d, _, _ in shots.values()}):
            same = sorted((clock, name) for name, (d, clock, _) in shots.items() if d == day)
            for number, (_, name) in enumerate(same, 1):
                wanted[f"photos/{day[:4]}/{day}_{number:03d}.jpg"] = _content(*shots[name])
        text = (
            "photos/ holds photographs with names from several cameras. Each file has a line `taken: YYYY-MM-DD "
            "HH:MM:SS`. Move every one to photos/YYYY/YYYY-MM-DD_NNN.jpg, where NNN is its number on that day by time, "
            "from 001 (photos/2021/2021-05-03_001.jpg). Change no content, leave nothing else in photos/. Then answer "
            "`done`."
        )
        return Draft(text, "done", {"files": {n: _content(*s) for n, s in shots.items()}, "wanted": wanted})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return {f"photos/{name}": text for name, text in task.info["files"].items()}

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        script = """import pathlib, re
photos = []
for path in pathlib.Path("photos").iterdir():
    day, clock = re.search(r"taken: (\\S+) (\\S+)", path.read_text()).groups()
    photos.append((day, clock, path))
count = {}
for day, clock, path in sorted(photos):
    count[day] = count.get(day, 0) + 1
    new = pathlib.Path("photos", day[:4], f"{day}_{count[day]:03d}.jpg")
    new.parent.mkdir(exist_ok=True)
    path.rename(new)
"""
        return [("write_file", {"path": "r.py", "text": script}), ("bash", {"command": "python3 r.py"})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        found = await probe(place, _LISTING, None, alone=True)
        return Grade.outcome(
            found == task.info["wanted"], found=sorted(found)[:50] if isinstance(found, dict) else None
        )


def _content(day: str, clock: str, pixels: str) -> str:
    return f"camera: X100\ntaken: {day} {clock}\npixels: {pixels}\n"
