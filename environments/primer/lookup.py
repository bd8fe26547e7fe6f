"""Read values from a table."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import DIGITS, LETTERS, Exercise, spaced


class Lookup(Exercise):
    """`table a 3 , b 7 , c 1: b c` is `7 1`."""

    id = "primer/lookup"
    domain = "tables"
    skills = ("search",)
    sizes = ((3, 3), (4, 4), (5, 5))

    def draw(self, rng: random.Random, level: int) -> Draft:
        keys = rng.sample(LETTERS[:8], self.size(rng, level))
        table = dict(zip(keys, rng.choices(DIGITS, k=len(keys)), strict=True))
        asked = rng.choices(keys, k=level + 1)
        rows = " , ".join(f"{k} {v}" for k, v in table.items())
        answer = spaced(table[k] for k in asked)
        return Draft(f"table {rows}: {spaced(asked)}", answer, {"table": table, "asked": asked})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{k} {info['table'][k]}" for k in info["asked"]]

    def check(self, info: dict[str, Any]) -> list[str]:
        return [f"{k} {info['table'][k]}" for k in reversed(info["asked"])]
