"""What simulated applications share: tables of rows that tools change, and a verdict on all that was changed."""

from __future__ import annotations

import json
import random
from typing import Any

from environments.base import Draft
from environments.simulation import Simulation, World
from environments.task import Limits, Task
from environments.tools import ToolError
from rewards.answers import normalise
from rewards.grade import Grade

Row = dict[str, Any]
Tables = dict[str, dict[str, Row]]
"""Table -> id -> row; JSON values, money in whole cents."""
PAGE = 8
"""Rows of one page of a listing."""
_MARKS = " `*.'\""
"""What may stand around a last word."""


class Records(World):
    """The tables of `info["db"]`, copied; tools change them, and refuse with ToolError what the application refuses."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.db: Tables = json.loads(json.dumps(task.info["db"]))

    def row(self, table: str, key: str) -> Row:
        """The row, to read or to change; ToolError if there is none."""
        if key not in self.db[table]:
            raise ToolError(f"no record {key[:80]!r} in {table}")
        return self.db[table][key]

    def page(self, rows: list[Any], page: int) -> Row:
        """One page of a listing (from 1)."""
        pages = max(1, -(-len(rows) // PAGE))
        if not 1 <= page <= pages:
            raise ToolError(f"page must be 1 to {pages}")
        return {"rows": rows[(page - 1) * PAGE : page * PAGE], "page": page, "pages": pages, "total": len(rows)}

    def add(self, table: str, row: Row) -> str:
        """Append a row under a fresh id, `<table>-<n>`."""
        key = f"{table}-{len(self.db[table]) + 1}"
        self.db[table][key] = row
        return key


def changes(before: Tables, after: Tables) -> dict[str, Any]:
    """What differs: `table/id/field` -> new value, `table/id` -> None if gone, `table` -> its new rows, sorted."""
    out: dict[str, Any] = {}
    for table, rows in after.items():
        old = before[table]
        out |= {f"{table}/{key}": None for key in old if key not in rows}
        out |= {
            f"{table}/{key}/{field}": value
            for key, row in rows.items()
            if key in old
            for field, value in row.items()
            if value != old[key].get(field)
        }
        if new := [row for key, row in rows.items() if key not in old]:
            out[table] = _sorted(new)
    return out


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def pages(name: str, rows: int, **arguments: Any) -> list[Any]:
    """The oracle's calls that read every page of a listing of so many rows."""
    return [[name, {**arguments, "page": page}] for page in range(1, max(1, -(-rows // PAGE)) + 1)]


def spaced(answer: str | None) -> str | None:
    """A list of outcomes as it is written here: `paid,**over_limit**` is `paid, over_limit`."""
    return None if answer is None else ", ".join(part.strip(_MARKS) for part in answer.split(","))


class App(Simulation):
    """The right changes, no other, and the right last word earn 1; what was read or refused on the way is free.

    `info`: `db`, and `want`, the changes that are right ({} where the request must be refused), which `draw` knows
    from its own bookkeeping, not from the tools.
    """

    domain = "automation"
    limits = Limits(turns=160, tokens=32_768, seconds=60.0)

    def draft(self, prompt: str, db: Tables, want: dict[str, Any], plan: list[Any], answer: str = "done") -> Draft:
        """A task; `plan` is the oracle's calls as [tool, arguments]."""
        want = {k: _sorted(v) if k in db else v for k, v in want.items() if k not in db or v}
        return Draft(prompt, answer, {"db": db, "want": want, "plan": plan})

    def draw(self, rng: random.Random, level: int) -> Draft:
        raise NotImplementedError(f"{type(self).__name__} must define draw(rng, level)")

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        return [(name, arguments) for name, arguments in task.info["plan"]], task.answer

    def judge(self, task: Task, world: Any, answer: str | None) -> Grade:
        if answer is None:
            return Grade.unparsed(expected=task.answer)
        made, want = changes(task.info["db"], world.db), task.info["want"]
        said = normalise(answer).strip(_MARKS).casefold() == task.answer.casefold()
        return Grade.outcome(said and made == want, read=answer, expected=task.answer, changes=made)
