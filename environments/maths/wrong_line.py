"""Where does a derivation go wrong? The first line that does not follow from the line before."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

from environments.base import Draft
from environments.maths.problem import Problem, asked

Term = tuple[str, int, int, int]
"""(`bracket`, c, a, b) is c(ax + b); (`x`, c, 0, 0) is cx; (`n`, c, 0, 0) is c."""
Equation = tuple[list[Term], list[Term]]


class WrongLine(Problem):
    """One slip in a long solution, after which all lines follow again from the wrong one; some have no slip."""

    id = "maths/wrong_line"
    skills = ("verification", "algebra")

    def draw(self, rng: random.Random, level: int) -> Draft:
        sides = (2 * level, level)
        slip = rng.choice([None, *range(1, sum(sides) + 3)])
        while True:
            start: Equation = tuple([("bracket", _any(rng), _any(rng), _any(rng)) for _ in range(k)] for k in sides)  # type: ignore[assignment]
            lines = derive(start, slip, rng)
            wrong = [i for i in range(1, len(lines)) if root(lines[i]) != root(lines[i - 1])] if lines else []
            if lines and wrong == ([] if slip is None else [slip]):
                break
        shown = [f"({i}) {show(line)}" for i, line in enumerate(lines)]
        r = root(lines[-1])
        text = (
            (
                "A pupil solves an equation. Line (0) is the given equation; each further line should be equivalent "
                "to the line before it.\n"
            )
            + "\n".join([*shown, f"({len(lines)}) x = {r}"])
            + (
                "\nWhich is the first line that is not equivalent to the one before it? Answer with its number, or "
                "0 if every line is right."
            )
        )
        return asked(text, slip or 0, "Answer with an integer")


def _any(rng: random.Random) -> int:
    return rng.choice([k for k in range(-9, 10) if k not in (0, 1)])


def derive(line: Equation, slip: int | None, rng: random.Random) -> list[Equation]:
    """Expand bracket by bracket, collect sides, bring all x left; line `slip` gets an error. [] if x cancels."""
    lines = [line]
    while True:
        left, right = lines[-1]
        sides, done = [list(left), list(right)], False
        for side in sides:
            at = next((i for i, t in enumerate(side) if t[0] == "bracket"), None)
            if at is not None:
                _, c, a, b = side[at]
                side[at : at + 1] = [("x", c * a, 0, 0), ("n", c * b, 0, 0)]
                break
        else:
            if len(left) > 2 or len(right) > 2:
                sides = [_collected(side) for side in sides]
            else:
                (p, m), (q, n) = _sums(left), _sums(right)
                sides, done = [[("x", p - q, 0, 0)], [("n", n - m, 0, 0)]], True
        if slip == len(lines):
            side = rng.choice([s for s in sides if s])
            at = rng.randrange(len(side))
            kind, c, a, b = side[at]
            changed = {
                "bracket": c,
                "x": c + rng.choice((-2, -1, 1, 2)),
                "n": -c if rng.random() < 0.6 else c + rng.choice((-10, 10)),
            }[kind]
            side[at] = (kind, changed, a, b)
        lines.append((sides[0], sides[1]))
        if any(t[1] == 0 for side in sides for t in side if t[0] == "x") or any(not s for s in sides):
            return []
        if done:
            return lines


def _sums(side: list[Term]) -> tuple[int, int]:
    """(factor of x, constant) of a side."""
    x = sum(c * a if k == "bracket" else c for k, c, a, _ in side if k != "n")
    return x, sum(c * b if k == "bracket" else c for k, c, _, b in side if k != "x")


def _collected(side: list[Term]) -> list[Term]:
    x, n = _sums(side)
    return [("x", x, 0, 0), ("n", n, 0, 0)]


def root(line: Equation) -> Any:
    """The solution of a line, or None where x cancels."""
    (p, m), (q, n) = map(_sums, line)
    return Fraction(n - m, p - q) if p != q else None


def show(line: Equation) -> str:
    """`2(3x - 1) + 4x = 5`."""
    texts = []
    for side in line:
        words = ""
        for kind, c, a, b in side:
            factor = "" if abs(c) == 1 and kind != "n" else str(abs(c))
            inner = f"({'-' if a == -1 else a}x {'-' if b < 0 else '+'} {abs(b)})"
            body = factor + {"bracket": inner, "x": "x", "n": ""}[kind]
            words += f" {'-' if c < 0 else '+'} {body}" if words else f"{'-' if c < 0 else ''}{body}"
        texts.append(words)
    return " = ".join(texts)
