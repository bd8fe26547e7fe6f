"""Summarise a long incident report in a fixed form of derived claims."""

from __future__ import annotations

import random
from collections import Counter

from environments import words
from environments.base import Draft
from environments.facts.form import Claims
from environments.retrieval.firms import FILLER
from rewards.claims import same_claim, same_set

CAUSES = ("a worn belt", "a power cut", "a software update", "a blocked valve", "an operator's error")


class Report(Claims):
    """Totals, extremes and lists over many entries, of which some are withdrawn later in the text."""

    id = "facts/report"
    skills = ("summary", "aggregation", "reading")

    def same(self, answer: str, gold: str) -> bool:
        return same_set(answer, gold) or same_claim(answer, gold)

    def draw(self, rng: random.Random, level: int) -> Draft:
        count = (5, 10, 20)[level - 1]
        people = words.several(rng, words.person, 3 + level)
        dates = sorted(words.several(rng, lambda r: words.day(r, "2025-01-01", "2025-12-31"), count))
        minutes = rng.sample(range(11, 300), count)
        keys = [f"N{n}" for n in rng.sample(range(100, 999), count)]
        lines, valid = list[str](), list[tuple[str, str, int, int, str, str, bool]]()
        withdrawn = set(rng.sample(keys[1:], level))
        for key, date, length in zip(keys, dates, minutes, strict=True):
            cause, who, cost, shut = rng.choice(CAUSES), rng.choice(people), rng.randint(2, 90) * 50, rng.random() < 0.7
            stopped = (
                f"{length} minutes" if length < 60 or rng.random() < 0.5 else f"{length // 60} h {length % 60} min"
            )
            lines.append(
                f"On {words.spoken(date)} the line stood still for {stopped} ({key}). The reason was {cause}; {who} "
                "had the "
                f"shift. Repairs came to {cost:,} EUR. "
                + ("The case is closed." if shut else "The case is still open.")
            )
            if rng.random() < 0.4:
                lines.append(rng.choice(FILLER))
            if key not in withdrawn:
                valid.append((key, date, length, cost, cause, who, shut))
        notes = [
            f"{key} was counted by mistake: it was a planned stop, and costs and case are void." for key in withdrawn
        ]
        shifts = Counter(v[5] for v in valid).most_common()
        if len(shifts) > 1 and shifts[0][1] == shifts[1][1]:
            return self.draw(rng, level)  # two people share the first place
        open_cases = [v[0] for v in valid if not v[6]]
        cause = rng.choice(CAUSES)
        claims = {
            "incidents": str(len(valid)),
            "total minutes": str(sum(v[2] for v in valid)),
            "longest": max(valid, key=lambda v: v[2])[0],
            "total cost": str(sum(v[3] for v in valid)),
            "most shifts": shifts[0][0],
            "last date": valid[-1][1],
            "open cases": ", ".join(open_cases) or "none",
            f"because of {cause.partition(' ')[2]}": str(sum(v[4] == cause for v in valid)),
        }
        text = (
            "Report on the packing line\n\n" + " ".join(lines) + "\n\nAddendum: " + " ".join(sorted(notes)) + "\n\n"
            "Summarise the report for the management, without what is void. Reply with these lines and nothing else, "
            "with values (numbers without units) in place of what is in angle brackets:\n"
            "incidents: <how many>\n"
            "total minutes: <of standstill>\n"
            "longest: <id of the longest standstill>\n"
            "total cost: <of all repairs, in EUR>\n"
            "most shifts: <who had the shift in the most incidents>\n"
            "last date: <of the last incident, YYYY-MM-DD>\n"
            "open cases: <their ids, separated by commas, or none>\n"
            f"because of {cause.partition(' ')[2]}: <how many incidents had {cause} as their reason>"
        )
        return Draft(text, claims)
