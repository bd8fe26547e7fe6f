"""Files in, files out: the base of desk work (data, office, finance) whose result is tables and JSON values.

A draft's info holds `files` (path: text, what the agent finds) and `wanted` (path: what `table` or `value` made).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any

from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, read_text
from rewards.grade import Grade
from rewards.tables import json_fault, table_fault, write_csv

Call = tuple[str, dict[str, Any]]
CENT = Decimal("0.01")

FIRST = [
    "Amara",
    "Anton",
    "Beatriz",
    "Carlos",
    "Chiara",
    "Daniel",
    "Elif",
    "Emeka",
    "Farah",
    "Felix",
    "Grace",
    "Hanna",
    "Ibrahim",
    "Ingrid",
    "Jonas",
    "Kamala",
    "Kwame",
    "Laura",
    "Liam",
    "Mei",
    "Milan",
    "Nadia",
    "Noor",
    "Olga",
    "Oscar",
    "Priya",
    "Rafael",
    "Rosa",
    "Samuel",
    "Sofia",
    "Tomas",
    "Wanjiru",
    "Yuki",
    "Zoe",
]
LAST = [
    "Adeyemi",
    "Alvarez",
    "Bakker",
    "Banerjee",
    "Brandt",
    "Castillo",
    "Chen",
    "Costa",
    "Dubois",
    "Eriksen",
    "Fischer",
    "Garcia",
    "Haddad",
    "Ivanov",
    "Jansen",
    "Kaya",
    "Kim",
    "Kowalski",
    "Larsen",
    "Lopez",
    "Mbeki",
    "Moreau",
    "Nakamura",
    "Novak",
    "Okafor",
    "Patel",
    "Petrov",
    "Rossi",
    "Santos",
    "Schmidt",
    "Silva",
    "Tanaka",
    "Weber",
    "Yilmaz",
]
CITIES = [
    "Antwerp",
    "Bologna",
    "Bristol",
    "Gdansk",
    "Ghent",
    "Graz",
    "Leeds",
    "Lille",
    "Lyon",
    "Malmo",
    "Porto",
    "Seville",
    "Tampere",
    "Turin",
    "Utrecht",
]


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], ordered: bool = True) -> dict[str, Any]:
    """A wanted CSV file."""
    return {"header": [*header], "rows": [[str(c) for c in row] for row in rows], "ordered": ordered}


def value(wanted: Any) -> dict[str, Any]:
    """A wanted JSON file; amounts are strings, and numbers of that value are accepted."""
    return {"value": wanted}


def rounded(amount: Decimal | Fraction | int, places: int = 2) -> Decimal:
    """Half away from zero to `places` decimals, exactly."""
    exact = Fraction(amount) * 10**places
    size = (abs(exact) * 2 + 1) // 2
    return (Decimal(int(size)) * (1 if exact >= 0 else -1)).scaleb(-places).quantize(Decimal(1).scaleb(-places))


def cents(amount: int) -> Decimal:
    """1250 is 12.50."""
    return (Decimal(amount) / 100).quantize(CENT, ROUND_HALF_UP)


class Deliverables(Workspace):
    """`draw` puts `files` and `wanted` into info; all wanted files must be right."""

    def files(self, task: Task) -> dict[str, str | bytes]:
        return dict(task.info["files"])

    def solve(self, task: Task) -> tuple[list[Call], str]:
        def text(w: dict[str, Any]) -> str:
            return json.dumps(w["value"], indent=1) if "value" in w else write_csv(w["header"], w["rows"])

        return [("write_file", {"path": p, "text": text(w)}) for p, w in task.info["wanted"].items()], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        faults = {}
        for path, wanted in task.info["wanted"].items():
            text = await read_text(place, path)
            fault = json_fault(text, wanted["value"]) if "value" in wanted else table_fault(text, **wanted)
            if fault:
                faults[path] = fault
        return Grade.outcome(not faults, faults=faults)
