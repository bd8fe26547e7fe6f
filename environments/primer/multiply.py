"""Long multiplication by one digit, with a carry."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced


class Multiply(Exercise):
    """`multiply: 3 7 x 4` is `1 4 8`; a step is digit x digit + carry in = carry out, digit."""

    id = "primer/multiply"
    domain = "arithmetic"
    skills = ("arithmetic",)
    sizes = ((10, 199), (100, 999), (1000, 9999))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        a, b = self.size(rng, level), rng.randint(2, 9)
        return Draft(f"multiply: {spaced(a)} x {b}", spaced(a * b), {"a": a, "b": b})

    def steps(self, info: dict[str, Any]) -> list[str]:
        carry, lines = 0, []
        for digit in reversed(str(info["a"])):
            total = int(digit) * info["b"] + carry
            lines.append(f"{digit} x {info['b']} + {carry} = {total // 10} {total % 10}")
            carry = total // 10
        return lines

    def check(self, info: dict[str, Any]) -> list[str]:
        # Divide back from the left: digits read so far, quotient digit, remainder.
        rest, lines = 0, []
        for digit in str(info["a"] * info["b"]):
            rest = rest * 10 + int(digit)
            lines.append(f"{spaced(rest)} > {rest // info['b']} r {rest % info['b']}")
            rest %= info["b"]
        return lines
