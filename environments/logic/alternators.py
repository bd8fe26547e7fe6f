"""Truth-tellers, liars, and people who alternate: who is what?"""

from __future__ import annotations

import random
from itertools import product

from environments.base import Draft
from environments.logic.puzzle import Puzzle, asked
from environments.words import listed

PEOPLE = ("Ada", "Bo", "Cy", "Dee", "Eli", "Fay", "Gil")
KINDS = ("truthful", "liar", "alternating")
Claim = tuple[str, int, int]


class Alternators(Puzzle):
    """All speak several times; one who alternates may begin with either, so that no single statement says much."""

    id = "logic/alternators"
    skills = ("deduction",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        n = 2 + level
        cases = list(product(range(3), repeat=n))
        truth = [rng.randrange(3) for _ in range(n)]
        first = [rng.random() < 0.5 for _ in range(n)]
        said: list[list[Claim]] = [[] for _ in range(n)]
        while len(cases) > 1 or min(map(len, said)) < 2:
            speaker = min(range(n), key=lambda i: (len(said[i]), rng.random()))
            lies = truth[speaker] == 1 or (truth[speaker] == 2 and first[speaker] == (len(said[speaker]) % 2 == 0))
            for _ in range(50):
                claim = _claim(rng, n)
                if holds(claim, truth) != lies and claim not in said[speaker]:
                    said[speaker].append(claim)
                    break
            cases = [c for c in cases if possible(c, said)]
        rounds = [
            f"{PEOPLE[i]}: {_words(c)}"
            for r in range(max(map(len, said)))
            for i in range(n)
            for c in said[i][r : r + 1]
        ]
        text = (
            "Everybody here is one of three kinds. The truthful always say what is true. Liars always say what "
            "is false. Those who "
            "alternate say what is true and what is false in turn, and may begin with either. This is all that "
            "was said, in order:\n" + "\n".join(rounds) + f"\nOf which kind is each of {listed([*PEOPLE[:n]])}?"
        )
        form = (
            f"List the kinds (truthful, liar or alternating) in the order {', '.join(PEOPLE[:n])}, separated by commas"
        )
        return asked(text, ", ".join(KINDS[k] for k in truth), form)


def _claim(rng: random.Random, n: int) -> Claim:
    kind = rng.choice(("is", "is", "same", "count", "is not"))
    if kind == "count":
        return kind, rng.randrange(3), rng.randint(0, n - 1)
    a, b = rng.sample(range(n), 2)
    return (kind, a, b) if kind == "same" else (kind, a, rng.randrange(3))


def holds(claim: Claim, kinds: list[int] | tuple[int, ...]) -> bool:
    """Whether a claim is true of people of these kinds."""
    what, a, b = claim
    if what == "count":
        return kinds.count(a) == b
    return {"is": kinds[a] == b, "is not": kinds[a] != b, "same": kinds[a] == kinds[b] if what == "same" else False}[
        what
    ]


def possible(kinds: tuple[int, ...], said: list[list[Claim]]) -> bool:
    """Whether people of these kinds could have said this."""
    for kind, claims in zip(kinds, said, strict=True):
        values = [holds(c, kinds) for c in claims]
        turns = [v == (i % 2 == 0) for i, v in enumerate(values)]
        if not {0: all(values), 1: not any(values), 2: all(turns) or not any(turns)}[kind]:
            return False
    return True


def _words(claim: Claim) -> str:
    what, a, b = claim
    adjective = ("truthful", "a liar", "alternating")
    if what == "count":
        return (
            f'"Exactly {b} of us {"is" if b == 1 else "are"} '
            f'{("truthful", "liars", "alternating")[a] if b != 1 else adjective[a]}."'
        )
    if what == "same":
        return f'"{PEOPLE[a]} and {PEOPLE[b]} are of the same kind."'
    return f'"{PEOPLE[a]} {what} {adjective[b]}."'
