"""Evaluate boolean expressions."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced


class Boolean(Exercise):
    """`boolean: t and f , not f` is `f t`; t is true, f is false."""

    id = "primer/boolean"
    domain = "logic"
    skills = ("logic",)
    sizes = ((4, 4), (3, 3), (2, 2))

    def draw(self, rng: random.Random, level: int) -> Draft:
        terms = [_expression(rng, level) for _ in range(self.size(rng, level))]
        answer = spaced(_work(t)[-1][-1] for t in terms)
        return Draft(f"boolean: {' , '.join(terms)}", answer, {"terms": terms})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [line for term in info["terms"] for line in _work(term)]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{term} {_work(term)[-1][-1]}" for term in reversed(info["terms"])]


def _expression(rng: random.Random, level: int) -> str:
    """Level 1: one operator; level 2: with one negation; level 3: three values and up to one negation."""
    a, b, c = rng.choices("tf", k=3)
    op, second = rng.choices(["and", "or"], k=2)
    if level == 1:
        return rng.choice([f"{a} {op} {b}", f"{a} {op} {b}", f"not {a}"])
    if level == 2:
        return rng.choice([f"not {a} {op} {b}", f"{a} {op} not {b}"])
    return f"{a} {op} {b} {second} {rng.choice(['', 'not '])}{c}"


def _work(term: str) -> list[str]:
    """Negations first, then the operators from left to right; the last symbol of the last line is the value."""
    words, lines, values = term.split(), [], []
    negate = False
    for word in words:
        if word == "not":
            negate = True
        elif negate:
            values.append("f" if word == "t" else "t")
            lines.append(f"not {word} = {values[-1]}")
            negate = False
        else:
            values.append(word)
    while len(values) > 1:
        a, op, b = values[:3]
        value = "t" if (a == b == "t" if op == "and" else "t" in (a, b)) else "f"
        lines.append(f"{a} {op} {b} = {value}")
        values[:3] = [value]
    return lines
