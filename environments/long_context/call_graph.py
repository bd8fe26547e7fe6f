"""Which functions of a repository reach a given one?"""

from __future__ import annotations

import random

from environments.base import Draft
from environments.long_context.document import LongContext, pick, told

VERBS = ("load", "parse", "check", "merge", "store", "clean", "build", "route", "scan", "trim", "pack", "sign")
NOUNS = ("order", "invoice", "ticket", "route", "badge", "report", "image", "token", "query", "batch", "price", "label")


class CallGraph(LongContext):
    """Calls go across files; the answer is a closure, and comments mention functions that are never called."""

    id = "long_context/call_graph"
    skills = ("code", "multi-hop")
    kind = "unordered"

    def write(self, rng: random.Random, chars: int) -> Draft:
        count = chars // 170
        names = [f"{pick(rng, VERBS)}_{pick(rng, NOUNS)}_{i}" for i in rng.sample(range(10_000, 99_999), count)]
        # Functions 0 to 6 reach the target (0); nobody else calls them.
        members = list(range(1, rng.randint(5, 7)))
        calls = {m: [rng.choice([0, *members[:i]])] for i, m in enumerate(members)}
        blocks = []
        for i, name in enumerate(names):
            called = list(calls.get(i, []))
            called += [8 + int(rng.random() * (count - 8)) for _ in range(1 + (i not in calls))]
            rng.shuffle(called)
            mention = names[int(rng.random() * 7)] if rng.random() < 0.02 else pick(rng, names)
            body = "\n".join(f"    value = {names[c]}(value)" for c in called if c != i)
            blocks.append(f"def {name}(value):\n    # formerly done by {mention}\n{body}\n    return value\n")
        order = rng.sample(range(count), count)
        lines, at, number = [], 0, 0
        while at < count:
            size, number = 3 + int(rng.random() * 8), number + 1
            lines += [f"=== src/module_{number:05d}.py ===", *(blocks[i] for i in order[at : at + size])]
            at += size
        reach = sorted(names[m] for m in members)
        question = (
            f"Which functions call `{names[0]}`, directly or through other functions? Comments are not "
            "calls, and imports are left out."
        )
        return told(
            "The files of a Python repository.",
            lines,
            question,
            "List the names of the functions (not the function itself), separated by commas",
            ", ".join(reach),
        )
