"""Workbooks (.xlsx) that a policy wrote: sheets, cells and formulas, read within bounds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from rewards.packages import attribute, local, read_package, related, xml_root

MAX_CELLS = 20_000
MAX_ROW = 5000
_REFERENCE = re.compile(r"([A-Z]{1,3})([1-9][0-9]{0,6})")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?")
Plain = Fraction | str | bool | None


@dataclass
class Cell:
    """The stored value, and the formula without its `=` (None where the cell has none)."""

    value: Plain
    formula: str | None = None


Sheets = dict[str, dict[tuple[int, int], Cell]]
"""Sheet name -> (row, column) from 1 -> cell, in the workbook's order."""


def place(reference: str) -> tuple[int, int] | None:
    """`B3` is (3, 2)."""
    match = _REFERENCE.fullmatch(reference)
    return (int(match[2]), column(match[1])) if match else None


def column(letters: str) -> int:
    """`A` is 1, `AA` is 27."""
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - 64
    return number


def letters(number: int) -> str:
    """27 is `AA`."""
    text = ""
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(65 + rest) + text
    return text


def read_number(text: str) -> Fraction | None:
    """A numeral as files hold it, exactly."""
    return Fraction(text) if _NUMBER.fullmatch(text) else None


def read_workbook(data: bytes | None) -> Sheets | None:
    """All sheets, or None where it is no workbook within the bounds."""
    parts = None if data is None else read_package(data)
    book = None if parts is None else xml_root(parts.get("xl/workbook.xml"))
    if parts is None or book is None:
        return None
    strings = []
    shared = xml_root(parts.get("xl/sharedStrings.xml"))
    for item in () if shared is None else shared:
        strings.append(_text(item))
    targets, sheets, count = related(parts, "xl/workbook.xml"), Sheets(), 0
    for sheet in (e for e in book.iter() if local(e) == "sheet"):
        name, key = sheet.get("name"), attribute(sheet, "id")
        root = xml_root(parts.get(targets.get(key or "", "")))
        if name is None or name in sheets or root is None:
            return None
        cells = sheets[name] = {}
        for element in (e for e in root.iter() if local(e) == "c"):
            where, count = place(element.get("r") or ""), count + 1
            if where is None or where in cells or where[0] > MAX_ROW or count > MAX_CELLS:
                return None
            cell = _cell(element, strings)
            if cell is None:
                return None
            cells[where] = cell
    return sheets


def _text(element) -> str:  # type: ignore[no-untyped-def]
    return "".join(t.text or "" for t in element.iter() if local(t) == "t")


def _cell(element, strings: list[str]) -> Cell | None:  # type: ignore[no-untyped-def]
    """One `c` element; None where it contradicts itself."""
    kind, formula, raw, value = element.get("t") or "n", None, None, None
    for child in element:
        if local(child) == "f":
            formula = child.text or ""
        elif local(child) == "v":
            raw = child.text or ""
        elif local(child) == "is":
            raw = _text(child)
    if raw is None or (raw == "" and kind == "n"):
        return Cell(None, formula)
    if kind == "s":
        if not raw.isascii() or not raw.isdigit() or len(raw) > 6 or int(raw) >= len(strings):
            return None
        value = strings[int(raw)]
    elif kind == "b":
        return Cell(raw == "1", formula)
    elif kind == "n":
        number = read_number(raw)
        return None if number is None else Cell(number, formula)
    else:
        value = raw
    return Cell(value, formula)
