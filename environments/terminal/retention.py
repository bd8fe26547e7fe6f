"""Thin out backups by a retention policy."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

from environments.base import Draft
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace
from rewards.grade import Grade


class Retention(Workspace):
    """Daily, weekly and monthly rules overlap, days are missing, and one folder may be on hold."""

    id = "terminal/retention"
    domain = "terminal"
    skills = ("shell", "dates")

    def draw(self, rng: random.Random, level: int) -> Draft:
        today = date(2025, 1, 1) + timedelta(days=rng.randrange(365))
        span, daily, weekly, monthly = 60 * level, rng.randint(3, 7), rng.randint(2, 5), rng.randint(2, 1 + 2 * level)
        days = sorted(rng.sample([today - timedelta(days=i) for i in range(span)], span * 2 // 3))
        held = rng.sample(days, level - 1)
        kept = set(held) | {d for d in days if (today - d).days < daily}
        weeks = {d.isocalendar()[:2]: d for d in days}  # ascending, so the last of each week stays
        kept |= set(sorted(weeks.values())[-weekly:])
        months: dict[tuple[int, int], date] = {}
        for day in days:
            months.setdefault((day.year, day.month), day)
        kept |= set(sorted(months.values())[-monthly:])
        text = (
            f"Today is {today}. backups/ holds one file backup-YYYY-MM-DD.db for each day on which a backup was made. "
            f"Keep every backup of the last {daily} days (today included); the newest backup of each of the {weekly} "
            f"most recent ISO weeks that have one; and the oldest backup of each of the {monthly} most recent calendar "
            "months that have one. A file that one rule keeps stays. Backups with a file of the same name ending in "
            ".hold always stay, with their .hold file, and count in the rules like others. Delete all others. Then "
            "answer with the number of backups that are left."
        )
        info = {
            "days": [d.isoformat() for d in days],
            "held": [d.isoformat() for d in sorted(held)],
            "kept": [d.isoformat() for d in sorted(kept)],
            "rules": [today.isoformat(), daily, weekly, monthly],
        }
        return Draft(text, str(len(kept)), info)

    def files(self, task: Task) -> dict[str, str | bytes]:
        backups = {f"backups/backup-{d}.db": f"backup of {d}\n" for d in task.info["days"]}
        return {**backups, **{f"backups/backup-{d}.hold": "legal\n" for d in task.info["held"]}}

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        today, daily, weekly, monthly = task.info["rules"]
        script = f"""import datetime, pathlib
today = datetime.date.fromisoformat("{today}")
files = {{datetime.date.fromisoformat(p.stem[7:]): p for p in pathlib.Path("backups").glob("*.db")}}
keep = {{d for d, p in files.items() if (today - d).days < {daily} or p.with_suffix(".hold").exists()}}
weeks, months = {{}}, {{}}
for d in sorted(files):
    weeks[d.isocalendar()[:2]] = d
    months.setdefault((d.year, d.month), d)
keep |= {{weeks[w] for w in sorted(weeks)[-{weekly}:]}} | {{months[m] for m in sorted(months)[-{monthly}:]}}
for d, p in files.items():
    if d not in keep:
        p.unlink()
"""
        return [("write_file", {"path": "k.py", "text": script}), ("bash", {"command": "python3 k.py"})], task.answer

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        listing = await place.exec("cd backups && find . -mindepth 1 -type f -size -2 | LC_ALL=C sort")
        names = [f"./backup-{d}.db" for d in task.info["kept"]] + [f"./backup-{d}.hold" for d in task.info["held"]]
        right = listing.stdout.decode("utf-8", "replace").split() == sorted(names)
        return Grade.outcome(right and answer == task.answer, read=answer)
