"""The greatest depth of open brackets, with a running depth."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

from environments.base import Draft
from environments.primer.exercise import Exercise, spaced

CLOSER = {"(": ")", "[": "]", "{": "}"}


def bracket_walk(rng: random.Random, length: int, deepest: int, kinds: str) -> tuple[str, str]:
    """A prefix of a balanced string of these kinds of brackets, and its open brackets (outermost first)."""
    text, stack = "", ""
    for _ in range(length):
        if not stack or (len(stack) < deepest and rng.random() < 0.55):
            bracket = rng.choice(kinds)
            stack += bracket
        else:
            bracket = CLOSER[stack[-1]]
            stack = stack[:-1]
        text += bracket
    return text, stack


class BracketDepth(Exercise):
    """`depth: ( [ ] ( ( ) )` is `3`."""

    id = "primer/bracket_depth"
    domain = "logic"
    skills = ("stacks",)
    sizes = ((7, 8), (9, 10), (11, 12))
    numeric = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        text, _ = bracket_walk(rng, self.size(rng, level), deepest=6, kinds="([")
        return Draft(f"depth: {spaced(text)}", spaced(max(_depths(text))), {"text": text})

    def steps(self, info: dict[str, Any]) -> list[str]:
        return [f"{c} {d}" for c, d in zip(info["text"], _depths(info["text"]), strict=True)]

    def check(self, info: dict[str, Any]) -> list[str]:
        depths = _depths(info["text"])
        return [" ".join(str(d) for d in accumulate(depths[::-1], max))]


def _depths(text: str) -> list[int]:
    return list(accumulate(1 if c in CLOSER else -1 for c in text))
