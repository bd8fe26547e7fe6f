"""Cite all documents that support a claim, and none that contradicts it or is about somebody else."""

from __future__ import annotations

import random

from environments import words
from environments.base import Draft
from environments.retrieval.firms import FILLER, firms, headline, portrait
from environments.retrieval.library import Research, Shelf
from rewards.claims import same_set

FORMS = {
    "head": (
        "{name} is run by {v}.",
        "{v}, managing director of {name}, opened the fair.",
        "A letter to {v}, who heads {name}, was returned.",
    ),
    "town": (
        "{name} has its offices in {v}.",
        "The mayor of {v} visited the headquarters of {name} there.",
        "From its seat in {v}, {name} delivers to the whole coast.",
    ),
}
NEAR = {
    "head": (
        "{v} declined to become the head of {name}.",
        "{v}, a former managing director of {name}, opened the fair.",
        "{v} supplies {name} with wood.",
    ),
    "town": (
        "{name} once thought of moving to {v}.",
        "{name} sells much in {v}, where it has no office.",
        "The seat of {name} is in {other}, an hour from {v}.",
    ),
}
CLAIM = {"head": "{v} is the managing director of {name}", "town": "{name} has its seat in {v}"}


class Evidence(Research):
    """Supporting documents say it in other words; near ones have the same names and say something else."""

    id = "retrieval/evidence"
    skills = ("citation", "entailment", "search")

    def same(self, answer: str, gold: str) -> bool:
        return same_set(answer, gold)

    def draw(self, rng: random.Random, level: int) -> Draft:
        shelf, all_firms = Shelf(rng), firms(rng, (8, 16, 30)[level - 1])
        firm, field = all_firms[0], rng.choice(list(CLAIM))
        value, ids = firm[field], list[str]()
        for other in all_firms:
            key = shelf.add(headline(rng, other), portrait(rng, other))
            if other is firm:
                ids.append(key)
        for _ in range(rng.randint(level, 3 * level)):
            ids.append(self._note(rng, shelf, rng.choice(FORMS[field]).format(name=firm["name"], v=value)))
        for _ in range(3 * level):
            place = next(t for t in iter(lambda: words.town(rng), "") if t != value)
            text = rng.choice(NEAR[field]).format(name=firm["name"], v=value, other=place)
            self._note(rng, shelf, text)
            other = rng.choice(all_firms[1:])
            self._note(rng, shelf, rng.choice(FORMS[field]).format(name=other["name"], v=value))
        claim = CLAIM[field].format(name=firm["name"], v=value)
        question = (
            f"Which documents state that {claim}? A document supports it if it says so for the present, in whatever "
            "words. Answer with the ids of all of them and no other, separated by commas, such as `D1234, D5678`."
        )
        return self.draft(question, shelf, ", ".join(ids), [f"{firm['name']} {value}", *ids])

    def _note(self, rng: random.Random, shelf: Shelf, text: str) -> str:
        lines = [text, *rng.sample(FILLER, 2)]
        rng.shuffle(lines)
        return shelf.add(rng.choice(["In brief", "Notes", "From the region", "Letters", "Trade news"]), " ".join(lines))
