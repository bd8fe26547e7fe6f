"""In how many ways can an amount be paid, under conditions on the coins?"""

from __future__ import annotations

import random

from environments.base import Draft
from environments.maths.problem import Problem, asked
from environments.words import listed


class Payments(Problem):
    """Solutions of a linear equation in non-negative integers with bounds, parities and a bound on their sum."""

    id = "maths/payments"
    skills = ("combinatorics", "number theory")

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:
            values = sorted(rng.sample(range(2, 8 + 6 * level), 2 + level))
            amount = rng.randint(50, 40 * level + 60)
            rules = [("any", 0)] * len(values)
            for i in rng.sample(range(len(values)), level):
                rules[i] = rng.choice(
                    (("most", rng.randint(2, 6)), ("least", rng.randint(1, 2)), ("even", 0), ("odd", 0))
                )
            least = amount // values[-1] + 2
            coins = rng.randint(least, least + 8) if level == 3 else amount
            if (total := count(values, amount, rules, coins)) > 2:
                break
        words = {
            "most": "at most {k} of the {v}-cent stamps are used",
            "least": "at least {k} of the {v}-cent stamps {is_} used",
            "even": "the number of {v}-cent stamps is even (0 is even)",
            "odd": "the number of {v}-cent stamps is odd",
        }
        lines = [
            f"- {words[kind].format(k=k, v=v, is_='is' if k == 1 else 'are')}"
            for v, (kind, k) in zip(values, rules, strict=True)
            if kind != "any"
        ]
        lines += [f"- at most {coins} stamps are used in all"] if level == 3 else []
        text = (
            f"A letter needs exactly {amount} cents. There are stamps of {listed([*map(str, values)])} cents, as "
            "many as wanted. "
            "Stamps of the same value do not differ, and the order does not count. In how many ways can the "
            "postage be made, if\n" + "\n".join(lines) + "?"
        )
        return asked(text, total, "Answer with an integer")


def count(values: list[int], amount: int, rules: list[tuple[str, int]], coins: int) -> int:
    """Ways by (cents, stamps), one value after the other."""
    ways = {(0, 0): 1}
    for v, (kind, k) in zip(values, rules, strict=True):
        following: dict[tuple[int, int], int] = {}
        for (cents, used), n in ways.items():
            for c in range((amount - cents) // v + 1):
                fits = {"any": True, "most": c <= k, "least": c >= k, "even": c % 2 == 0, "odd": c % 2 == 1}[kind]
                if fits and used + c <= coins:
                    key = (cents + c * v, used + c)
                    following[key] = following.get(key, 0) + n
        ways = following
    return sum(n for (cents, _), n in ways.items() if cents == amount)
