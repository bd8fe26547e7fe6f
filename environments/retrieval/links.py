"""Browse linked pages of a museum to one object: no search, and a limited number of pages."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from environments import words
from environments.base import Draft
from environments.retrieval.library import Reading, Research
from environments.task import Task
from environments.tools import ToolError, tool

HALLS = ("North Hall", "South Hall", "Rotunda", "Gallery", "Annex", "Tower", "Cellar", "Pavilion")


class Museum(Reading):
    """Pages that name others in [[double brackets]]; only so many may be read."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.left: int = task.info["pages"]

    @tool
    def read(self, document: str) -> Any:
        """The text of a page by its title, such as `Home`; links to others are in [[double brackets]]."""
        if self.left <= 0:
            raise ToolError("no more pages may be read: answer now")
        self.left -= 1
        if document not in self.docs:
            raise ToolError(f"no page {document[:40]!r}; pages left: {self.left}")
        return f"{self.docs[document]}\n(pages left: {self.left})"


class Links(Research):
    """Donors point to halls, halls to objects of the same name, and pages that moved to their new place."""

    id = "retrieval/links"
    skills = ("browsing", "planning")
    world = Museum

    def draw(self, rng: random.Random, level: int) -> Draft:
        donors = words.several(rng, words.person, (6, 14, 30)[level - 1])
        halls = HALLS[: 2 + 2 * level]
        docs: dict[str, Any] = {}
        held: dict[str, list[tuple[str, str, int]]] = {hall: [] for hall in halls}
        given: dict[str, list[str]] = {donor: [] for donor in donors}
        numbers = iter(rng.sample(range(1000, 9999), 600))
        objects = list[tuple[str, str, str, int, list[str]]]()
        kinds = rng.sample(words.GOODS, 4 + 3 * level)
        for donor in donors:
            for good in rng.sample(kinds, rng.randint(1, 3)):
                hall, year, key = rng.choice(halls), rng.randint(1850, 1960), f"Object {next(numbers)}"
                accession, chain = f"{rng.randint(1900, 1999)}.{next(numbers)}", [key]
                for _ in range(rng.choice([0, 0, level - 1, level])):  # moved
                    chain.append(f"Object {next(numbers)}")
                for old, new in pairwise(chain):
                    docs[old] = f"This object is now described at [[{new}]]."
                docs[chain[-1]] = (
                    f"{good} of {year}. Gift of {donor}. Accession number {accession}. Restored in "
                    f"{rng.randint(1980, 2020)}."
                )
                held[hall].append((key, good, year))
                given[donor].append(f"{good} of {year} (see [[{hall}]])")
                objects.append((donor, good, hall, year, [*chain, accession]))
        for hall, rows in held.items():
            rng.shuffle(rows)
            docs[hall] = "On show here:\n" + "\n".join(f"- {good}, [[{key}]]" for key, good, _ in rows)
        for hall, rows in held.items():
            lists = [f"{year}: [[{key}]]" for key, _, year in sorted(rows, key=lambda r: r[2])]
            docs[f"{hall} by year"] = "\n".join(lists) or "Nothing."
            docs[hall] += f"\nThe same by year: [[{hall} by year]]"
        for donor, gifts in given.items():
            docs[donor] = f"Gifts of {donor}: {words.listed(gifts)}."
        cut = sorted(donors, key=lambda n: n.split()[1])[len(donors) // 2].split()[1]
        early = sorted(n for n in donors if n.split()[1] < cut)
        late = sorted(n for n in donors if n.split()[1] >= cut)
        docs[f"Donors before {cut}"] = "By family name: " + ", ".join(f"[[{n}]]" for n in early)
        docs[f"Donors from {cut}"] = "By family name: " + ", ".join(f"[[{n}]]" for n in late)
        docs["Halls"] = ", ".join(f"[[{hall}]]" for hall in halls)
        docs["Home"] = f"Welcome! [[Halls]], [[Donors before {cut}]], [[Donors from {cut}]]"
        donor, good, hall, year, (*chain, accession) = rng.choice(objects)
        if [y for _, _, y in held[hall]].count(year) > 1:
            return self.draw(rng, level)
        index = f"Donors {'before' if donor in early else 'from'} {cut}"
        pages = ["Home", index, donor, f"{hall}", f"{hall} by year", *chain]
        text = (
            f"What is the accession number of the {good} that {donor} gave to our museum? Browse its pages from "
            f"`Home`; you may read {len(pages) + level} pages at most. Answer with the number as it is written, such "
            "as `1931.4711`."
        )
        plan = [["read", {"document": page}] for page in pages]
        return Draft(text, accession, {"docs": docs, "plan": plan, "pages": len(pages) + level})
