"""Which formulas say the same?"""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.logic.puzzle import Puzzle, asked
from rewards.exact import same_exact

Formula = Any
"""A variable's name, or (`not`, f), (`and` | `or` | `xor` | `if`, f, g)."""


class Equivalence(Puzzle):
    """Formulas are rewritten by laws (De Morgan, contraposition, distribution) until they no longer look alike."""

    id = "logic/equivalence"
    skills = ("deduction",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = "pqrs"[: 2 + (level + 1) // 2]
        while True:
            groups: list[list[Formula]] = []
            for size in (2, 2, 1) if level == 1 else (3, 2, 2) if level == 2 else (3, 3, 2, 1):
                first = _random(rng, names, 2)
                groups.append([_rewritten(first, rng, 2 + level) for _ in range(size)])
            tables = [{table(f, names) for f in g} for g in groups]
            shown = {show(f) for g in groups for f in g}
            if len({t for s in tables for t in s}) == len(groups) and len(shown) == sum(map(len, groups)):
                break
        numbered = [f for g in groups for f in g]
        order = rng.sample(range(len(numbered)), len(numbered))
        lines = [f"({i + 1}) {show(numbered[k])}" for i, k in enumerate(order)]
        owner = [g for g, group in enumerate(groups) for _ in group]
        classes = [sorted(i + 1 for i, k in enumerate(order) if owner[k] == g) for g in range(len(groups))]
        answer = "{" + ", ".join("{" + ", ".join(map(str, c)) + "}" for c in sorted(classes)) + "}"
        text = (
            "Sort these formulas into classes of logically equivalent ones (~ is not, & and, | or, ^ exclusive "
            "or, -> implies):\n"
        ) + "\n".join(lines)
        return asked(text, answer, "Give the classes as a set of sets of numbers, as in {{1, 3}, {2}}")

    def same(self, answer: str, gold: str) -> bool:
        return same_exact(answer, gold)


def table(f: Formula, names: str) -> tuple[bool, ...]:
    """Values under all assignments."""
    return tuple(value(f, {n: bool(k >> i & 1) for i, n in enumerate(names)}) for k in range(1 << len(names)))


def value(f: Formula, given: dict[str, bool]) -> bool:
    """Under one assignment."""
    if isinstance(f, str):
        return given[f]
    if f[0] == "not":
        return not value(f[1], given)
    a, b = value(f[1], given), value(f[2], given)
    return {"and": a and b, "or": a or b, "xor": a != b, "if": not a or b}[f[0]]


def _random(rng: random.Random, names: str, depth: int) -> Formula:
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(names) if rng.random() < 0.8 else ("not", rng.choice(names))
    return (rng.choice(("and", "or", "xor", "if")), _random(rng, names, depth - 1), _random(rng, names, depth - 1))


def _rewritten(f: Formula, rng: random.Random, times: int) -> Formula:
    """The same function in other words."""
    for _ in range(times):
        f = _once(f, rng)
    return f


def _once(f: Formula, rng: random.Random) -> Formula:
    if isinstance(f, str):
        return f
    if f[0] != "not" and rng.random() < 0.5:
        a, b = f[1:]
        return (f[0], _once(a, rng), b) if rng.random() < 0.5 else (f[0], a, _once(b, rng))
    if f[0] == "not":
        g = f[1]
        if isinstance(g, str):
            return f
        a = g[1]
        return {
            "not": lambda: a,
            "and": lambda: ("or", _not(a), _not(g[2])),
            "or": lambda: ("and", _not(a), _not(g[2])),
            "xor": lambda: ("xor", _not(a), g[2]),
            "if": lambda: ("and", a, _not(g[2])),
        }[g[0]]()
    a, b = f[1:]
    options = {
        "and": [("and", b, a), ("not", ("or", _not(a), _not(b))), ("not", ("if", a, _not(b)))],
        "or": [("or", b, a), ("if", _not(a), b), ("not", ("and", _not(a), _not(b)))],
        "xor": [
            ("xor", b, a),
            ("xor", _not(a), _not(b)),
            ("not", ("xor", _not(a), b)),
            ("and", ("or", a, b), ("not", ("and", a, b))),
        ],
        "if": [("if", _not(b), _not(a)), ("or", _not(a), b), ("not", ("and", a, _not(b)))],
    }
    return rng.choice(options[f[0]])


def _not(f: Formula) -> Formula:
    return f[1] if not isinstance(f, str) and f[0] == "not" else ("not", f)


def show(f: Formula) -> str:
    """With all brackets but the outermost."""
    text = _show(f)
    return text[1:-1] if text.startswith("(") else text


def _show(f: Formula) -> str:
    if isinstance(f, str):
        return f
    if f[0] == "not":
        return f"~{_show(f[1])}"
    return f"({_show(f[1])} {({'and': '&', 'or': '|', 'xor': '^', 'if': '->'})[f[0]]} {_show(f[2])})"
