"""Values of a workbook's formulas, computed here: exact fractions, the common functions, bounded work.

What cannot be computed (an unknown function, a cycle, a division by zero, too much work) is ERROR, which spreads as in
a spreadsheet; IF and IFERROR choose around it. Stored values of formula cells are never believed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from rewards.workbooks import MAX_ROW, Sheets, column

_STEPS = 200_000
"""Cells looked at and tokens read in all, for one workbook."""
_DEPTH = 50
"""Nested calls and cells that refer to cells: Python's stack is not reached."""
_BITS = 1024
"""Longest numerator or denominator, of sums and products on the way too: exact arithmetic stays cheap."""

_SHEET = r"(?:(?:'(?:[^']|'')+'|[A-Za-z_][\w.]*)!)?"
_TOKEN = re.compile(
    r"\s*(?:(?P<text>\"(?:[^\"]|\"\")*\")"
    rf"|(?P<area>{_SHEET}\$?[A-Za-z]{{1,3}}(?:\$?\d{{1,7}}:\$?[A-Za-z]{{1,3}}\$?\d{{1,7}}|:\$?[A-Za-z]{{1,3}})(?![\w(]))"
    rf"|(?P<cell>{_SHEET}\$?[A-Za-z]{{1,3}}\$?\d{{1,7}}(?![\w(]))"
    r"|(?P<number>(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,2})?)"
    r"|(?P<name>[A-Za-z_][\w.]*)|(?P<op><>|<=|>=|[-+*/^&=<>(),;%]))"
)
_BINDS = {"=": 1, "<>": 1, "<": 1, ">": 1, "<=": 1, ">=": 1, "&": 2, "+": 3, "-": 3, "*": 4, "/": 4, "^": 5}


class _Error:
    """The one error value."""

    def __repr__(self) -> str:
        return "ERROR"


ERROR = _Error()


class _Stop(Exception):
    """A formula that cannot be read, or too much work."""


class Calculator:
    """`value(sheet, (row, column))` of a workbook; change `sheets` only before the first call."""

    def __init__(self, sheets: Sheets) -> None:
        self.sheets = sheets
        self._names = {name.lower(): name for name in sheets}
        self._known: dict[tuple[str, tuple[int, int]], Any] = {}
        self._open: set[tuple[str, tuple[int, int]]] = set()
        self._left = _STEPS

    def value(self, sheet: str, where: tuple[int, int]) -> Any:
        """Fraction, str, bool, None (empty) or ERROR."""
        key = (sheet, where)
        if key in self._known:
            return self._known[key]
        self._left -= 1
        cell = self.sheets.get(sheet, {}).get(where)
        if cell is None:
            return None
        if cell.formula is None:
            return cell.value
        if key in self._open or len(self._open) >= _DEPTH or self._left < 0:
            return ERROR
        self._open.add(key)
        try:
            result = _Formula(self, sheet, cell.formula.strip().removeprefix("=")).result()
        except (_Stop, RecursionError, OverflowError):
            result = ERROR
        finally:
            self._open.discard(key)
        self._known[key] = result
        return result

    def area(self, sheet: str, text: str) -> tuple[str, int, int, int, int]:
        """Sheet, first row, first column, last row, last column of a reference."""
        name, mark, cells = text.rpartition("!")
        if mark:
            found = self._names.get(name.strip("'").replace("''", "'").lower())
            if found is None:
                raise _Stop
            sheet = found
        spots = [re.fullmatch(r"([A-Z]+)(\d*)", part) for part in cells.upper().replace("$", "").split(":")]
        columns = [column(s[1]) for s in spots if s]
        rows = [int(s[2]) for s in spots if s and s[2]]
        if not rows:
            rows = [1, max((r for r, _ in self.sheets[sheet]), default=1)]
        if max(rows) > MAX_ROW * 2 or min(rows) < 1:
            raise _Stop
        return sheet, min(rows), min(columns), max(rows), max(columns)

    def grid(self, sheet: str, text: str) -> list[list[Any]]:
        """The values of an area, row by row."""
        sheet, top, left, bottom, right = self.area(sheet, text)
        self._left -= (bottom - top + 1) * (right - left + 1)
        if self._left < 0:
            raise _Stop
        return [[self.value(sheet, (r, c)) for c in range(left, right + 1)] for r in range(top, bottom + 1)]


class _Formula:
    """Reads and computes one formula at the same time, by precedence."""

    def __init__(self, calculator: Calculator, sheet: str, text: str) -> None:
        self.calculator, self.sheet = calculator, sheet
        if len(text) > 2000:
            raise _Stop
        self.tokens: list[tuple[str, str]] = []
        end = len(text.rstrip())
        at = 0
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise _Stop
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        calculator._left -= len(self.tokens)
        self.at = self.depth = 0

    def result(self) -> Any:
        value = _one(self.expression(0))
        if self.at != len(self.tokens):
            raise _Stop
        return Fraction(0) if value is None else value

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) and self.tokens[self.at][0] == "op" else ""

    def expression(self, least: int) -> Any:
        self.depth += 1
        if self.depth > _DEPTH:
            raise _Stop
        left = self.operand()
        while (sign := self.peek()) and _BINDS.get(sign, 0) > least:
            self.at += 1
            left = self.spread(sign, left, self.expression(_BINDS[sign]))
        self.depth -= 1
        return left

    def operand(self) -> Any:
        if self.at >= len(self.tokens):
            raise _Stop
        kind, text = self.tokens[self.at]
        self.at += 1
        value: Any
        if kind == "number":
            value = Fraction(text)
        elif kind == "text":
            value = text[1:-1].replace('""', '"')
        elif kind == "cell":
            sheet, row, col, _, _ = self.calculator.area(self.sheet, text)
            value = self.calculator.value(sheet, (row, col))
        elif kind == "area":
            value = self.calculator.grid(self.sheet, text)
        elif kind == "name" and self.peek() == "(":
            value = self.call(text.upper().removeprefix("_XLFN."))
        elif kind == "name" and text.upper() in ("TRUE", "FALSE"):
            value = text.upper() == "TRUE"
        elif text == "(":
            value = self.expression(0)
            self.take(")")
        elif text in ("-", "+"):
            sign = Fraction(-1 if text == "-" else 1)
            value = self.spread("*", sign, self.expression(_BINDS["^"]))  # -2^2 is 4 in spreadsheets
        else:
            raise _Stop
        while self.peek() == "%":
            self.at += 1
            value = self.spread("/", value, Fraction(100))
        return value

    def spread(self, sign: str, a: Any, b: Any) -> Any:
        """An operation on single values, or cell by cell where an area takes part."""
        if not isinstance(a, list) and not isinstance(b, list):
            return _combine(sign, a, b)
        shapes = {(len(x), len(x[0])) for x in (a, b) if isinstance(x, list)}
        if len(shapes) != 1:
            return ERROR
        ((height, width),) = shapes
        self.calculator._left -= height * width
        if self.calculator._left < 0:
            raise _Stop
        x, y = (v if isinstance(v, list) else [[v] * width] * height for v in (a, b))
        return [[_combine(sign, *pair) for pair in zip(*rows, strict=True)] for rows in zip(x, y, strict=True)]

    def take(self, sign: str) -> None:
        if self.peek() != sign:
            raise _Stop
        self.at += 1

    def call(self, name: str) -> Any:
        self.take("(")
        arguments = []
        while self.peek() != ")":
            arguments.append(None if self.peek() in (",", ";") else self.expression(0))
            if self.peek() in (",", ";"):
                self.at += 1
            elif self.peek() != ")":
                raise _Stop
        self.take(")")
        function = FUNCTIONS.get(name)
        if function is None:
            return ERROR
        try:
            return function(*arguments)
        except (TypeError, ValueError, ZeroDivisionError, IndexError):
            return ERROR  # wrong arguments: what a spreadsheet shows as #VALUE!


def _one(value: Any) -> Any:
    """A single value; an area of one cell is its value, a larger one an error."""
    if isinstance(value, list):
        return value[0][0] if len(value) == 1 and len(value[0]) == 1 else ERROR
    return value


def _number(value: Any) -> Any:
    """As arithmetic takes it: empty is 0, text and ERROR are ERROR."""
    value = _one(value)
    if value is None:
        return Fraction(0)
    if isinstance(value, bool):
        return Fraction(int(value))
    return value if isinstance(value, Fraction) else ERROR


def _need(value: Any) -> Fraction:
    number = _number(value)
    if number is ERROR:
        raise ValueError
    return number


def _combine(sign: str, a: Any, b: Any) -> Any:
    if a is ERROR or b is ERROR:
        return ERROR
    if sign == "&":
        joined = _shown(a) + _shown(b)
        return joined if len(joined) <= 10_000 else ERROR
    if _BINDS[sign] == 1:
        return _compare(sign, a, b)
    x, y = _number(a), _number(b)
    if x is ERROR or y is ERROR or (sign == "/" and y == 0):
        return ERROR
    if sign == "^":
        if y.denominator != 1 or abs(y) > 400 or (x == 0 and y <= 0):
            return ERROR
        if max(x.numerator.bit_length(), x.denominator.bit_length()) * abs(int(y)) > _BITS:
            return ERROR
        return x ** int(y)
    result = x + y if sign == "+" else x - y if sign == "-" else x * y if sign == "*" else x / y
    return result if max(result.numerator.bit_length(), result.denominator.bit_length()) <= _BITS else ERROR


def _rank(value: Any) -> tuple[int, Any]:
    if isinstance(value, bool):
        return 2, value
    return (1, value.lower()) if isinstance(value, str) else (0, value)


def _compare(sign: str, a: Any, b: Any) -> bool:
    if a is None:
        a = "" if isinstance(b, str) else Fraction(0)
    if b is None:
        b = "" if isinstance(a, str) else Fraction(0)
    x, y = _rank(a), _rank(b)
    return {"=": x == y, "<>": x != y, "<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y}[sign]


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Fraction):
        return str(value.numerator) if value.denominator == 1 else str(float(value))
    return str(value).upper() if isinstance(value, bool) else value


def _cells(*values: Any) -> list[Any]:
    """All cells of areas and single values; raises ValueError for ERROR among them."""
    found = [c for v in values for c in ([x for row in v for x in row] if isinstance(v, list) else [v])]
    if any(c is ERROR for c in found):
        raise ValueError
    return found


def _numbers(*values: Any) -> list[Fraction]:
    return [c for c in _cells(*values) if isinstance(c, Fraction)]


def _total(numbers: Iterable[Fraction], sign: str = "+") -> Fraction:
    """Their sum (or product); raises ValueError where it grows too long."""
    total: Any = Fraction(0 if sign == "+" else 1)
    for number in numbers:
        total = _combine(sign, total, number)
        if total is ERROR:
            raise ValueError
    return total


def _meets(wanted: Any) -> Callable[[Any], bool]:
    """The test of a SUMIF criterion."""
    wanted = _one(wanted)
    if wanted is ERROR:
        raise ValueError
    sign, plain = "=", wanted
    if isinstance(wanted, str):
        match = re.match(r"<>|<=|>=|[=<>]", wanted)
        sign, plain = (match[0], wanted[match.end() :]) if match else ("=", wanted)
        if re.fullmatch(r"[+-]?\d{1,30}(\.\d{1,30})?", plain):
            plain = Fraction(plain)
        elif any(c in plain for c in "*?~"):
            raise ValueError
    same_kind = str if isinstance(plain, str) else Fraction
    if sign == "<>":
        return lambda c: not (isinstance(c, same_kind) and _compare("=", c, plain))
    return lambda c: isinstance(c, same_kind) and not isinstance(c, bool) and _compare(sign, c, plain)


def _sum_ifs(total: Any, *pairs: Any) -> tuple[list[Any], list[bool]]:
    amounts = _cells(total)
    chosen = [True] * len(amounts)
    for area, wanted in zip(pairs[::2], pairs[1::2], strict=True):
        cells, test = _cells(area), _meets(wanted)
        if len(cells) != len(amounts):
            raise ValueError
        chosen = [k and test(c) for k, c in zip(chosen, cells, strict=True)]
    return amounts, chosen


def _sumifs(total: Any, *pairs: Any) -> Fraction:
    amounts, chosen = _sum_ifs(total, *pairs)
    return _total([a for a, k in zip(amounts, chosen, strict=True) if k and isinstance(a, Fraction)])


def _averageifs(total: Any, *pairs: Any) -> Fraction:
    amounts, chosen = _sum_ifs(total, *pairs)
    kept = [a for a, k in zip(amounts, chosen, strict=True) if k and isinstance(a, Fraction)]
    return _total(kept) / len(kept)


def _countifs(*pairs: Any) -> Fraction:
    return Fraction(sum(_sum_ifs(pairs[0], *pairs)[1]))


def _round(value: Any, places: Any = None) -> Fraction:
    number, digits = _need(value), int(_need(places))
    if abs(digits) > 30:
        raise ValueError
    scaled = abs(number) * Fraction(10) ** digits
    size = Fraction((scaled * 2 + 1) // 2) / Fraction(10) ** digits
    return size if number >= 0 else -size


def _if(test: Any, then: Any = True, other: Any = False) -> Any:
    test = _one(test)
    if test is ERROR or isinstance(test, str):
        return ERROR
    return _one(then) if test else _one(other)


def _match(wanted: Any, area: Any, kind: Any = Fraction(1)) -> Fraction:
    if _need(kind) != 0:
        raise ValueError  # only exact look-ups
    wanted, cells = _one(wanted), [x for row in area for x in row]
    place = next(i for i, c in enumerate(cells, 1) if c is not None and c is not ERROR and _rank(c) == _rank(wanted))
    return Fraction(place)


def _exact(function: Callable[..., Any]) -> Callable[..., Any]:
    """A look-up that finds nothing is a wrong argument."""

    def look(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except StopIteration:
            raise ValueError from None

    return look


def _vlookup(wanted: Any, area: Any, col: Any, near: Any = True) -> Any:
    if _need(near) != 0 or _need(col) < 1:
        raise ValueError
    row = _match(wanted, [[r[0]] for r in area], Fraction(0))
    return area[int(row) - 1][int(_need(col)) - 1]


def _index(area: Any, row: Any, col: Any = Fraction(1)) -> Any:
    r, c = int(_need(row)), int(_need(col))
    if len(area) == 1 and c == 1:
        r, c = 1, r
    if r < 1 or c < 1:
        raise ValueError
    return area[r - 1][c - 1]


def _xlookup(wanted: Any, keys: Any, values: Any, other: Any = ERROR) -> Any:
    try:
        return _cells_raw(values)[int(_match(wanted, keys, Fraction(0))) - 1]
    except StopIteration:
        return other


def _cells_raw(area: Any) -> list[Any]:
    return [x for row in area for x in row]


def _sumproduct(*areas: Any) -> Fraction:
    columns = [[c if isinstance(c, Fraction) else Fraction(0) for c in _cells(a)] for a in areas]
    return _total([_total(row, "*") for row in zip(*columns, strict=True)])


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "SUM": lambda *v: _total(_numbers(*v)),
    "AVERAGE": lambda *v: _total(_numbers(*v)) / len(_numbers(*v)),
    "MIN": lambda *v: min(_numbers(*v), default=Fraction(0)),
    "MAX": lambda *v: max(_numbers(*v), default=Fraction(0)),
    "COUNT": lambda *v: Fraction(len(_numbers(*v))),
    "COUNTA": lambda *v: Fraction(sum(c is not None for c in _cells(*v))),
    "SUMIF": lambda area, wanted, total=None: _sumifs(area if total is None else total, area, wanted),
    "SUMIFS": _sumifs,
    "COUNTIF": _countifs,
    "COUNTIFS": _countifs,
    "AVERAGEIF": lambda area, wanted, total=None: _averageifs(area if total is None else total, area, wanted),
    "AVERAGEIFS": _averageifs,
    "SUMPRODUCT": _sumproduct,
    "ROUND": _round,
    "ABS": lambda v: abs(_need(v)),
    "IF": _if,
    "IFERROR": lambda v, other: _one(other) if _one(v) is ERROR else _one(v),
    "AND": lambda *v: all(bool(_need(c)) for c in _cells(*v)),
    "OR": lambda *v: any(bool(_need(c)) for c in _cells(*v)),
    "NOT": lambda v: not _need(v),
    "MATCH": _exact(_match),
    "VLOOKUP": _exact(_vlookup),
    "INDEX": _index,
    "XLOOKUP": _xlookup,
}
"""By name; arguments are values, or areas as lists of rows."""
