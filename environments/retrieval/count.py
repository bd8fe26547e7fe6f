"""How many companies fulfil several conditions: every document that might count must be found and read."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.base import Draft
from environments.retrieval.firms import firms, headline, portrait
from environments.retrieval.library import HITS, Research, Shelf


class Count(Research):
    """The search shows six hits a page; companies that moved away or closed mention the town and do not count."""

    id = "retrieval/count"
    skills = ("aggregation", "search")

    def draw(self, rng: random.Random, level: int) -> Draft:
        count = (30, 50, 80)[level - 1]
        shelf, all_firms = Shelf(rng), firms(rng, count, towns=2 + level)
        town = rng.choice(sorted({f["town"] for f in all_firms}))
        year, staff = rng.randint(1950, 2000), rng.randrange(500, 3500, 500)
        plan: list[Any] = []
        total = 0
        for firm in all_firms:
            text, fate = portrait(rng, firm), rng.random()
            other = next(t for t in iter(lambda: words.town(rng), "") if t not in (town, firm["town"]))
            if fate < 0.1:
                text += f" In 2024 the company was closed; its halls in {firm['town']} stand empty."
            elif fate < 0.25:
                text = text.replace(firm["town"], other) + f" Until 2016 the seat was in {firm['town']}."
            key = shelf.add(headline(rng, firm), text)
            if town in text:
                plan.append(key)
            counts = fate >= 0.25 and firm["town"] == town and firm["founded"] < year
            total += counts and (level == 1 or firm["staff"] > staff)
        last = f"were founded before {year}"
        last = f"and {last}" if level == 1 else f"{last} and employ more than {staff} people"
        question = f"How many companies have their seat in {town} now, are not closed, {last}? Answer with the number."
        draft = self.draft(question, shelf, str(total), plan)
        looks = [["search", {"query": town, "page": p}] for p in range(1, -(-len(plan) // HITS) + 1)]
        draft.info["plan"] = looks + draft.info["plan"]
        return draft
