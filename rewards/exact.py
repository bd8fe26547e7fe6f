"""Exact mathematical values in text: read whole or not at all, compared without floats, whatever form they have.

A number is a sum of terms q * sqrt(n) * pi^k (q rational, n square-free), which has one normal form: square roots of
different square-free numbers are independent over the rationals, and pi is transcendental. Around numbers there are
tuples, sets and unions of intervals. What the grammar does not cover is None, never the part of it that could be read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, inf

_MAX_CHARS = 400
"""A longer text is no answer of these tasks."""
_MAX_BITS = 4096
"""Larger numerators or denominators are unparsed: arithmetic on model text stays cheap."""
_MAX_RADICAND = 10**11
"""A radicand is factored by trial division: at most 160,000 steps, some 20 ms."""
_MAX_TERMS = 256
"""Terms of a product before they are collected."""
_MAX_POWER = 64

Number = dict[tuple[int, int], Fraction]
"""(square-free radicand, power of pi) -> rational factor, without zeros; {} is 0."""

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?|\.\d+)|(sqrt|frac|pi|[-+*/^(){}\[\],%]))", re.ASCII)
_SPELLINGS = (
    ("\\left", ""), ("\\right", ""), ("\\dfrac", "frac"), ("\\tfrac", "frac"), ("\\frac", "frac"), ("\\sqrt", "sqrt"),
    ("\\pi", "pi"), ("\\cdot", "*"), ("\\times", "*"), ("\\%", "%"), ("{,}", ","), ("\\,", " "), ("\\!", ""),
    ("\\;", " "), ("$", ""), ("\N{SQUARE ROOT}", "sqrt"), ("\N{GREEK SMALL LETTER PI}", "pi"),
    ("\N{MINUS SIGN}", "-"), ("\N{MIDDLE DOT}", "*"), ("\N{MULTIPLICATION SIGN}", "*"), ("**", "^"),
)  # fmt: skip
"""Spellings of one symbol in LaTeX, Unicode and plain text."""
_THIN = re.compile(r"(?<=\d)\\[,;!](?=\d{3}(?!\d))", re.ASCII)
"""A thin space between thousands."""
_SHORT = re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)(?!\d)", re.ASCII)
"""`\\frac12`, whose arguments are single digits without braces."""
_GROUPED = re.compile(r"([-+]?)(\d{1,3}(?:,\s?\d{3})+)((?:\.\d+)?)", re.ASCII)
_NAMED = re.compile(r"[A-Za-z]\w{0,2}\s*=(?!=)", re.ASCII)


class _Unread(Exception):
    """The text is not of the grammar."""


def _plain(text: str) -> str:
    text = _SHORT.sub(r"\\frac{\1}{\2}", text)
    for spelling, symbol in _SPELLINGS:
        text = text.replace(spelling, symbol)
    return text.strip()


def _tidy(number: Number) -> Number:
    number = {key: q for key, q in number.items() if q}
    if any(max(q.numerator.bit_length(), q.denominator.bit_length()) > _MAX_BITS for q in number.values()):
        raise _Unread
    return number


def _add(a: Number, b: Number, sign: int = 1) -> Number:
    return _tidy({key: a.get(key, Fraction()) + sign * b.get(key, Fraction()) for key in {**a, **b}})


def _times(a: Number, b: Number) -> Number:
    if len(a) * len(b) > _MAX_TERMS:
        raise _Unread
    total: Number = {}
    for (m, j), p in a.items():
        for (n, k), q in b.items():
            shared = gcd(m, n)  # sqrt(m) sqrt(n) = g sqrt(mn/g^2), square-free again
            key = (m * n // shared**2, j + k)
            if key[0].bit_length() > _MAX_BITS:
                raise _Unread
            total[key] = total.get(key, Fraction()) + p * q * shared
    return _tidy(total)


def _root(q: Fraction) -> Number:
    """The square root of a rational: sqrt(m/n) is sqrt(m) * sqrt(n)/n."""
    if q < 0:
        raise _Unread
    top, m = _square_free(q.numerator)
    bottom, n = _square_free(q.denominator)
    return _times({(m, 0): Fraction(top)}, {(n, 0): Fraction(1, bottom * n)})


def _square_free(n: int) -> tuple[int, int]:
    """(s, f) with n = s^2 f and f square-free, by trial division."""
    if n > _MAX_RADICAND:
        raise _Unread
    square, free, p = 1, 1, 2
    while p * p <= n:
        while n % (p * p) == 0:
            n, square = n // (p * p), square * p
        if n % p == 0:
            n, free = n // p, free * p
        p += 1 if p == 2 else 2
    return square, free * n


def _inverse(a: Number) -> Number:
    """1/a for one term, or for two without different powers of pi (by the conjugate)."""
    if len(a) == 1:
        (((n, k), q),) = a.items()
        return {(n, -k): 1 / (q * n)}
    if len(a) == 2 and len({k for _, k in a}) == 1:
        first, second = a
        conjugate = {first: a[first], second: -a[second]}
        return _times(conjugate, _inverse(_times(a, conjugate)))
    raise _Unread


class _Reader:
    """Recursive descent over tokens; every method raises _Unread for what is not of its rule."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        at = 0
        while at < len(text):
            if not (match := _TOKEN.match(text, at)):
                raise _Unread
            self.tokens.append(match.group(1) or match.group(2))
            at = match.end()
        self.at = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, token: str = "") -> str:
        found = self.next
        if not found or (token and found != token):
            raise _Unread
        self.at += 1
        return found

    def sum(self) -> Number:
        total = self.product()
        while self.next in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            total = _add(total, self.product(), sign)
        return total

    def product(self) -> Number:
        if self.next in ("+", "-"):
            return _times({(1, 0): Fraction(1 if self.take() == "+" else -1)}, self.product())
        total = self.power()
        while True:
            if self.next == "*":
                self.take()
                total = _times(total, self.power())
            elif self.next == "/":
                self.take()
                total = _times(total, _inverse(self.power()))
            elif self.next in ("sqrt", "pi", "(", "frac"):  # 2 sqrt 3, 2(1 + pi); two numerals are not a product
                if self.next == "frac" and self.tokens[self.at - 1][-1].isdigit():
                    raise _Unread  # 1 1/2 as a mixed number and as a product are two numbers
                total = _times(total, self.power())
            else:
                return total

    def power(self) -> Number:
        base = self.atom()
        if self.next == "^":
            self.take()
            exponent = self.group("{", "}") if self.next == "{" else self.signed()
            if set(exponent) - {(1, 0)}:
                raise _Unread
            e = exponent.get((1, 0), Fraction())
            if e == Fraction(1, 2) and not set(base) - {(1, 0)}:
                return _root(base.get((1, 0), Fraction()))
            if e.denominator != 1 or abs(e) > _MAX_POWER or (not base and e <= 0):
                raise _Unread
            result: Number = {(1, 0): Fraction(1)}
            for _ in range(abs(int(e))):
                result = _times(result, base)
            return _inverse(result) if e < 0 else result
        if self.next == "%":
            self.take()
            return _times(base, {(1, 0): Fraction(1, 100)})
        return base

    def signed(self) -> Number:
        if self.next == "-":
            self.take()
            return _times({(1, 0): Fraction(-1)}, self.atom())
        return self.atom()

    def atom(self) -> Number:
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            return _tidy({(1, 0): Fraction(token)})
        if token == "pi":
            return {(1, 1): Fraction(1)}
        if token in "({":
            self.at -= 1
            return self.group(token, ")" if token == "(" else "}")
        if token == "sqrt":
            inside = self.atom()
            if set(inside) - {(1, 0)}:
                raise _Unread
            return _root(inside.get((1, 0), Fraction()))
        if token == "frac":
            top = self.group("{", "}")
            return _times(top, _inverse(self.group("{", "}")))
        raise _Unread

    def group(self, opening: str, closing: str) -> Number:
        self.take(opening)
        inside = self.sum()
        self.take(closing)
        return inside


def exact(text: str) -> Number | None:
    """The number that the WHOLE text writes, or None: `2*sqrt(3)/3`, `\\frac{2}{\\sqrt{3}}`, `-0.5`, `50%`, `3pi/4`.

    Never raises. `1,234` is a numeral here; a leading `x =` is allowed.
    """
    if len(text) > _MAX_CHARS:
        return None
    text = _plain(_THIN.sub(",", text))
    if named := _NAMED.match(text):
        text = text[named.end() :].strip()
    if grouped := _GROUPED.fullmatch(text):
        text = grouped.group(1) + re.sub(r"[,\s]", "", grouped.group(2)) + grouped.group(3)
    try:
        reader = _Reader(text)
        value = reader.sum()
        return value if not reader.next else None
    except (_Unread, RecursionError):
        return None


def same_exact(answer: str, gold: str) -> bool:
    """Whether two texts write the same number, tuple `(a, b)` or set `{a, b}`; the gold's form says which.

    A tuple may be written with round, square or no brackets, a set with braces or none; members of a set are compared
    without order, and each once. Raises ValueError for a gold that cannot be read.
    """
    if len(answer) > _MAX_CHARS:
        return False
    kind, want = _members(gold)
    if kind == "number":
        value = exact(gold)
        if value is None:
            raise ValueError(f"the gold {gold!r} is no exact value: repair the environment")
        return exact(answer) == value
    found, got = _members(answer)
    if found not in (kind, "bare") and not (len(want) == 1 and found == "number"):
        return False
    return _match(got, want, kind == "set")


def _match(got: list[str], want: list[str], commutative: bool) -> bool:
    if len(got) != len(want):
        return False
    if not commutative:
        return all(same_exact(g, w) for g, w in zip(got, want, strict=True))
    left = list(got)
    for w in want:
        hit = next((g for g in left if same_exact(g, w)), None)
        if hit is None:
            return False
        left.remove(hit)
    return True


def _members(text: str) -> tuple[str, list[str]]:
    """(number | tuple | set | bare, members as texts); commas inside brackets do not divide."""
    text = _plain(text).replace("\\{", "{").replace("\\}", "}").strip()
    if named := _NAMED.match(text):
        text = text[named.end() :].strip()
    kinds = {"(": ("tuple", ")"), "[": ("tuple", "]"), "{": ("set", "}")}
    kind, inner = "bare", text
    if text and text[0] in kinds and _closes(text) == len(text) - 1 and text[-1] == kinds[text[0]][1]:
        kind, inner = kinds[text[0]][0], text[1:-1]
    parts = split_outside(inner, ",;")
    if len(parts) == 1 and kind != "set":
        return "number", [text]
    return kind, [p.strip() for p in parts]


def _closes(text: str) -> int:
    """Where the bracket that opens the text closes, or -1."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if depth == 0:
            return i
    return -1


def split_outside(text: str, separators: str) -> list[str]:
    """Split at separators that are in no bracket."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        if depth == 0 and c in separators:
            parts.append("")
        else:
            parts[-1] += c
    return parts


# --- unions of intervals ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """From low to high; an end at infinity is open. Ends are rational (or infinite)."""

    low: Fraction | float
    high: Fraction | float
    low_in: bool
    high_in: bool


_RELATIONS = (("\\leq", "<="), ("\\geq", ">="), ("\\le", "<="), ("\\ge", ">="), ("\\lt", "<"), ("\\gt", ">"),
    ("\N{LESS-THAN OR EQUAL TO}", "<="), ("\N{GREATER-THAN OR EQUAL TO}", ">="), ("\\infty", "inf"),
    ("\N{INFINITY}", "inf"), ("\\cup", "U"), ("\N{UNION}", "U"), (" or ", "U"))  # fmt: skip


def intervals(text: str) -> list[Interval] | None:
    """The set of reals that the whole text writes, as sorted disjoint intervals, or None.

    `(-inf, 2] U [3, 5)`, `x <= 2 or 3 <= x < 5`, `{7}` for a point, in any order, with overlaps.
    """
    if len(text) > _MAX_CHARS:
        return None
    text = _plain(text).replace("\\{", "{").replace("\\}", "}")
    for spelling, symbol in _RELATIONS:
        text = text.replace(spelling, symbol)
    text = re.sub(r"^[a-z]\s*(?:\\in|\N{ELEMENT OF}|in)\s+", "", text.strip())
    pieces = [_interval(piece.strip()) for piece in text.split("U")]
    found = [p for p in pieces if p is not None]
    return _merge(found) if len(found) == len(pieces) else None


def _merge(pieces: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for piece in sorted(pieces, key=lambda i: (i.low, not i.low_in)):
        last = merged[-1] if merged else None
        if last and (piece.low < last.high or (piece.low == last.high and (piece.low_in or last.high_in))):
            high, high_in = max((last.high, last.high_in), (piece.high, piece.high_in))
            merged[-1] = Interval(last.low, high, last.low_in, high_in)
        else:
            merged.append(piece)
    return merged


def _end(text: str) -> Fraction | float | None:
    text = text.replace(" ", "")
    if text in ("inf", "+inf"):
        return inf
    if text == "-inf":
        return -inf
    value = exact(text)
    return None if value is None or set(value) - {(1, 0)} else value.get((1, 0), Fraction())


def _interval(text: str) -> Interval | None:
    if len(text) > 2 and text[0] == "{" and text[-1] == "}":
        point = _end(text[1:-1])
        return None if point is None or point in (inf, -inf) else Interval(point, point, True, True)
    if text and text[0] in "([" and text[-1] in ")]":
        ends = [_end(p) for p in text[1:-1].split(",")]
        if len(ends) != 2 or ends[0] is None or ends[1] is None:
            return None
        return _checked(ends[0], ends[1], text[0] == "[", text[-1] == "]")
    parts = re.split(r"(<=|>=|<|>)", text)
    if len(parts) == 3:
        left, relation, right = (p.strip() for p in parts)
        if re.fullmatch("[a-z]", right) and not re.fullmatch("[a-z]", left):  # 3 < x is x > 3
            left, relation, right = right, relation.translate(str.maketrans("<>", "><")), left
        end = _end(right)
        if not re.fullmatch("[a-z]", left) or end is None:
            return None
        closed = relation.endswith("=")
        return _checked(-inf, end, False, closed) if "<" in relation else _checked(end, inf, closed, False)
    if len(parts) == 5 and re.fullmatch("[a-z]", parts[2].strip()) and parts[1][0] == parts[3][0]:
        low, first, second, high = parts[0], parts[1], parts[3], parts[4]
        if first[0] == ">":
            low, first, second, high = high, second, first, low
        ends = [_end(low), _end(high)]
        if ends[0] is not None and ends[1] is not None:
            return _checked(ends[0], ends[1], first.endswith("="), second.endswith("="))
    return None


def _checked(low: Fraction | float, high: Fraction | float, low_in: bool, high_in: bool) -> Interval | None:
    """None for a reversed or empty interval, and for one that contains an infinity."""
    if (
        low > high
        or (low == high and not (low_in and high_in))
        or (low == -inf and low_in)
        or (high == inf and high_in)
    ):
        return None
    return Interval(low, high, low_in, high_in)


def same_intervals(answer: str, gold: str) -> bool:
    """Whether two texts write the same set of reals; raises ValueError for a gold that cannot be read."""
    want = intervals(gold)
    if want is None:
        raise ValueError(f"the gold {gold!r} is no union of intervals: repair the environment")
    return intervals(answer) == want
