"""Add up figures from several tables with other units, some of them corrected or cumulative."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.base import Draft
from environments.retrieval.library import Research, Shelf

QUARTERS = ("Q1", "Q2", "Q3", "Q4")


class Tables(Research):
    """One table a year and company; the sum runs over quarters of several years."""

    id = "retrieval/tables"
    skills = ("tables", "arithmetic", "search")

    def draw(self, rng: random.Random, level: int) -> Draft:
        shelf, companies = Shelf(rng), words.several(rng, words.company, (3, 5, 8)[level - 1])
        years = range(2025 - (2, 3, 5)[level - 1], 2025)
        goods = rng.sample(words.GOODS, 2 + level)
        asked, good = companies[0], rng.choice(goods)
        sold: dict[tuple[int, int], int] = {}
        plan: list[Any] = [asked]
        for company in companies:
            for year in years:
                figures = {g: [rng.randint(2, 90) * 100 for _ in QUARTERS] for g in goods}
                docs = self._documents(rng, level, company, year, figures)
                keys = [shelf.add(title, text, f"{year + 1}-02-{rng.randint(1, 28):02d}") for title, text in docs]
                if company == asked:
                    sold |= {(year, q): figures[good][q] for q in range(4)}
                    plan += keys
        spans = sorted(sold)
        first = rng.randrange(0, len(spans) // 2)
        last = rng.randrange(len(spans) // 2, len(spans))
        (y1, q1), (y2, q2) = spans[first], spans[last]
        total = sum(sold[s] for s in spans[first : last + 1]) * 1000
        question = (
            f"For how many EUR did {asked} sell the {good}, in all, from {QUARTERS[q1]} of {y1} to {QUARTERS[q2]} of "
            f"{y2} (both included)? Mind units and corrections. Answer with the number of EUR, without thousands "
            "separators."
        )
        return self.draft(question, shelf, str(total), plan)

    def _documents(
        self, rng: random.Random, level: int, company: str, year: int, figures: dict[str, list[int]]
    ) -> list[tuple[str, str]]:
        """The table of a company's year, and its correction if there is one; figures are in thousand EUR."""
        millions, cumulative = rng.random() < 0.4, level > 1 and rng.random() < 0.3
        shown = {g: list(row) for g, row in figures.items()}
        docs = []
        if level > 1 and rng.random() < 0.5:
            good, quarter = rng.choice(sorted(figures)), rng.randrange(4)
            shown[good][quarter] += rng.randint(1, 9) * 100
            docs.append(
                (
                    f"{company}: correction for {year}",
                    f"In the table of sales of {company} for {year}, the sales of the {good} in {QUARTERS[quarter]} "
                    f"alone were misprinted: {figures[good][quarter]} thousand EUR is right, in place of "
                    f"{shown[good][quarter]} thousand. All other quarters were right by themselves.",
                )
            )
        if cumulative:
            shown = {g: [sum(row[: q + 1]) for q in range(4)] for g, row in shown.items()}
        lines = ["| | " + " | ".join(QUARTERS) + " |", "|---|---|---|---|---|"]
        for good, row in shown.items():
            cells = [f"{n // 1000}.{n % 1000 // 100}" if millions else str(n) for n in row]
            lines.append(f"| {good} | " + " | ".join(cells) + " |")
        note = "Figures are cumulative from January of the year." if cumulative else "Figures are of the quarter alone."
        head = f"Sales of {company} in {year}, in {'million' if millions else 'thousand'} EUR."
        return [(f"{company}: sales {year}", "\n".join([head, *lines, note])), *docs]
