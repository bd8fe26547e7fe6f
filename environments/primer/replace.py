"""Replace symbols by rules."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Replace(Exercise):
    """`replace a > d , c > b: a c e a` is `d b e d`."""

    id = "primer/replace"
    domain = "strings"
    skills = ("substitution",)
    sizes = ((4, 5), (5, 6), (7, 8))

    def draw(self, rng: random.Random, level: int) -> Draft:
        letters = LETTERS[:8]
        rules = dict(zip(rng.sample(letters, level + 1), rng.sample(letters, level + 1), strict=True))
        # Half of the symbols have a rule.
        word = "".join(rng.choice(rng.choice((letters, [*rules]))) for _ in range(self.size(rng, level)))
        prompt = "replace " + " , ".join(f"{a} > {b}" for a, b in rules.items())
        answer = spaced(rules.get(c, c) for c in word)
        return Draft(f"{prompt}: {spaced(word)}", answer, {"rules": rules, "word": word})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{c} {info['rules'].get(c, c)}" for c in info["word"]]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [" ".join(f"{info['rules'].get(c, c)} < {c}" for c in reversed(info["word"]))]
