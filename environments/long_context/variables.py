"""The final value of a variable in a very long straight-line program."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.long_context.document import LongContext, pick, told

WORDS = ("rate", "count", "limit", "offset", "scale", "quota", "level", "depth", "width", "score")


class Variables(LongContext):
    """Variables are reassigned far away from their use: the value at the time of use counts, not the last one."""

    id = "long_context/variables"
    skills = ("state tracking", "code")

    def write(self, rng: random.Random, chars: int) -> Draft:
        names = [f"{w}_{i}" for w in WORDS for i in range(1, 13)]
        values: dict[str, int] = {}
        chain = rng.sample(names, 12)
        others = [n for n in names if n not in chain]
        lines: list[str] = []
        for n in names:
            values[n] = rng.randint(0, 99)
            lines.append(f"{n} = {values[n]}")
        steps = chars // 34
        # Only some lines touch the chain of variables that the answer depends on.
        marks = set(rng.sample(range(steps), 24))
        at = 0
        for step in range(steps):
            if step in marks:
                target, source = chain[at % 12], chain[(at - 1) % 12]
                at += 1
            else:
                target, source = pick(rng, others), pick(rng, names)
            k = 1 + int(rng.random() * 9)
            if rng.random() < 0.5:
                lines.append(f"{target} = ({source} + {k}) % 1000")
                values[target] = (values[source] + k) % 1000
            else:
                lines.append(f"{target} = ({source} * {k} + {target}) % 1000")
                values[target] = (values[source] * k + values[target]) % 1000
        asked = chain[(at - 1) % 12]
        return told(
            "A generated program in Python; it runs from top to bottom.",
            lines,
            f"What is the value of `{asked}` at the end?",
            "Answer with an integer",
            values[asked],
        )
