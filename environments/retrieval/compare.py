"""Which of several companies is the largest, the oldest or the second: values stand in other documents, in words."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.retrieval.firms import firms, headline, portrait
from environments.retrieval.library import Research, Shelf
from environments.words import listed

ORDERS = {
    "founded": (("oldest", "youngest", "second oldest", "second youngest"), (0, -1, 1, -2)),
    "staff": (
        ("smallest by staff", "largest by staff", "second smallest by staff", "second largest by staff"),
        (0, -1, 1, -2),
    ),
}
"""Attribute -> questions, and the place that they ask for in ascending order."""


class Compare(Research):
    """Each value is one lookup, or two where it is told relative to another company."""

    id = "retrieval/compare"
    in_sight = True
    skills = ("comparison", "search")

    def draw(self, rng: random.Random, level: int) -> Draft:
        asked = (3, 5, 9)[level - 1]
        all_firms = firms(rng, asked * 4)
        field = rng.choice(list(ORDERS))
        for firm, value in zip(all_firms, rng.sample(range(1880, 2015), len(all_firms)), strict=True):
            firm[field] = value if field == "founded" else (value - 1800) * 7
        shelf, plan = Shelf(rng), list[str]()
        chosen, others = all_firms[:asked], all_firms[asked:]
        for firm in others:
            shelf.add(headline(rng, firm), portrait(rng, firm))
        for i, firm in enumerate(chosen):
            other = others[i]
            text = portrait(rng, firm, without=(field,))
            gap = firm[field] - other[field]
            if level > 1 and rng.random() < 0.6:
                how = f"{abs(gap)} {'people' if field == 'staff' else 'year' if abs(gap) == 1 else 'years'}"
                if field == "founded":
                    text += f" It was founded {how} {'after' if gap > 0 else 'before'} {other['name']}."
                else:
                    text += f" It employs {how} {'more' if gap > 0 else 'fewer'} than {other['name']}."
                plan += [other["name"], _document(shelf, other["name"])]
            else:
                text += (
                    f" The year {firm[field]} saw its founding." if field == "founded" else f" Staff: {firm[field]}."
                )
            plan += [firm["name"], shelf.add(headline(rng, firm), text)]
        word, place = rng.choice(list(zip(*ORDERS[field], strict=True)))
        answer = sorted(chosen, key=lambda f: f[field])[place]["name"]
        names = listed([f["name"] for f in rng.sample(chosen, asked)])
        question = f"Which of these companies is the {word}: {names}? Answer with its name."
        return self.draft(question, shelf, answer, plan)


def _document(shelf: Shelf, name: str) -> str:
    """The document whose title names a company."""
    return next(key for key, doc in shelf.docs.items() if name in doc["title"])
