"""Sum what a log says about each service, and write the totals into a file."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, read_text
from rewards.grade import Grade

SERVICES = ("auth", "billing", "search", "mail", "media", "queue")


class LogTotals(Workspace):
    """Several logs, lines of other kinds among them; `totals.txt` must hold `service bytes`, largest first."""

    id = "terminal/log_totals"
    domain = "terminal"
    skills = ("shell", "text")

    def draw(self, rng: random.Random, level: int) -> Draft:
        logs: dict[str, str] = {}
        totals: dict[str, int] = {}
        for number in range(level):
            lines = []
            for _ in range(20 * level):
                service, size = rng.choice(SERVICES), rng.randint(10, 9999)
                if rng.random() < 0.7:
                    totals[service] = totals.get(service, 0) + size
                    lines.append(
                        f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d} SENT service={service} bytes={size}"
                    )
                else:
                    lines.append(
                        f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d} DROP service={service} bytes={size}"
                    )
            logs[f"logs/{number}.log"] = "\n".join(lines) + "\n"
        wanted = "".join(f"{s} {n}\n" for s, n in sorted(totals.items(), key=lambda x: (-x[1], x[0])))
        text = (
            "The files in logs/ hold lines such as `12:05 SENT service=auth bytes=10`. For each service that SENT "
            "anything, sum the bytes of its SENT lines over all logs. Write totals.txt: one line `service bytes` a "
            "service, largest sum first, services of equal sums by name. Then answer `done`."
        )
        return Draft(text, "done", {"logs": logs, "wanted": wanted})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return dict(task.info["logs"])

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        split = """$2 == "SENT" { split($3, s, "="); split($4, b, "="); t[s[2]] += b[2] }"""
        awk = f"awk '{split} END {{ for (k in t) print k, t[k] }}' logs/*.log"
        return [("bash", {"command": f"{awk} | LC_ALL=C sort -k2,2nr -k1,1 > totals.txt"})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        found = await read_text(place, "totals.txt")
        right = found is not None and found.split() == task.info["wanted"].split()
        return Grade.outcome(right, found=found and found[:2000])
