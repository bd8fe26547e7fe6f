"""Rewrite every symbol of a word by rules, all at once."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced


class Expand(Exercise):
    """`expand a > b c , b > a: a b c` is `b c a c`."""

    id = "primer/expand"
    domain = "strings"
    skills = ("substitution",)
    sizes = ((3, 4), (4, 5), (2, 3))

    def draw(self, rng: random.Random, level: int) -> Draft:
        letters = "abcd"
        keys = rng.sample(letters, 2 if level == 1 else 3)
        # One rule makes two symbols; level 3 rewrites twice.
        rules = {k: "".join(rng.choices(letters, k=2 if k == keys[0] else 1)) for k in sorted(keys)}
        rounds = [_rewrite("".join(rng.choices(letters, k=self.size(rng, level))), {})]
        for _ in range(2 if level == 3 else 1):
            rounds.append(_rewrite(rounds[-1], rules))
        prompt = f"expand{' twice' if level == 3 else ''} " + " , ".join(f"{k} > {spaced(v)}" for k, v in rules.items())
        return Draft(f"{prompt}: {spaced(rounds[0])}", spaced(rounds[-1]), {"rules": rules, "rounds": rounds})

    def steps(self, info: dict[str, Any]) -> list[str]:
        rules = info["rules"]
        return [f"{c} > {spaced(rules.get(c, c))}" for word in info["rounds"][:-1] for c in word]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [spaced(word) for word in info["rounds"]]


def _rewrite(word: str, rules: dict[str, str]) -> str:
    return "".join(rules.get(c, c) for c in word)
