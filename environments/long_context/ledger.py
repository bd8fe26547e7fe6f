"""Counts, sums and rankings over a long list of transactions."""

from __future__ import annotations

import random
from collections import Counter

from environments.base import Draft
from environments.long_context.document import PEOPLE, PLACES, LongContext, pick, told

KINDS = ("books", "cables", "desks", "fuel", "lamps", "paper", "seeds", "tools")


class Ledger(LongContext):
    """Every line may count: nothing is marked, and refunds are negative."""

    id = "long_context/ledger"
    skills = ("aggregation", "arithmetic")

    def write(self, rng: random.Random, chars: int) -> Draft:
        customers, kind = rng.sample(PEOPLE, 24), rng.choice(KINDS)
        site = rng.choice(PLACES)
        rows, size = [], 0
        # What counts stays near forty lines at every length: the rest is other goods and other sites.
        share = 40 * 58 / chars
        while size < chars:
            hit = rng.random() < share
            row = (
                1 + int(rng.random() * 28), 1 + int(rng.random() * 12), pick(rng, customers),
                site if hit else pick(rng, PLACES),
                kind if hit else pick(rng, KINDS), int(rng.random() * 900) - 100,
            )  # fmt: skip
            if not hit and row[3] == site and row[4] == kind:
                continue
            rows.append(row)
            size += 58
        lines = [
            f"{i + 1:06d} | 2031-{m:02d}-{d:02d} | {who} | {at} | {what} | {euros}"
            for i, (d, m, who, at, what, euros) in enumerate(rows)
        ]
        chosen = [r for r in rows if r[3] == site and r[4] == kind]
        totals: Counter[str] = Counter()
        for r in chosen:
            totals[r[2]] += r[5]
        asked = rng.choice(("sum", "count", "top"))
        top = sorted(totals.values(), reverse=True)[:4]
        if asked == "top" and len(set(top)) == 4:
            question = (
                f"Take the lines of the site {site} and the goods `{kind}`. What are the three largest "
                "totals of single customers, the largest first?"
            )
            form, answer = "Answer with three integers, as in (9, 7, 2)", f"({', '.join(map(str, top[:3]))})"
        elif asked == "count":
            least = rng.randint(50, 500)
            question = (
                f"How many lines of the site {site} and the goods `{kind}` have an amount of at least {least} euros?"
            )
            form, answer = "Answer with an integer", str(sum(r[5] >= least for r in chosen))
        else:
            question = (
                f"What do the amounts of the site {site} and the goods `{kind}` in the months January to "
                "June add to, in euros?"
            )
            form, answer = "Answer with an integer", str(sum(r[5] for r in chosen if r[1] <= 6))
        return told(
            "A ledger: number | date | customer | site | goods | amount in euros (negative for refunds).",
            lines,
            question,
            form,
            answer,
        )
