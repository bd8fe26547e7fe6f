"""The smallest number above a bound that leaves given remainders."""

from __future__ import annotations

import random
import re
from math import gcd, lcm

from environments.base import Draft
from environments.images import text_of
from environments.maths.problem import Problem, asked
from environments.task import Task

THINGS = (
    ("A school", "pupils", "lines up its pupils in rows"),
    ("A print shop", "flyers", "bundles its flyers in packs"),
    ("A museum", "coins", "lays out its coins in trays"),
    ("A bakery", "rolls", "packs its rolls in boxes"),
    ("A library", "books", "shelves its books in stacks"),
)


class Remainders(Problem):
    """Chinese remainders in words; moduli may share factors, and at level 3 multiples of the number are meant."""

    id = "maths/remainders"
    skills = ("number theory",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        who, what, does = rng.choice(THINGS)
        moduli = rng.sample(range(5, 14 + 8 * level), 1 + level)
        period = lcm(*moduli)
        number = rng.randint(period, 3 * period)
        least = rng.randint(period // 2, number)
        lines, rules = [], []
        for m in moduli:
            factor, extra = (rng.randint(2, 4), rng.randint(1, 9)) if level == 3 and rng.random() < 0.5 else (1, 0)
            left = (factor * number + extra) % m
            subject = f"{factor} times their number and {extra} more" if factor > 1 else f"the {what}"
            lines.append(f"- in groups of {m}, {subject} would leave {left} over")
            rules.append((factor, extra, left, m))
        text = (
            f"{who} {does} and looks at how many {what} are left over:\n"
            + "\n".join(lines)
            + f"\nThere are at least {least} {what}. What is the smallest number of {what} that fits all of this?"
        )
        return asked(
            text, first(least, rules), "Answer with an integer", [f"{f}n + {e} = {r} mod {m}" for f, e, r, m in rules]
        )

    def weak(self, task: Task) -> str:
        """Tries 200 numbers one after the other."""
        least = int(re.findall(r"at least (\d+)", text_of(task.prompt[-1]))[0])
        rules = [[int(x) for x in re.findall(r"\d+", step)] for step in task.info["steps"]]
        tries = range(least, least + 200)
        return str(next((n for n in tries if all((f * n + e) % m == r for f, e, r, m in rules)), least))


def first(least: int, rules: list[tuple[int, int, int, int]]) -> int:
    """The first n with factor n + extra = left mod m for all rules, by sieving in steps of the period so far."""
    step, n = 1, least
    for factor, extra, left, m in rules:
        while (factor * n + extra) % m != left:
            n += step
        step *= m // gcd(factor * step, m)
    return n
