"""Several questions of which about half have no answer in the library: then saying so is right, and only then."""

from __future__ import annotations

import random

from environments import words
from environments.base import Draft
from environments.retrieval.firms import ASKED, firms, headline, portrait
from environments.retrieval.library import Research, Shelf
from rewards.claims import same_list

UNKNOWN = "not in the library"
NO_ANSWER = {
    "head": "The managing director {head} left in 2023; the name of the successor is kept secret.",
    "staff": "Before the sale of two plants it employed {staff} people.",
    "founded": "The house where it sits was built in {founded}.",
    "founder": "A bust of {founder}, who founded the library of the town, stands in the yard.",
}
"""Attribute -> what sounds like an answer and is none."""


class Abstain(Research):
    """The unanswerable ones look alike: a company of nearly the same name, another attribute, a past state."""

    id = "retrieval/abstain"
    skills = ("abstention", "search")

    def same(self, answer: str, gold: str) -> bool:
        return same_list(answer, gold)

    def draw(self, rng: random.Random, level: int) -> Draft:
        shelf, all_firms = Shelf(rng), firms(rng, (12, 30, 70)[level - 1])
        names = {f["name"] for f in all_firms}
        questions, answers, plan = list[str](), list[str](), list[str]()
        for place, firm in enumerate(all_firms):
            field, asked = rng.choice(list(NO_ANSWER)), place < 2 + level
            kind = rng.choice(["there", "there", "there", "silent", "sounds", "absent"]) if asked else "there"
            text = portrait(rng, firm, without=(field,) if kind in ("silent", "sounds") else ())
            if kind == "sounds":
                text += " " + NO_ANSWER[field].format(**firm)
            key = shelf.add(headline(rng, firm), text)
            if asked:
                name = firm["name"]
                while kind == "absent" and name in names:
                    name = f"{words.company(rng).split()[0]} {firm['name'].split()[1]}"
                questions.append(f"{place + 1}. {ASKED[field].format(name)}")
                answers.append(str(firm[field]) if kind == "there" else UNKNOWN)
                plan += [name, key]
        question = (
            "Answer these questions:\n" + "\n".join(questions) + "\n"
            "Give the answers in this order, separated by commas: a name or a number each. Where no document says "
            f"what is asked, the right answer is `{UNKNOWN}`; do not take what was true once, or of another company."
        )
        return self.draft(question, shelf, ", ".join(answers), plan)
