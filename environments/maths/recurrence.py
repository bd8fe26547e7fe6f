"""A far term of a linear recurrence, modulo a number."""

from __future__ import annotations

import random
import re

from environments.base import Draft
from environments.images import text_of
from environments.maths.problem import Problem, asked, factors_of, linear
from environments.task import Task
from environments.words import listed


class Recurrence(Problem):
    """At level 1 it can be written out; then a period or matrix powers are needed, up to the 10^15th term."""

    id = "maths/recurrence"
    skills = ("sequences", "number theory")

    def draw(self, rng: random.Random, level: int) -> Draft:
        order = 2 if level < 3 else 3
        factors = [rng.choice([f for f in range(-4, 6) if f]) for _ in range(order)]
        constant, start = rng.randint(-5, 9), [rng.randint(-3, 6) for _ in range(order)]
        n = (rng.randint(12, 25), rng.randint(200, 5000), rng.randint(10**12, 10**15))[level - 1]
        m = (rng.randint(50, 999), rng.randint(7, 99), rng.randint(7, 40))[level - 1]
        names = [f"{' ' * (abs(f) > 1)}a(n-{i})" for i, f in enumerate(factors, 1)]
        terms = linear(factors, names, constant)
        text = (
            f"A sequence begins with {listed([f'a({i}) = {a}' for i, a in enumerate(start, 1)])}. For every n > "
            f"{order}, a(n) = {terms}. What is the remainder (from 0 to {m - 1}) when a({n}) is divided by {m}?"
        )
        return asked(text, term(factors, constant, start, n, m), "Answer with an integer")

    def weak(self, task: Task) -> str:
        """Writes out the first 500 terms."""
        text = text_of(task.prompt[-1])
        terms = [int(a) for a in re.findall(r"a\(\d+\) = (-?\d+)", text)]
        rule = re.findall(r"a\(n\) = (.*?)\. What", text)[0]
        factors = factors_of(rule, [f"a(n-{i + 1})" for i in range(len(terms))])
        constant = int("".join(re.findall(r"([+-]) (\d+)$", rule)[0])) if rule[-1] != ")" else 0
        n, m = (int(x) for x in re.findall(r"when a\((\d+)\) is divided by (\d+)", text)[0])
        while len(terms) < min(n, 500):
            terms.append(sum(f * a for f, a in zip(factors, reversed(terms), strict=False)) + constant)
        return str(terms[n - 1] % m) if n <= len(terms) else "0"


def term(factors: list[int], constant: int, start: list[int], n: int, m: int) -> int:
    """a(n) mod m by powers of the companion matrix; the last row and column carry the constant."""
    k = len(factors)
    if n <= k:
        return start[n - 1] % m
    step = [[*factors, constant]] + [[int(i == j) for j in range(k + 1)] for i in range(k - 1)] + [[0] * k + [1]]
    power, state, left = step, [*reversed(start), 1], n - k
    while left:
        if left & 1:
            state = [sum(a * b for a, b in zip(row, state, strict=True)) % m for row in power]
        power = [[sum(row[t] * power[t][j] for t in range(k + 1)) % m for j in range(k + 1)] for row in power]
        left >>= 1
    return state[0] % m
