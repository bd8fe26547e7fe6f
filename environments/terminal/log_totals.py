"""Sum what a log says about each service, and write the totals into a file."""

from __future__ import annotations

import gzip
import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, read_text
from rewards.grade import Grade

SERVICES = ("auth", "billing", "search", "mail", "media", "queue")


class LogTotals(Workspace):
    """Lines of other kinds, then fields in any order and quoted lines, then compressed logs and sizes in thousands."""

    id = "terminal/log_totals"
    domain = "terminal"
    skills = ("shell", "text")

    def draw(self, rng: random.Random, level: int) -> Draft:
        logs: dict[str, str] = {}
        totals: dict[str, int] = {}
        for number in range(2 * level - 1):
            lines = []
            for _ in range(20 * level):
                service, size = rng.choice(SERVICES), rng.randint(10, 9999)
                kind = rng.choice((*["SENT"] * 7, "DROP", "DROP", "NOTE" if level > 1 else "DROP"))
                thousands = level > 2 and rng.random() < 0.2
                if kind == "SENT":
                    totals[service] = totals.get(service, 0) + size * (1000 if thousands else 1)
                fields = [f"service={service}", f"bytes={size}{'k' * thousands}"]
                said = " ".join(fields if level == 1 else rng.sample(fields, 2))
                said = f'text="again SENT {said}"' if kind == "NOTE" else said
                lines.append(f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d} {kind} {said}")
            logs[f"logs/{number}.log" + ".gz" * (level > 2 and number % 2)] = "\n".join(lines) + "\n"
        wanted = "".join(f"{s} {n}\n" for s, n in sorted(totals.items(), key=lambda x: (-x[1], x[0])))
        more = " The two fields may be the other way round, and a NOTE only tells of others." if level > 1 else ""
        more += " Some logs are compressed (.gz), and `12k` is 12000 bytes." if level > 2 else ""
        text = (
            f"The files in logs/ hold lines such as `12:05 SENT service=auth bytes=10`.{more} For each service that "
            "SENT anything, sum the bytes of its SENT lines over all logs. Write totals.txt: one line `service bytes` "
            "a service, largest sum first, services of equal sums by name. Then answer `done`."
        )
        return Draft(text, "done", {"logs": logs, "wanted": wanted})

    def files(self, task: Task) -> dict[str, str | bytes]:
        logs = task.info["logs"].items()
        return {n: gzip.compress(t.encode(), mtime=0) if n.endswith(".gz") else t for n, t in logs}

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        script = r"""import gzip, pathlib, re
totals = {}
for path in pathlib.Path("logs").iterdir():
    data = path.read_bytes()
    for line in (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines():
        if re.match(r"\S+ SENT ", line):
            size, thousands = re.search(r"bytes=(\d+)(k?)", line).groups()
            service = re.search(r"service=(\w+)", line)[1]
            totals[service] = totals.get(service, 0) + int(size) * (1000 if thousands else 1)
lines = [f"{s} {n}\n" for s, n in sorted(totals.items(), key=lambda x: (-x[1], x[0]))]
pathlib.Path("totals.txt").write_text("".join(lines))
"""
        return [("write_file", {"path": "t.py", "text": script}), ("bash", {"command": "python3 t.py"})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        found = await read_text(place, "totals.txt")
        right = found is not None and found.split() == task.info["wanted"].split()
        return Grade.outcome(right, found=found and found[:2000])
