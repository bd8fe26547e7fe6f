"""Binary numbers to decimal, by doubling."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, listed, spaced


class FromBinary(Exercise):
    """`decimal: 1 0 1 1 0 , 0 1 1 0 1` is `2 2 , 1 3`."""

    id = "primer/from_binary"
    domain = "numbers"
    skills = ("number_bases",)
    sizes = ((2, 2), (3, 3), (2, 2))

    def draw(self, rng: random.Random, level: int) -> Draft:
        bits = 6 if level == 3 else 5
        words = ["".join(rng.choices("01", k=bits)) for _ in range(self.size(rng, level))]
        return Draft(f"decimal: {listed(words)}", listed(int(w, 2) for w in words), {"words": words})

    def steps(self, info: dict[str, Any]) -> list[str]:
        # The value of each prefix from its first 1 on: twice the value before, plus the bit.
        return [
            " > ".join(spaced(int(word[:i], 2)) for i in range((word + "1").index("1") + 1, len(word) + 1)) or "0"
            for word in info["words"]
        ]

    def check(self, info: dict[str, Any]) -> list[str]:
        # The powers of two whose bit is set, from the smallest.
        return [
            " + ".join(spaced(2**i) for i, bit in enumerate(reversed(word)) if bit == "1") or "0"
            for word in info["words"]
        ]
