"""The remainder of a division, digit by digit."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced


class Modulo(Exercise):
    """`mod 4: 3 5` is `3`; a step is the digits at hand > their remainder."""

    id = "primer/modulo"
    domain = "arithmetic"
    skills = ("arithmetic",)
    sizes = ((2, 3), (4, 4), (5, 6))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        k, m = self.size(rng, level), rng.randint(3, 7)
        n = rng.randrange(10 ** (k - 1), 10**k)
        return Draft(f"mod {m}: {spaced(n)}", str(n % m), {"n": n, "m": m})

    def steps(self, info: dict[str, Any]) -> list[str]:
        rest, lines = 0, []
        for digit in str(info["n"]):
            at_hand = rest * 10 + int(digit)
            rest = at_hand % info["m"]
            lines.append(f"{spaced(at_hand)} > {rest}")
        return lines

    def check(self, info: dict[str, Any]) -> list[str]:
        # From the right: digit times the remainder of its power of ten, and the running remainder.
        m, power, rest, lines = info["m"], 1, 0, []
        for digit in reversed(str(info["n"])):
            rest = (rest + int(digit) * power) % m
            lines.append(f"{digit} x {power} > {rest}")
            power = power * 10 % m
        return lines
