"""Make a set of queries fast with few indexes, as the query planner sees it."""

from __future__ import annotations

import random
import re
import sqlite3
from typing import Any

from environments.base import Draft
from environments.deliverables import Call
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, read_text
from rewards.grade import Grade

TABLES = {
    "events": ["device", "kind", "zone", "created_at", "level", "duration"],
    "payments": ["account", "currency", "method", "paid_at", "amount", "reference"],
    "tickets": ["agent", "queue", "state", "opened_at", "priority", "topic"],
}
_CREATE = re.compile(r"create\s+index\s+(?:if\s+not\s+exists\s+)?(\w+)\s+on\s+(\w+)\s*\(([\w\s,]+)\)", re.I)


class IndexTuning(Workspace):
    """Column order decides: equality before range or sort, covered columns at the end, one for several queries."""

    id = "data/index_tuning"
    domain = "data"
    skills = ("sql", "optimisation")

    def draw(self, rng: random.Random, level: int) -> Draft:
        queries, indexes = [], []
        for name in rng.sample(sorted(TABLES), level):
            a, b, c, d, e, _ = columns = rng.sample(TABLES[name], 6)
            queries.append(f"SELECT count({c}) FROM {name} WHERE {a} = ? AND {b} = ? AND {c} BETWEEN ? AND ?")
            queries.append(f"SELECT {c} FROM {name} WHERE {a} = ? AND {b} = ? ORDER BY {c} DESC LIMIT 20")
            indexes.append([name, [a, b, c]])
            if level >= 2:
                queries.append(f"SELECT {a}, sum(length({e})) FROM {name} WHERE {d} = ? GROUP BY {a}")
                indexes.append([name, [d, a, e]])
            if level >= 3:
                queries.append(f"SELECT {b}, {columns[5]} FROM {name} WHERE {a} = ? ORDER BY {b}, {columns[5]}")
                queries.append(f"SELECT min({d}) FROM {name} WHERE {e} = ?")
                indexes += [[name, [a, b, columns[5]]], [name, [e, d]]]
        rng.shuffle(queries)
        text = (
            "schema.sql and queries.sql describe a SQLite database and the queries of a service (`?` are "
            f"parameters). Write indexes.sql with at most {len(indexes)} statements of the form CREATE INDEX name ON "
            "table (column, ...) so that in EXPLAIN QUERY PLAN, after the schema and your file, every query is "
            "answered from a COVERING INDEX by SEARCH, without any SCAN and without a TEMP B-TREE, and its search "
            "uses every equality and range condition of its WHERE. Only plain columns, no other statements (python3 "
            "has sqlite3). Answer `done`."
        )
        return Draft(text, "done", {"queries": queries, "indexes": indexes})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return {"schema.sql": _schema(), "queries.sql": "".join(f"{q};\n" for q in task.info["queries"])}

    def solve(self, task: Task) -> tuple[list[Call], str]:
        made = [f"CREATE INDEX i{n} ON {t} ({', '.join(c)});" for n, (t, c) in enumerate(task.info["indexes"])]
        return [("write_file", {"path": "indexes.sql", "text": "\n".join(made)})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        text = await read_text(place, "indexes.sql") or ""
        fault = _fault(text, task.info["queries"], len(task.info["indexes"]))
        return Grade.outcome(fault is None, fault=fault)


def _schema() -> str:
    return "".join(f"CREATE TABLE {t} (id INTEGER PRIMARY KEY, {', '.join(c)});\n" for t, c in TABLES.items())


def _fault(text: str, queries: list[str], most: int) -> str | None:
    """What is wrong with the file. The planner runs here, on empty tables: its word cannot be forged in the sandbox."""
    if len(text) > 10_000:
        return "it is too long"
    bare = re.sub(r"--[^\n]*", " ", text).replace('"', "")
    statements = [s.strip() for s in bare.split(";") if s.strip()]
    if not statements or len(statements) > most or not all(_CREATE.fullmatch(s) for s in statements):
        return f"it is not 1 to {most} plain CREATE INDEX statements"
    base = sqlite3.connect(":memory:")
    try:
        base.executescript(_schema() + ";\n".join(statements))
        for query in queries:
            plan: list[Any] = base.execute(f"EXPLAIN QUERY PLAN {query}", ("x",) * query.count("?")).fetchall()
            details = [row[3] for row in plan]
            used = sum(d.count("=?") + d.count(">?") + d.count("<?") for d in details)
            fine = all(d.startswith("SEARCH") and "COVERING INDEX" in d for d in details)
            if not fine or used != query.count("?"):
                return f"{query}: {'; '.join(details)}"
    except sqlite3.Error as error:
        return f"sqlite: {error}"[:300]
    finally:
        base.close()
    return None
