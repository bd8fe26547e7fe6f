"""Check claims against a text: supported, refuted, or not decided by it."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.base import Draft
from environments.facts.form import FORM, Claims, numbered

UNITS = {"budget": "EUR", "team": "people", "days": "days"}


class Verify(Claims):
    """Comparisons, sums, superlatives and universal statements over figures of which some are missing."""

    id = "facts/verify"
    skills = ("verification", "arithmetic", "abstention")

    def draw(self, rng: random.Random, level: int) -> Draft:
        count = (3, 5, 8)[level - 1]
        names = [f"Project {t}" for t in words.several(rng, words.town, count)]
        leads = words.several(rng, words.person, max(2, count // 2))
        rows: list[dict[str, Any]] = [
            {
                "name": n, "lead": rng.choice(leads), "budget": rng.randint(20, 900) * 1000, "team": rng.randint(3, 60),
                "days": rng.randint(30, 900),
            }
            for n in names
        ]  # fmt: skip
        for row in rng.sample(rows, 1 + level // 2):
            row[rng.choice(list(UNITS))] = None
        sentences = [self._tell(rng, row) for row in rows]
        claims = [self._claim(rng, rows) for _ in range((4, 7, 12)[level - 1])]
        text = (
            "\n".join(sentences)
            + f"\n\nWhat does this text say of each claim?\n{numbered([c for c, _ in claims])}\n{FORM} Values are "
            "`supported`, `refuted`, and `unknown` if the text does not decide it."
        )
        return Draft(text, {str(i): verdict for i, (_, verdict) in enumerate(claims, start=1)})

    def _tell(self, rng: random.Random, row: dict[str, Any]) -> str:
        parts = []
        if row["budget"] is not None:
            parts.append(f"had a budget of {row['budget']:,} EUR")
        if row["team"] is not None:
            parts.append(f"was done by a team of {row['team']} people")
        if row["days"] is not None:
            begin = words.day(rng, "2019-01-01", "2021-12-31")
            end = words.later(begin, row["days"])
            parts.append(f"began on {words.spoken(begin)} and ended {row['days']} days later, on {words.spoken(end)}")
        rng.shuffle(parts)
        return f"{row['name']}, led by {row['lead']}, {words.listed(parts)}."

    def _claim(self, rng: random.Random, rows: list[dict[str, Any]]) -> tuple[str, str]:
        """A claim and its verdict in three-valued logic: None is not known."""
        field, kind = rng.choice(list(UNITS)), rng.choice(["bound", "compare", "most", "all", "sum"])
        a, b = rng.sample(rows, 2)
        word = {"budget": "budget", "team": "team", "days": "duration"}[field]
        values = [row[field] for row in rows]
        known = [v for v in values if v is not None]
        unit = 1000 if field == "budget" else 1
        limit = max(2 * unit, rng.choice(known) + rng.choice([-1, 1]) * rng.randint(1, 25) * unit)
        if kind == "bound":
            truth = None if a[field] is None else a[field] > limit
            text = f"The {word} of {a['name']} was more than {limit:,} {UNITS[field]}."
        elif kind == "compare":
            truth = None if None in (a[field], b[field]) else a[field] > b[field]
            larger = "longer" if field == "days" else "larger"
            text = f"The {word} of {a['name']} was {larger} than that of {b['name']}."
        elif kind == "most":
            more = [
                row[field] is not None and a[field] is not None and row[field] >= a[field]
                for row in rows
                if row is not a
            ]
            truth = False if any(more) else None if None in values else True
            as_large = {"budget": "had as large a budget", "team": "had as large a team", "days": "took as long"}[field]
            text = f"No other project {as_large} as {a['name']}."
        elif kind == "all":
            mine = [row[field] for row in rows if row["lead"] == a["lead"]]
            truth = False if any(v is not None and v <= limit for v in mine) else None if None in mine else True
            text = f"Every project led by {a['lead']} had a {word} of more than {limit:,} {UNITS[field]}."
        else:
            pair = (a[field], b[field])
            total = limit + (0 if None in pair else rng.choice(pair))
            truth = None if None in pair else sum(pair) > total
            text = f"Together, {a['name']} and {b['name']} had more than {total:,} {UNITS[field]} as their {word}."
        return text, {True: "supported", False: "refuted", None: "unknown"}[truth]
