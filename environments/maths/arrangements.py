"""How many orders of people in a row obey all restrictions?"""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

from environments.base import Draft
from environments.maths.problem import Problem, asked

PEOPLE = ("Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
Rule = tuple[str, int, int]


class Arrangements(Problem):
    """Restrictions interact, so that no single product counts them; up to eight people."""

    id = "maths/arrangements"
    skills = ("combinatorics",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        n = (6, 7, 8)[level - 1]
        while True:
            pairs = rng.sample(list(combinations(range(n), 2)), level + 2)
            rules: list[Rule] = []
            for a, b in pairs:
                a, b = rng.sample((a, b), 2)
                rules.append((rng.choice(("next", "apart", "before", "apart")), a, b))
            if level > 1:
                rules.append(("inside", rng.randrange(n), 0))
            if total := count(n, rules):
                break
        words = {
            "next": "{} and {} stand next to each other",
            "apart": "{} and {} do not stand next to each other",
            "before": "{} stands somewhere to the left of {}",
            "inside": "{} stands at neither end",
        }
        lines = [f"- {words[kind].format(PEOPLE[a], PEOPLE[b])}." for kind, a, b in rules]
        text = f"{', '.join(PEOPLE[: n - 1])} and {PEOPLE[n - 1]} line up in a row for a photo, such that:\n"
        return asked(
            text + "\n".join(lines) + "\nHow many different orders are possible?", total, "Answer with an integer"
        )


def count(n: int, rules: list[Rule]) -> int:
    """Orders of 0..n-1 by rules, extended from left to right: states are (set of the placed, the last one)."""
    states: Counter[tuple[int, int]] = Counter({(0, -1): 1})
    for place in range(n):
        following: Counter[tuple[int, int]] = Counter()
        for (mask, last), ways in states.items():
            for new in range(n):
                if not mask >> new & 1 and all(_fits(rule, mask, last, new, place, n) for rule in rules):
                    following[mask | 1 << new, new] += ways
        states = following
    return sum(states.values())


def _fits(rule: Rule, mask: int, last: int, new: int, place: int, n: int) -> bool:
    kind, a, b = rule
    if kind == "inside":
        return new != a or 0 < place < n - 1
    if kind == "before":
        return new != b or bool(mask >> a & 1)
    if new not in (a, b):
        return True
    other = b if new == a else a
    if kind == "apart":
        return last != other
    return not mask >> other & 1 or last == other
