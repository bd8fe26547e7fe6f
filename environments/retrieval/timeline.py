"""Put the events in the history of a company into order; most are dated by one another."""

from __future__ import annotations

import random
import string

from environments import words
from environments.base import Draft
from environments.retrieval.firms import FILLER
from environments.retrieval.library import Research, Shelf
from rewards.claims import same_list

EVENTS = (
    "the fire in the warehouse", "the strike of the drivers", "the opening of the second plant",
    "the sale of the brand",
    "the retirement of the founder", "the first export", "the merger with a rival", "the flood in the cellar",
    "the visit of the minister", "the move to the new hall", "the theft of the safe", "the launch of the web shop",
)  # fmt: skip


class Timeline(Research):
    """Each event has one document, dated by the calendar or by another event; other companies had the same ones."""

    id = "retrieval/timeline"
    skills = ("dates", "multi-hop", "search")

    def same(self, answer: str, gold: str) -> bool:
        return same_list(answer, gold)

    def draw(self, rng: random.Random, level: int) -> Draft:
        shelf, count = Shelf(rng), (4, 6, 9)[level - 1]
        companies = words.several(rng, words.company, 1 + 2 * level)
        for company in companies:
            events = rng.sample(EVENTS, count)
            offsets = dict(zip(events, rng.sample(range(4, 3000), count), strict=True))
            origin, keys = words.day(rng, "2001-01-01", "2012-12-31"), dict[str, str]()
            for place, event in enumerate(events):
                when = f"on {words.spoken(words.later(origin, offsets[event]))}"
                if place and rng.random() < 0.3 + 0.2 * level:
                    other = rng.choice(events[:place])
                    gap = offsets[event] - offsets[other]
                    days = f"{abs(gap)} day{'s' if abs(gap) > 1 else ''}"
                    when = f"{days} {'after' if gap > 0 else 'before'} {other}"
                lines = [f"At {company}, {event} was {when}.", *rng.sample(FILLER, 2)]
                rng.shuffle(lines)
                keys[event] = shelf.add(
                    f"{company}: a look back", " ".join(lines), words.day(rng, "2020-01-01", "2025-12-31")
                )
            if company == companies[0]:
                asked = rng.sample(events, count)
                letters = dict(zip(asked, string.ascii_uppercase, strict=False))
                answer = ", ".join(letters[e] for e in sorted(events, key=offsets.__getitem__))
                plan = [company, *keys.values()]
        question = (
            f"In which order did these events happen at {companies[0]}?\n"
            + "\n".join(f"{letter}. {event}" for event, letter in letters.items())
            + "\n"
            "The dates of the documents are those of their printing. Answer with the letters from the earliest to "
            "the latest event, such as `B, A, C`."
        )
        return self.draft(question, shelf, answer, plan)
