"""One fact about a company that is not named but described."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.retrieval.firms import ASKED, firms, headline, portrait
from environments.retrieval.library import Research, Shelf


class Fact(Research):
    """The description fits one company only when all of it is used: others share the town or the product."""

    id = "retrieval/fact"
    skills = ("search", "reading")

    def draw(self, rng: random.Random, level: int) -> Draft:
        count = (15, 35, 80)[level - 1]
        shelf, all_firms = Shelf(rng), firms(rng, count, towns=2 + count // 6)
        firm = rng.choice(all_firms)
        for other in rng.sample([f for f in all_firms if f is not firm], 2 + level):
            shared = rng.choice(["town", "product"])
            other[shared] = firm[shared]
        same = [f for f in all_firms if (f["town"], f["product"]) == (firm["town"], firm["product"])]
        described = f"the company in {firm['town']} that is known for the {firm['product']}"
        facts = ["founded", "founder", "head", "staff"]
        if len(same) > 1 or level == 3:
            described += f" and was set up by {firm['founder']}"
            facts.remove("founder")
        keys = {f["name"]: shelf.add(headline(rng, f), portrait(rng, f)) for f in all_firms}
        asked = rng.choice(facts)
        form = "name" if asked in ("founder", "head") else "number"
        question = f"{ASKED[asked].format(described)} Answer with the {form} only."
        answer = str(firm[asked])
        return self.draft(question, shelf, answer, [f"{firm['town']} {firm['product']}", keys[firm["name"]]])
