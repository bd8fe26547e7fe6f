"""Which statements must be true, given statements with all, some, no and only?"""

from __future__ import annotations

import random

from environments.base import Draft
from environments.logic.puzzle import Puzzle, asked

TERMS = ("engineers", "climbers", "vegetarians", "violinists", "early risers")
Statement = tuple[str, int, bool, int, bool]
"""`all` or `some`, then two terms, each perhaps negated."""


class MustFollow(Puzzle):
    """Nothing is presumed to exist; several premises have to be combined, and contraposed."""

    id = "logic/must_follow"
    skills = ("deduction",)
    ordered = False

    def draw(self, rng: random.Random, level: int) -> Draft:
        n = 2 + level
        while True:
            premises = list(dict.fromkeys(_statement(rng, n) for _ in range(1 + 2 * level)))
            options: list[Statement] = []
            for _ in range(40):
                s = _statement(rng, n)
                if len(options) < 4 + level and s not in (*premises, *options):
                    options.append(s)
            regions = _possible(premises, n)
            if not _consistent(premises, regions):
                continue
            right = [chr(65 + i) for i, s in enumerate(options) if follows(premises, regions, s)]
            if 1 < len(right) < len(options):
                break
        text = (
            (
                "Take these statements about the people of a town as true; none of them implies that such people "
                "exist unless it says so:\n"
            )
            + "\n".join(f"- {_words(s, rng)}" for s in premises)
            + "\nWhich of the following must then be true?\n"
            + "\n".join(f"{chr(65 + i)}. {_words(s, rng)}" for i, s in enumerate(options))
        )
        return asked(text, ", ".join(right), "List the letters of all that must be true, separated by commas")


def _statement(rng: random.Random, n: int) -> Statement:
    a, b = rng.sample(range(n), 2)
    return rng.choice(("all", "all", "some")), a, rng.random() < 0.15, b, rng.random() < 0.4


def _in(region: int, term: int, negated: bool) -> bool:
    return bool(region >> term & 1) != negated


def _possible(premises: list[Statement], n: int) -> list[int]:
    """Combinations of terms that somebody may have: those that contradict no `all`."""
    rules = [s for s in premises if s[0] == "all"]
    return [r for r in range(1 << n) if all(not _in(r, a, x) or _in(r, b, y) for _, a, x, b, y in rules)]


def _consistent(premises: list[Statement], regions: list[int]) -> bool:
    return all(any(_in(r, a, x) and _in(r, b, y) for r in regions) for kind, a, x, b, y in premises if kind == "some")


def follows(premises: list[Statement], regions: list[int], s: Statement) -> bool:
    """`all` follows if no allowed combination breaks it; `some` if a premise's somebody has to be an instance."""
    kind, a, x, b, y = s
    if kind == "all":
        return all(not _in(r, a, x) or _in(r, b, y) for r in regions)
    for premise, c, p, d, q in premises:
        witnesses = [r for r in regions if _in(r, c, p) and _in(r, d, q)]
        if premise == "some" and all(_in(r, a, x) and _in(r, b, y) for r in witnesses):
            return True
    return False


def _words(s: Statement, rng: random.Random) -> str:
    kind, a, x, b, y = s
    first = f"{'people who are not ' if x else ''}{TERMS[a]}"
    if kind == "some":
        return f"Some {first} are {'not ' if y else ''}{TERMS[b]}."
    if y:  # `all ... are not ...` would be ambiguous
        return rng.choice((f"No {first} are {TERMS[b]}.", f"Nobody among the {TERMS[b]} is among the {first}."))
    if x:
        return f"All {first} are {TERMS[b]}."
    return rng.choice((f"All {first} are {TERMS[b]}.", f"Only {TERMS[b]} are {first}."))
