"""Documents contradict each other: the latest word counts, and some words do not count at all."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.base import Draft
from environments.retrieval.firms import FILLER, firms, headline, portrait
from environments.retrieval.library import Research, Shelf
from rewards.claims import same_list

SAYS = {
    "head": (
        "{name} has a new managing director: {value}.",
        "{value} was introduced to the staff of {name} as managing director.",
    ),
    "staff": ("{name} now employs {value} people.", "At the last count, {value} people worked for {name}."),
    "town": ("{name} has moved its seat to {value}.", "The seat of {name} is now in {value}."),
}
NOT_YET = {
    "head": "{value} is said to be a candidate for the post of managing director of {name}; nothing was decided.",
    "staff": "By the end of the decade {name} wants to employ {value} people.",
    "town": "The board of {name} discussed a move to {value} and put it off.",
}
WORDS = {"head": "managing director", "staff": "number of employees", "town": "seat (a town)"}
CORRECTION = (
    "Correction: our report of {date} on {name} was wrong in every respect; what we wrote before it still holds."
)


class Latest(Research):
    """News of many dates; rumours and plans are no facts, and a correction takes a report back."""

    id = "retrieval/latest"
    skills = ("dates", "contradiction", "search")

    def same(self, answer: str, gold: str) -> bool:
        return same_list(answer, gold)

    def draw(self, rng: random.Random, level: int) -> Draft:
        shelf, all_firms = Shelf(rng), firms(rng, (4, 8, 12)[level - 1])
        chosen = all_firms[: (1, 2, 4)[level - 1]]
        asked, answers, plan = list[str](), list[str](), list[str]()
        for firm in all_firms:
            field = rng.choice(list(SAYS))
            shelf.add(headline(rng, firm), portrait(rng, firm), words.day(rng, "2018-01-01", "2019-12-31"))
            dates = sorted(words.several(rng, lambda r: words.day(r, "2020-01-01", "2025-11-01"), 2 + level))
            holds, mine = str(firm[field]), list[str]()
            for number, date in enumerate(dates):
                value = self._value(rng, field)
                kind = "fact" if number == 0 else rng.choice(["fact", "not_yet", "wrong"])
                text = rng.choice(SAYS[field]) if kind != "not_yet" else NOT_YET[field]
                mine.append(self._news(rng, shelf, firm, text.format(name=firm["name"], value=value), date))
                if kind == "fact":
                    holds = value
                elif kind == "wrong":
                    text = CORRECTION.format(date=words.spoken(date), name=firm["name"])
                    mine.append(self._news(rng, shelf, firm, text, words.later(date, 3)))
            if firm in chosen:
                asked.append(f"the {WORDS[field]} of {firm['name']}")
                answers.append(holds)
                plan += [firm["name"], *mine]
        question = (
            f"By the latest valid documents, give {words.listed(asked)}. Documents are dated; a later fact "
            "replaces an earlier one; plans, rumours and reports that were corrected do not count. Answer with the "
            "values in this order, separated by commas, without units."
        )
        return self.draft(question, shelf, ", ".join(answers), plan)

    def _value(self, rng: random.Random, field: str) -> str:
        return {"head": words.person(rng), "staff": str(rng.randint(12, 9000)), "town": words.town(rng)}[field]

    def _news(self, rng: random.Random, shelf: Shelf, firm: dict[str, Any], text: str, date: str) -> str:
        lines = [text, *rng.sample(FILLER, 2)]
        rng.shuffle(lines)
        return shelf.add(f"{firm['name']}: news", " ".join(lines), date)
