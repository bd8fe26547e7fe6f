"""The solution set of a rational inequality."""

from __future__ import annotations

import random
from fractions import Fraction

from environments.base import Draft
from environments.maths.problem import Problem, asked
from rewards.exact import same_intervals


class Inequality(Problem):
    """Double roots do not change the sign, poles are never in the set, and single points may be solutions."""

    id = "maths/inequality"
    skills = ("algebra",)

    def same(self, answer: str, gold: str) -> bool:
        return same_intervals(answer, gold)

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:
            points = rng.sample(range(-9, 10), 2 + level)
            powers = [rng.choice((1, 1, 2, 3) if level > 1 else (1,)) for _ in points]
            poles = rng.randint(1, level)
            relation, sign = rng.choice(("<", "<=", ">", ">=")), rng.choice((-1, 1))
            answer = solution(points, powers, poles, relation, sign)
            if answer:
                break
        factors = [f"(x {'-' if p > 0 else '+'} {abs(p)})" if p else "x" for p in points]
        factors = [f + (f"^{k}" if k > 1 else "") for f, k in zip(factors, powers, strict=True)]
        # A power of x alone comes first: `(x + 1)^2x` could be read as a power with 2x.
        top, bottom = ("".join(sorted(part, key=lambda f: f[0] == "(")) for part in (factors[poles:], factors[:poles]))
        bottom = f"({bottom})" if poles > 1 else bottom
        text = f"Solve over the real numbers: {'-' if sign < 0 else ''}{top} / {bottom} {relation} 0"
        return asked(text, answer, "Give the solution set as a union of intervals, as in (-inf, 2] U {3} U (5, inf)")


def solution(points: list[int], powers: list[int], poles: int, relation: str, sign: int) -> str:
    """Signs at the points and between them, joined to intervals."""
    ends = sorted(points)

    def holds(x: Fraction) -> bool:
        value = Fraction(sign)
        for i, (p, k) in enumerate(zip(points, powers, strict=True)):
            if i < poles and x == p:
                return False
            value *= (x - p) ** k
        return {"<": value < 0, "<=": value <= 0, ">": value > 0, ">=": value >= 0}[relation]

    cells: list[tuple[int | None, int | None, bool]] = [(None, ends[0], holds(Fraction(ends[0] - 1)))]
    for a, b in zip(ends, [*ends[1:], None], strict=True):
        cells.append((a, a, holds(Fraction(a))))
        cells.append((a, b, holds(Fraction(a + b, 2) if b is not None else Fraction(a + 1))))
    pieces, start = [], None
    for i, (_, _, inside) in enumerate([*cells, (None, None, False)]):
        if inside and start is None:
            start = i
        elif not inside and start is not None:
            (low, first_high, _), (last_low, high, _) = cells[start], cells[i - 1]
            if start == i - 1 and low == first_high:
                pieces.append(f"{{{low}}}")
            else:
                opening = "(-inf" if low is None else f"{'[' if low == first_high else '('}{low}"
                closing = "inf)" if high is None else f"{high}{']' if last_low == high else ')'}"
                pieces.append(f"{opening}, {closing}")
            start = None
    return " U ".join(pieces)
