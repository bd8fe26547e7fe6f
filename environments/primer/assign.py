"""The value of a variable after some assignments."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import LETTERS, Exercise, spaced


class Assign(Exercise):
    """`value of c: a = 3 , b = a + 2 , c = b - 1` is `4`."""

    id = "primer/assign"
    domain = "programs"
    skills = ("simulation",)
    sizes = ((1, 2), (2, 3), (3, 3))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = rng.sample(LETTERS, self.size(rng, level) + 1)
        values = {names[0]: rng.randint(1, 9)}
        lines = [f"{names[0]} = {values[names[0]]}"]
        for name in names[1:]:
            source = names[len(values) - 1] if level == 3 else rng.choice([*values])
            amount = rng.randint(1, 9)
            minus = values[source] >= amount and rng.random() < 0.5
            values[name] = values[source] + (-amount if minus else amount)
            lines.append(f"{name} = {source} {'-' if minus else '+'} {amount}")
        asked = rng.choice(names[-2:])
        prompt = f"value of {asked}: {' , '.join(lines)}"
        return Draft(prompt, spaced(values[asked]), {"values": values, "lines": lines, "asked": asked})

    def steps(self, info: dict[str, Any]) -> list[str]:
        names = [*info["values"]]
        needed = names[: names.index(info["asked"]) + 1]
        return [f"{name} {spaced(info['values'][name])}" for name in needed]

    def check(self, info: dict[str, Any]) -> list[str]:
        # Back from the asked variable to a number.
        by_name = {line[0]: line for line in info["lines"]}
        lines = [by_name[info["asked"]]]
        while lines[-1].split()[2] in by_name:
            lines.append(by_name[lines[-1].split()[2]])
        return [*lines, spaced(info["values"][info["asked"]])]
