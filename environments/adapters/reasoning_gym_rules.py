"""What is right in a reasoning_gym dataset: strict comparisons of an answer's text with the gold.

The package's scorers are not asked: they give credit to text around the answer, to formats and to lengths, some
`eval` what they are given, and some raise. A rule reads the WHOLE answer (lines kept, white space collapsed) and
returns
whether it is right; whatever it cannot read is wrong. Text of a policy is never executed. `reasoning_gym_puzzles.py`
holds the rules of datasets with several right answers.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rewards.answers import normalise, number, same_number

Entry = dict[str, Any]
Rule = Callable[[str, Entry], bool]

_DECIMAL = re.compile(r"[+-]?\d{1,60}(?:\.\d{1,60})?(?:[eE][+-]?\d{1,3})?")
_COMPLEX = re.compile(r"(?P<real>[+-]?[\d.]+(?![\d.]*[ij]))?(?:(?P<imag>[+-]?[\d.]*)[ij])?")
_MAX_POWER = 20
"""Larger exponents are in no gold; the bound keeps exact arithmetic on model text cheap."""
_POINTS = (Fraction(3, 7), Fraction(-5, 3), Fraction(11, 2), Fraction(-13, 9), Fraction(17, 4), Fraction(19))
"""Where two polynomials of low degree are compared exactly, besides 10**12 (see `polynomial`)."""


def gold(entry: Entry) -> str:
    """The gold answer as text."""
    return str(entry["answer"])


def exact(answer: str, entry: Entry) -> bool:
    """The same lines."""
    return answer.splitlines() == [normalise(line) for line in gold(entry).strip().splitlines()]


def fold(answer: str, entry: Entry) -> bool:
    """The same words in any case; a final full stop is nothing."""
    return normalise(answer).casefold().rstrip(".") == normalise(gold(entry)).casefold().rstrip(".")


def compact(answer: str, entry: Entry) -> bool:
    """The same characters in any case, whatever white space is between them."""
    return "".join(answer.split()).casefold() == "".join(gold(entry).split()).casefold()


def one_number(answer: str, entry: Entry) -> bool:
    """The same number, exactly, written without spaces."""
    return len(answer.split()) == 1 and same_number(answer, gold(entry))


def number_or_word(answer: str, entry: Entry) -> bool:
    """The same number or the same words."""
    return one_number(answer, entry) or fold(answer, entry)


def _decimal(text: str) -> Decimal | None:
    """The exact value of a decimal numeral, with an exponent or thousands separators."""
    text = text.strip()
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    return Decimal(text) if _DECIMAL.fullmatch(text) else None


def near(answer: str, wanted: str) -> bool:
    """Whether a number is the gold, or rounds to it at the decimals that the gold has."""
    a, g = _decimal(answer), _decimal(wanted)
    return a is not None and g is not None and abs(a - g) <= Decimal(5).scaleb(min(0, _exponent(g)) - 1) * _coarse(a, g)


def _exponent(value: Decimal) -> int:
    return int(value.as_tuple().exponent)


def _coarse(answer: Decimal, wanted: Decimal) -> int:
    """0 (nothing but equality) where the answer has no more decimals than the gold, else 1."""
    return int(_exponent(answer) < _exponent(wanted))


def rounded(answer: str, entry: Entry) -> bool:
    """A number, degrees or a point that rounds to the gold."""
    parts = [_coordinates(answer), _coordinates(gold(entry))]
    return len(parts[0]) == len(parts[1]) and all(map(near, *parts))


def _coordinates(text: str) -> list[str]:
    compacted = "".join(text.split()).replace("\N{DEGREE SIGN}", "")
    inside = re.fullmatch(r"\((.*)\)", compacted)
    return inside[1].split(",") if inside else [compacted]


def roots(answer: str, entry: Entry) -> bool:
    """The real solutions in any order, each rounding to the gold; a solution said twice is wrong."""
    said, wanted = answer.split(","), gold(entry).split(",")
    if len(said) != len(wanted) or any(_decimal(s) is None for s in said):
        return False
    in_order = zip(sorted(said, key=Decimal), sorted(wanted, key=Decimal), strict=True)
    return all(near(a, g.strip()) for a, g in in_order)


def three_figures(answer: str, entry: Entry) -> bool:
    """Equal to three significant figures."""
    value = _decimal(answer)
    return value is not None and f"{value:.2e}" == f"{Decimal(gold(entry)):.2e}"


def probability(answer: str, entry: Entry) -> bool:
    """The exact probability as a fraction or decimal, or rounded to at least four decimals."""
    true = Fraction(entry["metadata"]["rational"]["numerator"], entry["metadata"]["rational"]["denominator"])
    value = number(answer)
    if value is None or value == true:
        return value is not None
    decimals = len(answer.strip().partition(".")[2])
    return "/" not in answer and decimals >= 4 and value == round(true, decimals)


def complex_number(answer: str, entry: Entry) -> bool:
    """Both parts round to the gold's."""
    parts = [_COMPLEX.fullmatch("".join(text.split())) for text in (answer, gold(entry))]
    if parts[0] is None or parts[1] is None or not parts[0][0]:
        return False
    said, wanted = (((m["real"] or "0"), _imaginary(m)) for m in parts if m is not None)
    return all(map(near, said, wanted))


def _imaginary(match: re.Match[str]) -> str:
    text = match["imag"]
    return "0" if text is None else f"{text}1" if text in ("", "+", "-") else text


def hexadecimal(answer: str, entry: Entry) -> bool:
    """The same number in hexadecimal."""
    text = answer.strip().lower()
    return re.fullmatch(r"-?0x[0-9a-f]{1,200}", text) is not None and int(text, 16) == int(gold(entry), 16)


def numbers(answer: str, entry: Entry) -> bool:
    """A list of the same numbers in the same order, in brackets, with or without quotes."""
    said, wanted = _items(answer), _items(gold(entry))
    return said is not None and wanted is not None and said == wanted


def _items(text: str) -> list[Fraction] | None:
    inside = re.fullmatch(r"\[(.*)\]", "".join(text.split()))
    if inside is None:
        return None
    values = [number(item.strip("'\"")) for item in inside[1].split(",")] if inside[1] else []
    return None if None in values else [v for v in values if v is not None]


def matrix(answer: str, entry: Entry) -> bool:
    """Rows of numbers, each within half a hundredth of the gold's (the question asks for two decimals)."""
    said, wanted = ([line.split() for line in text.strip().splitlines()] for text in (answer, gold(entry)))
    if [len(row) for row in said] != [len(row) for row in wanted]:
        return False
    pairs = [(_decimal(a), Decimal(g)) for x, y in zip(said, wanted, strict=True) for a, g in zip(x, y, strict=True)]
    return all(a is not None and abs(a - g) <= Decimal("0.005") for a, g in pairs)


def read_json(text: str) -> Any:
    """The JSON value of a text; None where it is none, or nests too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def json_value(answer: str, entry: Entry) -> bool:
    """The same JSON value; floats may differ in the last digits (relative 1e-9)."""
    wanted = read_json(gold(entry))
    return exact(answer, entry) if wanted is None else _alike(read_json(answer), wanted)


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[k], b[k]) for k in b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, int | float) or not isinstance(b, int | float):
        return type(a) is type(b) and a == b
    return a == b or (isinstance(b, float) and math.isclose(a, b, rel_tol=1e-9))


def json_sets(answer: str, entry: Entry) -> bool:
    """A list of groups of words, in any order."""
    return _groups(read_json(answer), sort=True) == _groups(entry["metadata"]["solution"], sort=True)


def json_lists(answer: str, entry: Entry) -> bool:
    """A list of lists of words; the order of the lists is free, that of the words is not."""
    return _groups(read_json(answer), sort=False) == _groups(entry["metadata"]["solution"], sort=False)


def _groups(value: Any, sort: bool) -> list[list[str]] | None:
    if not isinstance(value, list) or not all(
        isinstance(g, list) and all(isinstance(w, str) for w in g) for g in value
    ):
        return None
    return sorted(sorted(g) if sort else list(g) for g in value)


# --- expressions ------------------------------------------------------------------------------------------------------

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def parse(text: str) -> ast.expr | None:
    """The syntax tree of an arithmetic expression; None where it is none."""
    try:
        return ast.parse(" ".join(text.split()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def evaluate(
    node: ast.expr,
    names: dict[str, Any],
    functions: dict[str, Callable[[Any], Any]] | None = None,
    convert: Callable[[str], Any] = Fraction,
) -> Any:
    """The value of an expression of numbers, names, + - * / ** and one-argument functions; exact over Fractions.

    Raises ValueError or KeyError for anything else, and ZeroDivisionError.
    """
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return convert(str(node.value))
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = evaluate(node.operand, names, functions, convert)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = (evaluate(n, names, functions, convert) for n in (node.left, node.right))
        if not isinstance(node.op, ast.Pow):
            return _OPERATORS[type(node.op)](left, right)
        if abs(right) > _MAX_POWER or (convert is Fraction and right.denominator != 1):
            raise ValueError("a power that is too large, or not whole")
        return left**right
    if functions and isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        return functions[node.func.id](evaluate(node.args[0], names, functions, convert))
    raise ValueError(f"{type(node).__name__} is not arithmetic")


def polynomial(answer: str, entry: Entry) -> bool:
    """The same polynomial, multiplied out (no brackets): equal at points that no other one of its size shares."""
    said, wanted = parse(answer), parse(gold(entry))
    if "(" in answer or "/" in answer or said is None or wanted is None:
        return False
    names = sorted({n.id for n in ast.walk(wanted) if isinstance(n, ast.Name)})
    names = names or [str(v) for v in entry["metadata"]["variables"]]
    # 10**12 separates the coefficients themselves; the small points separate what is as large as that.
    places = [dict(zip(names, (p + 7 * i for i in range(len(names))), strict=True)) for p in (*_POINTS, 10**12)]
    try:
        return all(evaluate(said, place) == evaluate(wanted, place) for place in places)
    except (ValueError, KeyError, ZeroDivisionError, OverflowError, RecursionError):
        return False


def antiderivative(answer: str, entry: Entry) -> bool:
    """An expression whose derivative is the integrand, compared at points to 25 digits; the constant C is free."""
    import mpmath

    meta = entry["metadata"]
    said, wanted = parse(answer), parse(meta["integrand"])
    if said is None or wanted is None:
        return False
    called = ("sin", "cos", "tan", "exp", "log", "sqrt", "asin", "acos", "atan", "sinh", "cosh", "tanh", "sec", "csc")
    functions = {name: _bounded(getattr(mpmath, name)) for name in called} | {"Abs": mpmath.fabs}
    constants = {"C": mpmath.mpf(7) / 3, "E": +mpmath.e, "pi": +mpmath.pi}

    def at(tree: ast.expr, x: Any) -> Any:
        return evaluate(tree, constants | {meta["variable"]: x}, functions, mpmath.mpf)

    compared = 0
    with mpmath.workdps(60):
        for x in ("0.3172", "0.7391", "1.4142", "2.2361", "3.6056", "5.0990"):
            point, step = mpmath.mpf(x), mpmath.mpf(10) ** -12
            try:
                want = at(wanted, point)
                # Fourth-order difference: its error is step**4 = 1e-48 times a derivative.
                f = [at(said, point + k * step) for k in (-2, -1, 1, 2)]
                slope = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step)
            except (ZeroDivisionError, OverflowError):
                continue  # outside the domain
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                return False
            if not (mpmath.isfinite(want) and mpmath.isfinite(slope)):
                continue
            if abs(slope - want) > mpmath.mpf(10) ** -20 * (1 + abs(want)):
                return False
            compared += 1
    return compared >= 3


def _bounded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of mpmath that refuses arguments at which its work explodes."""

    def call(x: Any) -> Any:
        if abs(x) > 10_000:
            raise ValueError("an argument that is too large")
        return function(x)

    return call
