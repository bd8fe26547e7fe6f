"""Who sits where at a round table?"""

from __future__ import annotations

import random
from itertools import permutations

from environments.base import Draft
from environments.logic.puzzle import Puzzle, asked

PEOPLE = ("Ada", "Bo", "Cy", "Dee", "Eli", "Fay", "Gil")
Clue = tuple[str, int, int, int]


class RoundTable(Puzzle):
    """Clues are relative (left of, opposite to, so many seats apart, between), and a table has no first seat."""

    id = "logic/round_table"
    skills = ("deduction", "constraints")

    def draw(self, rng: random.Random, level: int) -> Draft:
        n = 4 + level
        seats = (0, *rng.sample(range(1, n), n - 1))  # seats[i] is person i's, clockwise from Ada
        cases = [(0, *p) for p in permutations(range(1, n))]
        clues: list[Clue] = []
        while len(cases) > 1:
            a, b, c = rng.sample(range(n), 3)
            clue = (rng.choice(("right", "apart", "not next", "between", "next")), a, b, c)
            if clue[0] == "apart":
                clue = ("apart", a, b, min((seats[a] - seats[b]) % n, (seats[b] - seats[a]) % n))
            if holds(clue, seats):
                kept = [s for s in cases if holds(clue, s)]
                if len(kept) < len(cases):
                    clues.append(clue)
                    cases = kept
        for clue in list(clues):  # later clues may have made earlier ones superfluous
            rest = [c for c in clues if c != clue]
            if sum(all(holds(c, (0, *p)) for c in rest) for p in permutations(range(1, n))) == 1:
                clues = rest
        order = [PEOPLE[seats.index(i)] for i in range(n)]
        lines = [f"- {_words(c)}" for c in clues]
        text = (
            f"{', '.join(PEOPLE[:n])} sit at a round table with {n} chairs, facing the middle; going clockwise is "
            "going to one's left.\n"
        ) + "\n".join(lines)
        return asked(text, ", ".join(order), "List everybody clockwise, beginning with Ada, separated by commas")


def holds(clue: Clue, seats: tuple[int, ...]) -> bool:
    """Whether a clue is true of seats, numbered clockwise."""
    kind, a, b, c = clue
    n = len(seats)
    gap = min((seats[a] - seats[b]) % n, (seats[b] - seats[a]) % n)
    if kind == "right":
        return (seats[b] - seats[a]) % n == 1
    if kind == "between":  # on the way clockwise from b to c
        return (seats[a] - seats[b]) % n < (seats[c] - seats[b]) % n
    return {"apart": gap == c, "not next": gap > 1, "next": gap == 1}[kind]


def _words(clue: Clue) -> str:
    kind, a, b, c = clue
    p, q, r = PEOPLE[a], PEOPLE[b], PEOPLE[c] if kind != "apart" else ""
    return {
        "right": f"{p} sits directly to the right of {q}.",
        "between": f"Going clockwise from {q}, one comes to {p} before {r}.",
        "apart": (
            f"The shorter way from {p} to {q} is {c} chair{'s' if c > 1 else ''} long (neighbours are 1 chair apart)."
        ),
        "not next": f"{p} and {q} are not neighbours.",
        "next": f"{p} and {q} are neighbours.",
    }[kind]
