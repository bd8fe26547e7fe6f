"""Tables and JSON values that a policy wrote, compared with the right ones by value: bounded, exact, never raising.

Numbers are equal as numbers (12.5 is 12.50, never by a tolerance), other cells as text without outer white space.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from rewards.answers import same_value

MAX_CHARS = 1_000_000
"""A longer file is no answer of these tasks; it bounds the work of every comparison."""

Table = tuple[list[str], list[list[str]]]


def read_csv(text: str, delimiter: str = ",") -> Table | None:
    """Header and rows of comma-separated text, cells stripped, blank lines left out; None where it is no table."""
    if len(text) > MAX_CHARS or "\x00" in text:
        return None
    try:
        rows = [[c.strip() for c in row] for row in csv.reader(io.StringIO(text.lstrip("\ufeff")), delimiter=delimiter)]
    except csv.Error:
        return None
    rows = [row for row in rows if any(row)]
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        return None
    return rows[0], rows[1:]


def write_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Comma-separated text, quoted where needed."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue()


def same_cell(found: str, wanted: str) -> bool:
    """Equal as text, or as numerals of the same value; `+44...` is a phone number, and wanted as it stands."""
    return found == wanted or (wanted[:1] != "+" and same_value(found, wanted))


def table_fault(text: str | None, header: Sequence[str], rows: Sequence[Sequence[str]], ordered: bool) -> str | None:
    """What is wrong with a table, or None: the header's names in their order, then the rows (in any order if not
    `ordered`; then the first column should identify a row, for the message only)."""
    table = None if text is None else read_csv(text)
    if table is None:
        return "there is no such file" if text is None else "it is no table"
    if table[0] != list(header):
        return "the header differs"
    if len(table[1]) != len(rows):
        return f"{len(table[1])} rows, not {len(rows)}"
    if ordered:
        pairs = zip(table[1], rows, strict=True)
        wrong = next((i for i, (f, w) in enumerate(pairs) if not _same_row(f, w)), None)
        return None if wrong is None else f"row {wrong + 1} differs"
    left = [_canonical(row) for row in table[1]]
    wanted = [_canonical(row) for row in rows]
    return None if sorted(left) == sorted(wanted) else "the rows differ"


def _same_row(found: Sequence[str], wanted: Sequence[str]) -> bool:
    return len(found) == len(wanted) and all(same_cell(f, w) for f, w in zip(found, wanted, strict=True))


def _canonical(row: Sequence[str]) -> tuple[str, ...]:
    """Numerals in one spelling, so that rows can be sorted: 12.50 is 12.5."""
    return tuple(_spelling(cell) for cell in row)


def _spelling(cell: str) -> str:
    whole, dot, decimals = cell.removeprefix("+").partition(".")
    if dot and same_value(cell, cell):
        short = decimals.rstrip("0")
        whole = f"{whole}.{short}" if short else whole
        return "0" if whole == "-0" else whole
    return cell


def read_json(text: str) -> Any:
    """A JSON value with Decimals for its fractions; raises ValueError for anything else, NaN and doubled keys too."""
    if len(text) > MAX_CHARS:
        raise ValueError("too long")
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def same_json(found: Any, wanted: Any) -> bool:
    """Equal values; where a numeral in a string is wanted ("12.50"), a number of that value is right too."""
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and found.keys() == wanted.keys()
            and all(same_json(found[k], v) for k, v in wanted.items())
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(same_json, found, wanted))
    if wanted is None or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, bool) or not isinstance(found, (str, int, Decimal)):
        return False
    if isinstance(wanted, str):
        if isinstance(found, str):
            return same_cell(found.strip(), wanted)
        return same_value(wanted, wanted) and Decimal(wanted) == found
    return not isinstance(found, str) and wanted == found


def json_fault(text: str | None, wanted: Any) -> str | None:
    """What is wrong with a JSON file, or None."""
    if text is None:
        return "there is no such file"
    try:
        found = read_json(text)
    except ValueError:
        return "it is no JSON"
    if isinstance(found, dict) and isinstance(wanted, dict) and found.keys() == wanted.keys():
        wrong = next((k for k, v in wanted.items() if not same_json(found[k], v)), None)
        return None if wrong is None else f"{wrong!r} differs"
    return None if same_json(found, wanted) else "the value differs"
