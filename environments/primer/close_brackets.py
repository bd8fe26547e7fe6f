"""The closers that open brackets still need, by a stack."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.primer.bracket_depth import CLOSER, bracket_walk
from environments.primer.exercise import Exercise, spaced


class CloseBrackets(Exercise):
    """`close: ( [ ] {` is `} )`."""

    id = "primer/close_brackets"
    domain = "logic"
    skills = ("stacks",)
    sizes = ((5, 6), (7, 8), (9, 9))

    def draw(self, rng: random.Random, level: int) -> Draft:
        stack = ""
        while not stack:
            text, stack = bracket_walk(rng, self.size(rng, level), deepest=4, kinds="([{")
        return Draft(f"close: {spaced(text)}", spaced(CLOSER[c] for c in stack[::-1]), {"text": text})

    def steps(self, info: dict[str, Any]) -> list[str]:
        needed, lines = "", []
        for c in info["text"]:
            needed = CLOSER[c] + needed if c in CLOSER else needed[1:]
            lines.append(spaced(needed) or "0")
        return lines

    def check(self, info: dict[str, Any]) -> list[str]:
        # From the end: a closer hides the opener that it belongs to; an opener that nothing hides is needed.
        hidden, needed = 0, []
        for c in info["text"][::-1]:
            if c not in CLOSER:
                hidden += 1
            elif hidden:
                hidden -= 1
            else:
                needed.append(f"{c} {CLOSER[c]}")
        return needed
