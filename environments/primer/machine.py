"""The state of a finite automaton after its input."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Machine(Exercise):
    """`machine k a m , k b k , m a k , m b m: a b a` is `k`: it starts in k, where a leads to m."""

    id = "primer/machine"
    domain = "programs"
    skills = ("simulation",)
    sizes = ((3, 4), (5, 6), (7, 8))

    def draw(self, rng: random.Random, level: int) -> Draft:
        states = rng.sample(LETTERS[2:], 2)
        rules = {s + c: rng.choice(states) for s in states for c in "ab"}
        word = "".join(rng.choices("ab", k=self.size(rng, level)))
        path = [*accumulate(word, lambda state, c: rules[state + c], initial=states[0])]
        rows = " , ".join(spaced(key + state) for key, state in rules.items())
        return Draft(f"machine {rows}: {spaced(word)}", path[-1], {"word": word, "path": path})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [spaced((a, c, b)) for (a, b), c in zip(pairwise(info["path"]), info["word"], strict=True)]

    def check(self, info: dict[str, Any]) -> list[str]:
        return list(reversed(self.steps(info)))
