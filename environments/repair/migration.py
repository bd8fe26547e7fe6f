"""Schema migrations of an SQLite database that lose or distort rows which only real data contains."""

from __future__ import annotations

import json
import random
from typing import Any

from environments.repair.repository import Repository

_STEPS = '''"""The steps, by the version that they lead to. Each takes an open connection."""


def to_2(db):
    """Names are split at the first space; a name without a space has an empty last name."""
    db.execute("ALTER TABLE people ADD COLUMN first TEXT")
    db.execute("ALTER TABLE people ADD COLUMN last TEXT NOT NULL DEFAULT ''")
    for key, name in db.execute("SELECT id, name FROM people").fetchall():
        first, _, last = name.{{{split|||partition|||rpartition}}}(" ")
        db.execute("UPDATE people SET first = ?, last = ? WHERE id = ?", (first, last, key))


def to_3(db):
    """${thing}s point to towns by number instead of by name; a missing town stays NULL, towns differ by exact name."""
    db.execute("CREATE TABLE towns (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL)")
    db.execute("INSERT INTO towns (name) SELECT DISTINCT town FROM ${thing}s WHERE town IS NOT NULL ORDER BY town")
    db.execute("CREATE TABLE fresh (id INTEGER PRIMARY KEY, person INTEGER, town INTEGER, euros TEXT, done INTEGER)")
    db.execute(
        "INSERT INTO fresh SELECT t.id, t.person, w.id, t.euros, t.done FROM ${thing}s t "
        "{{{nulls|||LEFT JOIN|||JOIN}}} towns w ON w.name = t.town"
    )
    db.execute("DROP TABLE ${thing}s")
    db.execute("ALTER TABLE fresh RENAME TO ${thing}s")


def to_4(db):
    """Amounts such as `12.5` or `-0.07` become whole cents; NULL stays NULL."""
    db.execute("ALTER TABLE ${thing}s ADD COLUMN cents INTEGER")
    for key, euros in db.execute("SELECT id, euros FROM ${thing}s").fetchall():
        db.execute("UPDATE ${thing}s SET cents = ? WHERE id = ?", (_cents(euros), key))


def _cents(euros):
    if euros is None:
        return None
    {{{cents|||sign = -1 if euros.startswith("-") else 1
    whole, _, part = euros.lstrip("-").partition(".")
    return sign * (int(whole) * 100 + int((part + "00")[:2]))|||return int(float(euros) * 100)}}}


def to_5(db):
    """A state replaces `done`: 1 is closed, 0 is open, NULL is unknown."""
    db.execute("ALTER TABLE ${thing}s ADD COLUMN state TEXT NOT NULL DEFAULT 'unknown'")
    db.execute("UPDATE ${thing}s SET state = 'closed' WHERE done = 1")
    db.execute("UPDATE ${thing}s SET state = 'open' WHERE {{{state|||done = 0|||done IS NOT 1}}}")


def to_6(db):
    """People with equal e-mail (without regard to case) become one: the lowest id stays, and gets all ${thing}s."""
    keep = {}
    for key, mail in db.execute("SELECT id, mail FROM people {{{lowest|||ORDER BY id|||ORDER BY id DESC}}}").fetchall():
        if mail is None:
            continue
        mail = mail.lower()
        if mail in keep:
            {{{orphans|||db.execute("UPDATE ${thing}s SET person = ? WHERE person = ?", (keep[mail], key))|||\
db.execute("UPDATE ${thing}s SET person = ? WHERE person = ?", (key, keep[mail]))}}}
            db.execute("DELETE FROM people WHERE id = ?", (key,))
        else:
            keep[mail] = key
'''
_RUN = '''"""Bring a database to the newest version."""

import sqlite3

from . import steps

NEWEST = 6


def version(db):
    return db.execute("PRAGMA user_version").fetchone()[0]


def migrate(path):
    """Run the missing steps; all of them or, after an error (which is raised), none. Returns the steps that ran."""
    db = sqlite3.connect(path, isolation_level=None)
    ran = []
    try:
        {{{atomic|||db.execute("BEGIN IMMEDIATE")|||db.execute("PRAGMA foreign_keys = OFF")}}}
        for number in range({{{again|||version(db)|||1}}} + 1, NEWEST + 1):
            getattr(steps, f"to_{number}")(db)
            ran.append(number)
        db.execute(f"PRAGMA user_version = {NEWEST}")
        {{{atomic|||db.execute("COMMIT")|||db.execute("PRAGMA optimize")}}}
    except BaseException:
        {{{atomic|||db.execute("ROLLBACK")|||ran.clear()}}}
        raise
    finally:
        db.close()
    return ran
'''
_SQL = (
    "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL, mail TEXT);"
    "CREATE TABLE {thing}s (id INTEGER PRIMARY KEY, person INTEGER, town TEXT, euros TEXT, done INTEGER);"
    "PRAGMA user_version = 1;"
)


class Migration(Repository):
    """Eight faults in six steps and their runner; NULLs, doubles, odd names, cents and broken runs show them."""

    id = "repair/migration"
    skills = ("sql", "migration")
    modules = {"steps.py": _STEPS, "upgrade.py": _RUN}
    contract = (
        "Databases start at user_version 1 (see tests). No row and no value may get lost unless a docstring says so.\n"
    )
    symptoms = {
        "split": "people with three names got the wrong first name",
        "nulls": "after the upgrade there are fewer ${thing}s than before",
        "cents": "some amounts are a cent off",
        "state": "${thing}s of which nobody knows whether they are done are called open",
        "lowest": "of people who were there twice, the younger record survived",
        "orphans": "some ${thing}s belong to nobody after people were merged",
        "atomic": "after an upgrade that failed in the middle, the database could neither be used nor upgraded",
        "again": "a database that is up to date cannot be opened by the upgrade any more",
    }
    test = (
        '''import os
import sqlite3
import tempfile
import unittest

from $package.upgrade import migrate

SCHEMA = """'''
        + _SQL.replace("{thing}", "${thing}").replace(";", ";\n")
        + '''"""


class Basic(unittest.TestCase):
    def test_empty(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.db")
            db = sqlite3.connect(path)
            db.executescript(SCHEMA)
            db.close()
            self.assertEqual(migrate(path), [2, 3, 4, 5, 6])


if __name__ == "__main__":
    unittest.main()
'''
    )

    def cases(self, rng: random.Random, names: dict[str, str], level: int) -> list[tuple[str, Any]]:
        thing, out = names["thing"], []
        first, last, towns = (
            ("Ann", "Li", "Bo"),
            ("van Dyk", "Ito", "de la Cruz", "Roe"),
            ("Ulm", "ulm", "Bern", "Bad Ems"),
        )
        head = (
            f"import os, sqlite3, tempfile\nfrom {names['package']}.upgrade import migrate\npath = tempfile.mkdtemp() "
            f"+ '/a.db'\n"
            "db = sqlite3.connect(path)\n"
        )
        for _ in range(4):
            people = []
            for key in rng.sample(range(1, 40), rng.randint(3, 8)):
                name = f"{rng.choice(first)} {rng.choice(last)}" if rng.random() < 0.8 else rng.choice(first)
                people.append((key, name, rng.choice((None, "a@x.org", "A@x.org", "b@x.org", f"{key}@x.org"))))
            people += [(41, "Bo de la Cruz", "a@X.org"), (42, "Cher", "A@x.org")]
            amounts = ("1.15", "-0.07", "0.29", "12.5", "3", "19.99", None, "-4.35", "1.1")
            rows = [
                (n, rng.choice(people)[0], rng.choice((None, *towns)), rng.choice(amounts), rng.choice((0, 1, None)))
                for n in rng.sample(range(1, 99), rng.randint(4, 12))
            ]
            rows += [(100, 41, None, "0.29", None), (101, 42, "Ulm", "-4.35", 0)]
            setup = (
                f"{head}db.executescript({_SQL.format(thing=thing)!r})\ndb.executemany('INSERT INTO people VALUES (?, "
                f"?, ?)', {people})\n"
                f"db.executemany('INSERT INTO {thing}s VALUES (?, ?, ?, ?, ?)', {rows})\ndb.commit()\n"
            )
            owner = {
                k: min(q for q, _, m in people if q == k or (m and mail and m.lower() == mail.lower()))
                for k, _, mail in people
            }
            kept = sorted([k, n.split(" ", 1)[0], [*n.split(" ", 1), ""][1], m] for k, n, m in people if owner[k] == k)
            things = sorted(
                [
                    n,
                    owner[p],
                    t,
                    None if e is None else round(float(e) * 100),
                    {0: "open", 1: "closed", None: "unknown"}[d],
                ]
                for n, p, t, e, d in rows
            )
            read = (
                "people = db.execute('SELECT id, first, last, mail FROM people ORDER BY id').fetchall()\n"
                f"rows = db.execute('SELECT t.id, person, w.name, cents, state FROM {thing}s t LEFT JOIN towns w ON "
                "w.id = t.town ORDER BY t.id').fetchall()\nresult = [people, rows, db.execute('PRAGMA "
                "user_version').fetchone()[0]]"
            )
            want = json.loads(json.dumps([kept, things, 6]))
            out.append((f"{setup}migrate(path)\n{read}", want))
            out.append((f"{setup}migrate(path); assert migrate(path) == []\n{read}", want))
            broken = (
                f"{setup}db.execute(\"UPDATE {thing}s SET euros = 'x.y' WHERE id = 100\"); db.commit()\ntry:\n    "
                f"migrate(path)\n"
                f'    failed = False\nexcept Exception:\n    failed = True\ndb.execute("UPDATE {thing}s SET euros = '
                f"'0.29' WHERE id = 100\"); db.commit()\nassert failed and migrate(path) == [2, 3, 4, 5, 6]\n{read}"
            )
            out.append((broken, want))
        return out
