"""Pseudonyms for people that stay consistent over files, in free text too; the rest of the data unharmed."""

from __future__ import annotations

import csv
import io
import random
import re
from typing import Any

from environments.base import Draft
from environments.deliverables import CITIES, Call
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, read_text
from rewards.grade import Grade
from rewards.tables import MAX_CHARS, read_csv, write_csv

PEOPLE = (
    "Ann Lee",
    "Lee Ann",
    "Bo Marsh",
    "Marsha Bow",
    "Cleo Stone",
    "Ivo Fields",
    "Mia Rivers",
    "Rosa May",
    "Max West",
    "Joan Baker",
    "Neil Hunt",
    "Dawn Hill",
)
_TOKEN = re.compile(r"P\d{4}")


class Anonymise(Workspace):
    """Any one-to-one choice of P-numbers is right; names inside other words must stay as they are."""

    id = "data/anonymise"
    domain = "data"
    skills = ("privacy", "text")

    def draw(self, rng: random.Random, level: int) -> Draft:
        people = rng.sample(PEOPLE, 3 + 3 * level)
        numbers = rng.sample(range(10000, 99999), len(people))
        staff = [
            [n, p, f"{p.lower().replace(' ', '.')}@firm.example", rng.choice(CITIES), rng.randint(1955, 2004)]
            for n, p in zip(numbers, people, strict=True)
        ]
        visits = [
            [k + 1, rng.choice(numbers), f"2024-0{rng.randint(1, 9)}-{rng.randint(10, 28)}", rng.randint(10, 900)]
            for k in range(8 * level)
        ]
        notes = [[k + 1, self._note(rng, people, level)] for k in range(5 * level)]
        text = (
            "staff.csv, visits.csv and notes.csv must go to a partner without personal data. Write out/staff.csv, "
            "out/visits.csv and out/notes.csv with the same headers and rows in the same order. Choose for every "
            "person of staff.csv a pseudonym, P and four digits, no two alike, and:\n- put it in place of staff_no "
            "in staff.csv and visits.csv, and in place of name;\n- email becomes the pseudonym in lower case "
            "@anon.example;\n- born becomes the first year of its decade (1987: 1980);\n- in the notes replace every "
            "mention of a person by the pseudonym: the full name and the e-mail address, in any case, and only as "
            "whole words: `Ann Leeds` does not mention Ann Lee. Everything else stays as it is. Then answer `done`."
        )
        return Draft(text, "done", {"staff": staff, "visits": visits, "notes": notes})

    def _note(self, rng: random.Random, people: list[str], level: int) -> str:
        a, b = rng.sample(people, 2)
        shown = rng.choice((a, a.upper(), a.lower()) if level >= 2 else (a,))
        mail = f"{b.lower().replace(' ', '.')}@firm.example"
        decoy = rng.choice((f"{b}son Ltd", f"the {b}ing street office", f"Mc{a}", "P.O. box 12"))
        return rng.choice(
            (
                f"{shown} met {b} about {decoy}.",
                f"Please write to {mail} (cc {shown}), not to {decoy}.",
                f"{b}'s badge: returned by {shown}; see {decoy}",
                f"{decoy} called; {mail.upper() if level >= 3 else mail} knows.",
            )
        )

    def files(self, task: Task) -> dict[str, str | bytes]:
        headers = {
            "staff": ("staff_no", "name", "email", "city", "born"),
            "visits": ("visit", "staff_no", "day", "cost"),
            "notes": ("note", "text"),
        }
        return {f"{name}.csv": write_csv(header, task.info[name]) for name, header in headers.items()}

    def solve(self, task: Task) -> tuple[list[Call], str]:
        names = {row[0]: f"P{1000 + i}" for i, row in enumerate(task.info["staff"])}
        return [("write_file", {"path": f"out/{n}", "text": t}) for n, t in _outputs(self, task, names).items()], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        """The pseudonyms are read from the staff file; given them, everything else is determined."""
        found = {n: await read_text(place, f"out/{n}") for n in ("staff.csv", "visits.csv", "notes.csv")}
        staff = read_csv(found["staff.csv"] or "")
        rows = task.info["staff"]
        if staff is None or len(staff[1]) != len(rows):
            return Grade.outcome(False, fault="out/staff.csv cannot be read, or has other rows")
        names = {row[0]: new[0] for row, new in zip(rows, staff[1], strict=True)}
        if len(set(names.values())) != len(rows) or not all(_TOKEN.fullmatch(n) for n in names.values()):
            return Grade.outcome(False, fault="the pseudonyms are not different P-numbers")
        wrong = [n for n, text in _outputs(self, task, names).items() if _rows(found[n]) != _rows(text)]
        return Grade.outcome(not wrong, wrong=wrong)


def _rows(text: str | None) -> list[list[str]] | None:
    """All cells as they are: nothing may change, not even a blank."""
    if text is None or len(text) > MAX_CHARS:
        return None
    try:
        return [row for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error:
        return None


def _outputs(env: Anonymise, task: Task, names: dict[int, str]) -> dict[str, str]:
    """The files for a choice of pseudonyms (by staff number)."""
    staff, visits, notes = (task.info[k] for k in ("staff", "visits", "notes"))
    said: dict[str, str] = {}
    for number, name, email, *_ in staff:
        said[name.lower()] = said[email] = names[number]
    words = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, sorted(said, key=len, reverse=True))) + r")(?!\w)", re.I)
    tables: dict[str, tuple[str, list[list[Any]]]] = {
        "staff.csv": (
            "staff",
            [[names[n], names[n], f"{names[n].lower()}@anon.example", c, y // 10 * 10] for n, _, _, c, y in staff],
        ),
        "visits.csv": ("visits", [[v, names[n], d, c] for v, n, d, c in visits]),
        "notes.csv": ("notes", [[n, words.sub(lambda m: said[m.group().lower()], t)] for n, t in notes]),
    }
    headers = env.files(task)
    return {n: write_csv(str(headers[n]).splitlines()[0].split(","), rows) for n, (_, rows) in tables.items()}
