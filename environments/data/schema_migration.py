"""Write a migration that keeps the data and adds the constraints."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.deliverables import FIRST, LAST, Call
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, probe
from rewards.grade import Grade

OLD = (
    "CREATE TABLE bookings (id INTEGER PRIMARY KEY, guest TEXT, email TEXT, room TEXT, arrival TEXT, nights TEXT, "
    "price TEXT, note TEXT);"
)

RUN = """
import sqlite3
sql, results = open('migrate.sql', encoding='utf-8').read(), []
for rows, reads, bad, good in cases:
    base = sqlite3.connect(':memory:')
    base.executescript(OLD)
    base.executemany('INSERT INTO bookings VALUES (?, ?, ?, ?, ?, ?, ?, ?)', rows)
    base.commit()
    base.executescript(sql)
    base.commit()
    base.execute('PRAGMA foreign_keys = ON')
    found = [base.execute(read).fetchmany(1000) for read in reads]
    outcome = []
    for statement in bad + good:
        try:
            base.execute(statement)
            outcome.append(True)
        except sqlite3.IntegrityError:
            outcome.append(False)
        base.rollback()
    results.append([found, outcome])
json.dump(results, out)
""".replace("OLD", repr(OLD))

READS = (
    "SELECT g.email, g.name FROM guests g ORDER BY g.email",
    "SELECT b.id, g.email, b.room, b.arrival, b.nights, b.price_cents, typeof(b.nights), typeof(b.price_cents) "
    "FROM bookings b JOIN guests g ON g.id = b.guest_id ORDER BY b.id",
    "SELECT booking_id, body FROM notes ORDER BY booking_id",
    "SELECT count(*) FROM bookings",
    "SELECT lower(name) FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite^_%' ESCAPE '^' "
    "ORDER BY 1",
)


class SchemaMigration(Workspace):
    """Hidden rows have other spellings of e-mails, prices and days; the constraints are tried by breaking them."""

    id = "data/schema_migration"
    domain = "data"
    skills = ("sql", "constraints")

    def draw(self, rng: random.Random, level: int) -> Draft:
        limit, notes, prefix = rng.randint(14, 60), level >= 2, rng.choice(("R", "Z", "H"))
        bases = [_rows(rng, n * level, level, limit, prefix) for n in (6, 12)]
        rules = [
            "guests(id INTEGER PRIMARY KEY, email TEXT NOT NULL UNIQUE, name TEXT NOT NULL): one row an e-mail, "
            "where e-mails that differ by case or outer blanks are one (stored trimmed and in lower case); the name "
            "is the "
            "trimmed one of that guest's booking with the highest id",
            "bookings(id, guest_id, room, arrival, nights, price_cents): ids kept; guest_id NOT NULL and a foreign "
            f"key to guests; room trimmed; arrival as YYYY-MM-DD; nights an INTEGER, checked to be 1 to {limit}; "
            "price_cents "
            "an INTEGER, checked not to be negative",
        ]
        if notes:
            rules.append(
                "notes(booking_id PRIMARY KEY and foreign key to bookings, body TEXT NOT NULL): the trimmed notes; "
                "bookings whose note is NULL or blank have no row"
            )
        if level >= 3:
            rules.append("no two bookings may have the same room and arrival (no rows break this today)")
        spelt = "nights and prices are numerals in TEXT; prices are like '120.50', '99' or '80.5'"
        days = "arrival is DD/MM/YYYY" + (" or already YYYY-MM-DD" if level >= 2 else "")
        text = (
            f"A hotel's SQLite database has the one table\n{OLD}\nsample.sql holds some of its rows: {spelt}; {days}. "
            "Write migrate.sql, a script of SQLite statements (run by executescript, with foreign keys off) after "
            "which the database has instead:\n"
            + "\n".join(f"- {r}" for r in rules)
            + "\nNo booking may be lost. It will be run "
            "on databases with other rows. Answer `done`."
        )
        return Draft(text, "done", {"bases": bases, "limit": limit, "level": level})

    def files(self, task: Task) -> dict[str, str | bytes]:
        def literal(x: Any) -> str:
            return "NULL" if x is None else str(x) if isinstance(x, int) else "'" + x.replace("'", "''") + "'"

        rows = task.info["bases"][0]
        return {
            "sample.sql": OLD + "".join(f"\nINSERT INTO bookings VALUES ({', '.join(map(literal, r))});" for r in rows)
        }

    def solve(self, task: Task) -> tuple[list[Call], str]:
        level, limit = task.info["level"], task.info["limit"]
        unique = ", UNIQUE (room, arrival)" if level >= 3 else ""
        note = (
            "CREATE TABLE notes (booking_id INTEGER PRIMARY KEY REFERENCES bookings(id), body TEXT NOT NULL);\n"
            "INSERT INTO notes SELECT id, trim(note) FROM old WHERE trim(coalesce(note, '')) <> '';\n"
        )
        sql = (
            "ALTER TABLE bookings RENAME TO old;\nCREATE TABLE guests (id INTEGER PRIMARY KEY, email TEXT NOT NULL "
            "UNIQUE, name TEXT NOT NULL);\nINSERT INTO guests (email, name) SELECT lower(trim(email)), trim(guest) "
            "FROM old o WHERE id = (SELECT max(id) FROM old p WHERE lower(trim(p.email)) = lower(trim(o.email)));\n"
            "CREATE TABLE bookings (id INTEGER PRIMARY KEY, guest_id INTEGER NOT NULL REFERENCES guests(id), room "
            f"TEXT, arrival TEXT, nights INTEGER CHECK (nights BETWEEN 1 AND {limit}), price_cents INTEGER CHECK "
            f"(price_cents >= 0){unique});\nINSERT INTO bookings SELECT o.id, g.id, trim(room), CASE WHEN arrival "
            "LIKE '%/%' THEN substr(arrival, 7) || '-' || substr(arrival, 4, 2) || '-' || substr(arrival, 1, 2) ELSE "
            "arrival END, cast(nights AS INTEGER), cast(round(cast(price AS REAL) * 100) AS INTEGER) FROM old o JOIN "
            f"guests g ON g.email = lower(trim(o.email));\n{note if level >= 2 else ''}DROP TABLE old;\n"
        )
        return [("write_file", {"path": "migrate.sql", "text": sql})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        level, limit = task.info["level"], task.info["limit"]
        reads = [r for r in READS if level >= 2 or "notes" not in r]
        tables = [["bookings"], ["guests"], *[["notes"]] * (level >= 2)]
        cases, wanted = [], []
        for rows in task.info["bases"]:
            guests, bookings, notes = _migrated(rows)
            insert = "INSERT INTO bookings (id, guest_id, room, arrival, nights, price_cents) VALUES "
            one = "(SELECT min(id) FROM guests)"
            bad = [
                f"{insert}(9001, 987654, 'X1', '2030-01-01', 1, 1)",
                f"{insert}(9001, NULL, 'X1', '2030-01-01', 1, 1)",
                f"{insert}(9001, {one}, 'X1', '2030-01-01', 0, 1)",
                f"{insert}(9001, {one}, 'X1', '2030-01-01', {limit + 1}, 1)",
                f"{insert}(9001, {one}, 'X1', '2030-01-01', 1, -1)",
                f"INSERT INTO guests (id, email, name) VALUES (9001, '{guests[0][0]}', 'A B')",
                "INSERT INTO guests (id, email, name) VALUES (9001, 'new@example.org', NULL)",
                "INSERT INTO guests (id, email, name) VALUES (9001, NULL, 'A B')",
            ]
            good = [
                f"{insert}(9001, {one}, 'X1', '2030-01-01', {limit}, 0)",
                "INSERT INTO guests (id, email, name) VALUES (9001, 'new@example.org', 'A B')",
            ]
            if level >= 2:
                bad += [
                    "INSERT INTO notes (booking_id, body) VALUES (9001, 'x')",
                    f"INSERT INTO notes (booking_id, body) VALUES ({notes[0][0]}, 'x')",
                ]
            if level >= 3:
                bad.append(f"{insert}(9001, {one}, '{bookings[0][2]}', '{bookings[0][3]}', 1, 1)")
            answers = [guests, [[*b, "integer", "integer"] for b in bookings], notes, [[len(rows)]], tables]
            cases.append([rows, reads, bad, good])
            wanted.append(
                [answers if level >= 2 else answers[:2] + answers[3:], [False] * len(bad) + [True] * len(good)]
            )
        return Grade.outcome(await probe(place, RUN, cases, alone=True) == wanted)


def _rows(rng: random.Random, count: int, level: int, limit: int, prefix: str) -> list[list[Any]]:
    people = [
        (f"{rng.choice(FIRST)} {rng.choice(LAST)}", f"g{rng.randint(10, 9999)}@example.org") for _ in range(count // 2)
    ]
    rows: list[list[Any]] = []
    for i in range(count):
        name, email = people[i % len(people)]
        email = rng.choice([email, email.upper(), f" {email} "]) if level >= 2 or i % 3 == 0 else email
        day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2015, 2025)
        iso = level >= 2 and rng.random() < 0.3
        rows.append(
            [
                10 + 3 * i,
                rng.choice([name, f" {name}"]),
                email,
                f"{prefix}{100 + i}{' ' * (i % 2)}",
                f"{year}-{month:02d}-{day:02d}" if iso else f"{day:02d}/{month:02d}/{year}",
                str(rng.randint(1, limit)),
                rng.choice(
                    [f"{rng.randint(40, 400)}.{rng.randint(10, 99)}", str(rng.randint(40, 400)), "80.5", "19.99"]
                ),
                None
                if i % 4 == 1
                else "   "
                if i % 4 == 3
                else rng.choice(["late check-in", " it's a birthday", "two cots"]),
            ]
        )
    return rows


def _migrated(rows: list[list[Any]]) -> tuple[list[list[Any]], list[list[Any]], list[list[Any]]]:
    guests, bookings, notes = {}, [], []
    for i, guest, email, room, arrival, nights, price, note in rows:
        mail = email.strip().lower()
        guests[mail] = guest.strip()
        day = "-".join(reversed(arrival.split("/")))
        whole, _, part = price.partition(".")
        bookings.append([i, mail, room.strip(), day, int(nights), int(whole) * 100 + int(f"{part}00"[:2])])
        if note and note.strip():
            notes.append([i, note.strip()])
    return [[m, n] for m, n in sorted(guests.items())], bookings, notes
