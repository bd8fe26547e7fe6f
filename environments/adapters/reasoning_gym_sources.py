"""The datasets that the catalogue lists: short configurations by level, short prompts, and steps that solve them.

`ask` makes the prompt from a row, `say` the spaced gold answer, `hear` what the scorer reads from a spaced answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from rewards.answers import same_number, same_text

Entry = dict[str, Any]

_TIMES = " \N{MULTIPLICATION SIGN} "
"""How the package separates prime factors."""


def spell(text: object) -> str:
    """Every symbol of a text alone, between single spaces: "-12/5" is "- 1 2 / 5"."""
    return " ".join("".join(str(text).split()))


def _list(items: Iterable[object]) -> str:
    return " , ".join(spell(i) for i in items)


def _numbers(entry: Entry) -> list[str]:
    """The numbers of the question, for want of better steps."""
    return [_list(re.findall(r"\d+", entry["question"])[:6])]


@dataclass(frozen=True)
class Source:
    """How one dataset is drawn, asked, answered and demonstrated."""

    configs: tuple[dict[str, Any], ...] = ({},)
    """One configuration a level."""
    domain: str = "misc"
    ask: Callable[[Entry], str] = lambda entry: entry["question"]
    say: Callable[[str], str] = lambda answer: answer
    hear: Callable[[str], str] = lambda text: text
    steps: Callable[[Entry], list[str]] = _numbers
    check: Callable[[Entry], list[str]] = _numbers
    exact: bool = True
    """Whether the answer must also equal the gold (by `same`): some scorers let every number be off by one, or count
    leading zeros for nothing. Without it the scorer alone decides."""
    same: Callable[[str, str], bool] = same_number
    """What is equal to the gold however it is formatted; texts are compared as texts."""
    skills: tuple[str, ...] = ()
    """What is exercised."""
    right: Callable[[str, Entry], bool] | None = None
    """Decides instead of the package's scorer, on the answer with its lines (`reasoning_gym_rules.py`)."""
    gold: Callable[[Entry], str | None] = lambda entry: entry["answer"]
    """The gold answer of a row; a row without one is not used."""
    tokens: int = 128
    """Output tokens of an episode."""
    made: int | None = None
    """Rows that are ever generated, where one takes long: tasks come again after them."""


def _join(text: str) -> str:
    """Spaced digits of a numeral without the spaces."""
    return "".join(text.split())


# --- chains of + and -, and with x ------------------------------------------------------------------------------------


def _expression(entry: Entry) -> list[str]:
    """Numbers and operators of `3 + 4 * 2`."""
    return re.findall(r"\d+|[-+*]", entry["metadata"]["expression"])


def _ask_expression(word: str) -> Callable[[Entry], str]:
    return lambda entry: f"{word}: {spell(''.join(_expression(entry)).replace('*', 'x'))}"


def _totals(entry: Entry) -> list[str]:
    """Running totals from left to right."""
    words = _expression(entry)
    signed = [int(words[0]), *(int(op + n) for op, n in zip(words[1::2], words[2::2], strict=True))]
    return [spell(t) for t in accumulate(signed)]


def _totals_by_sign(entry: Entry) -> list[str]:
    """What is added, what is taken away, and their difference."""
    words = ["+", *_expression(entry)]
    plus, minus = (sum(int(n) for op, n in zip(words[::2], words[1::2], strict=True) if op == s) for s in "+-")
    return [spell(plus), spell(minus), f"{spell(plus)} - {spell(minus)} = {spell(plus - minus)}"]


def _left_to_right(entry: Entry) -> list[str]:
    """One operation a step."""
    words, lines = _expression(entry), []
    value = int(words[0])
    for op, word in zip(words[1::2], words[2::2], strict=True):
        before, n = value, int(word)
        value = before * n if op == "*" else before + n if op == "+" else before - n
        lines.append(f"{spell(before)} {op.replace('*', 'x')} {spell(n)} = {spell(value)}")
    return lines


def _answer_again(entry: Entry) -> list[str]:
    return [spell(entry["answer"])]


def _times(entry: Entry) -> list[str]:
    """Running product of digits, or the two partial products of two-digit numbers."""
    first, *rest = (int(n) for n in entry["metadata"]["expression"].split(" * "))
    lines = []
    for n in rest:
        parts = [p for p in (n % 10, n // 10 * 10) if p] or [0]
        lines += [f"{spell(first)} x {spell(p)} = {spell(first * p)}" for p in parts]
        if len(parts) == 2:
            lines.append(" + ".join(spell(first * p) for p in parts) + f" = {spell(first * n)}")
        first *= n
    return lines


def _times_back(entry: Entry) -> list[str]:
    numbers = entry["metadata"]["expression"].split(" * ")
    return [" x ".join(spell(n) for n in reversed(numbers)), spell(entry["answer"])]


# --- divisors ---------------------------------------------------------------------------------------------------------


def _euclid(a: int, b: int) -> list[str]:
    """The numbers of Euclid's algorithm: each is the remainder of the two before; the one before 0 is the gcd."""
    row = [max(a, b), min(a, b)]
    while row[-1]:
        row.append(row[-2] % row[-1])
    return [_list(row)]


def _pair(entry: Entry) -> tuple[int, int]:
    a, b = entry["metadata"]["numbers"]
    return a, b


def _gcd_check(entry: Entry) -> list[str]:
    g = int(entry["answer"])
    return [f"{spell(n)} / {spell(g)} = {spell(n // g)}" for n in _pair(entry)]


def _lcm(entry: Entry) -> list[str]:
    a, b = _pair(entry)
    quotient = int(entry["answer"]) // b
    gcd = a // quotient
    return [*_euclid(a, b), f"{spell(a)} / {spell(gcd)} = {spell(quotient)}", f"{spell(quotient)} x {spell(b)}"]


def _lcm_check(entry: Entry) -> list[str]:
    answer = int(entry["answer"])
    return [f"{spell(answer)} / {spell(n)} = {spell(answer // n)}" for n in _pair(entry)]


def _fraction(entry: Entry) -> list[str]:
    meta = entry["metadata"]
    top, bottom = meta["numerator"], meta["denominator"]
    g = top // meta["simplified_numerator"]
    return [
        *_euclid(top, bottom),
        f"{spell(top)} / {spell(g)} = {spell(top // g)}",
        f"{spell(bottom)} / {spell(g)} = {spell(bottom // g)}",
    ]


def _fraction_check(entry: Entry) -> list[str]:
    meta = entry["metadata"]
    return _euclid(meta["simplified_numerator"], meta["simplified_denominator"])


def _factors(entry: Entry) -> list[str]:
    """What is left, and its smallest prime factor."""
    left, lines = entry["metadata"]["number"], []
    for p in entry["metadata"]["factors"]:
        lines.append(f"{spell(left)} / {spell(p)}")
        left //= p
    return lines


def _factors_check(entry: Entry) -> list[str]:
    return [spell(n) for n in accumulate(entry["metadata"]["factors"], lambda a, b: a * b)]


# --- equations, words and lists ---------------------------------------------------------------------------------------


def _linear(entry: Entry) -> list[str]:
    """Value of the variable's side without its constant, then divided by its coefficient."""
    value, (a, b, total) = int(entry["answer"]), _coefficients(entry)
    lines = [f"{spell(total)} - {spell(b)} = {spell(a * value)}"] if b else []
    return [*lines, f"{spell(a * value)} / {spell(a)} = {spell(value)}"]


def _linear_check(entry: Entry) -> list[str]:
    value, (a, b, total) = int(entry["answer"]), _coefficients(entry)
    return [f"{spell(a)} x {spell(value)} = {spell(a * value)}", f"{spell(a * value)} + {spell(b)} = {spell(total)}"]


def _coefficients(entry: Entry) -> tuple[int, int, int]:
    """a, b and c of a * x + b = c."""
    left, right = entry["metadata"]["equation"].split(" = ")
    compact, name = left.replace(" ", ""), entry["metadata"]["variable"]
    a = b = 0
    for term in re.findall(r"[+-]?[^+-]+", compact):
        if name in term:
            a += int(term.replace(f"*{name}", "").replace(name, "1"))
        else:
            b += int(term)
    return a, b, int(right)


def _ask_equation(entry: Entry) -> str:
    equation = entry["metadata"]["equation"].replace("*", "")
    return f"solve {entry['metadata']['variable']}: {spell(equation)}"


def _given(entry: Entry) -> list[int]:
    """The numbers to sort; the package writes whole numbers with a decimal point."""
    return [int(float(n)) for n in entry["metadata"]["original_numbers"]]


def _descending(entry: Entry) -> bool:
    return entry["metadata"]["direction"] == "descending"


def _sorted(entry: Entry) -> list[str]:
    """Insert one number after the other."""
    numbers = _given(entry)
    return [_list(sorted(numbers[:i], reverse=_descending(entry))) for i in range(1, len(numbers) + 1)]


def _numbered(entry: Entry) -> list[str]:
    rows = [f"{i} {c}" for i, c in enumerate(entry["metadata"]["word"].lower(), 1)]
    return [" ".join(rows), " ".join(reversed(rows))]


def _backward_check(entry: Entry) -> list[str]:
    return [f"{spell(entry['answer'])} > {spell(entry['metadata']['word'])}".lower()]


def _letters(entry: Entry) -> list[str]:
    """Running count at the end of every word."""
    letter = entry["metadata"]["target_letter"]
    words = [w.lower() for w in entry["metadata"]["span"]]
    counts = accumulate(w.count(letter) for w in words)
    return [f"{spell(w)} > {n}" for w, n in zip(words, counts, strict=True)]


def _letters_check(entry: Entry) -> list[str]:
    meta = entry["metadata"]
    return [" ".join([*meta["target_letter"] * int(entry["answer"]), entry["answer"]])]


def _ask_letters(entry: Entry) -> str:
    meta = entry["metadata"]
    return f"letter {meta['target_letter']} in: {_list(w.lower() for w in meta['span'])}"


SOURCES: dict[str, Source] = {
    "chain_sum": Source(
        ({"max_terms": 3, "max_digits": 1}, {"max_terms": 4, "max_digits": 2}),
        "arithmetic",
        _ask_expression("chain sum"),
        spell,
        _join,
        _totals,
        _totals_by_sign,
        skills=("addition",),
    ),
    "basic_arithmetic": Source(
        tuple(
            {
                "min_terms": 3,
                "max_terms": terms,
                "max_digits": 1,
                "operators": ("+", "-", "*"),
                "allow_parentheses": False,
                "allow_negation": False,
            }
            for terms in (3, 4)
        ),
        "arithmetic",
        # Without brackets the package's gold takes the operators from left to right: the prompt says so.
        _ask_expression("left to right"),
        spell,
        _join,
        _left_to_right,
        _answer_again,
        skills=("mixed_operations",),
    ),
    "products": Source(
        ({"max_terms": 3, "max_digits": 1}, {"min_digits": 2, "max_digits": 2}),
        "arithmetic",
        _ask_expression("product"),
        spell,
        _join,
        _times,
        _times_back,
        skills=("multiplication",),
    ),
    "gcd": Source(
        ({"min_value": 2, "max_value": 60}, {"min_value": 2, "max_value": 200}),
        "arithmetic",
        lambda entry: f"gcd: {_list(_pair(entry))}",
        spell,
        _join,
        lambda entry: _euclid(*_pair(entry)),
        _gcd_check,
        skills=("number_theory",),
    ),
    "lcm": Source(
        ({"min_value": 2, "max_value": 40}, {"min_value": 2, "max_value": 99}),
        "arithmetic",
        lambda entry: f"lcm: {_list(_pair(entry))}",
        spell,
        _join,
        _lcm,
        _lcm_check,
        skills=("number_theory",),
    ),
    "fraction_simplification": Source(
        tuple(
            {"min_value": 1, "max_value": top, "min_factor": 2, "max_factor": 9, "styles": ("plain",)}
            for top in (20, 30)
        ),
        "arithmetic",
        lambda e: f"simplify: {spell(e['metadata']['numerator'])} / {spell(e['metadata']['denominator'])}",
        spell,
        _join,
        _fraction,
        _fraction_check,
        same=same_text,  # a fraction that is not simplified has the same value
        skills=("fractions",),
    ),
    "prime_factorization": Source(
        ({"max_value": 500},),
        "arithmetic",
        lambda entry: f"factors: {spell(entry['metadata']['number'])}",
        lambda answer: " x ".join(spell(p) for p in answer.split(_TIMES)),
        lambda text: _TIMES.join(_join(p) for p in text.split("x")),
        _factors,
        _factors_check,
        exact=False,  # the factors may come in any order
        skills=("number_theory",),
    ),
    "simple_equations": Source(
        (
            {"max_terms": 2, "max_value": 30, "operators": ("+", "-"), "operators_weights": [0.5, 0.5]},
            {"max_terms": 2, "max_value": 12},
        ),
        "algebra",
        _ask_equation,
        spell,
        _join,
        _linear,
        _linear_check,
        skills=("equations",),
    ),
    "number_sorting": Source(
        tuple(
            {"min_numbers": low, "max_numbers": high, "max_decimals": 0, "min_value": 0, "max_value": 99}
            for low, high in ((3, 3), (4, 4))
        ),
        "lists",
        lambda e: f"sort {'down' if _descending(e) else 'up'}: {_list(_given(e))}",
        lambda answer: _list(re.findall(r"(\d+)\.0", answer)),
        lambda text: "[" + ", ".join(f"'{_join(n)}'" for n in text.split(",")) + "]",
        _sorted,
        lambda entry: [_list(sorted(_given(entry), reverse=not _descending(entry)))],
        skills=("sorting",),
    ),
    "spell_backward": Source(
        ({"max_word_len": 4}, {"min_word_len": 5, "max_word_len": 7}),
        "strings",
        lambda entry: f"spell backward: {spell(entry['metadata']['word'].lower())}",
        lambda answer: spell(answer.lower()),
        _join,
        _numbered,
        _backward_check,
        skills=("spelling",),
    ),
    "letter_counting": Source(
        ({"min_words": 2, "max_words": 2},),
        "strings",
        _ask_letters,
        spell,
        _join,
        _letters,
        _letters_check,
        skills=("counting",),
    ),
}
"""reasoning_gym dataset -> how it is used here; ids are `reasoning_gym/<dataset>`."""
