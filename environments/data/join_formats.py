"""One report from a CSV file, JSON lines, a fixed-width file and an XML file."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from datetime import date, timedelta
from typing import Any

from environments.base import Draft
from environments.deliverables import FIRST, LAST, Deliverables, cents, rounded, table

CURRENCIES = ("EUR", "GBP", "SEK", "PLN")


class JoinFormats(Deliverables):
    """Keys are spelt differently in each file, prices are valid from a day on, some rows have no partner."""

    id = "data/join_formats"
    domain = "data"
    skills = ("parsing", "joins")

    def draw(self, rng: random.Random, level: int) -> Draft:
        skus = rng.sample(range(100, 9999), 3 + 3 * level)
        prices = {
            s: sorted(
                (date(2024, 1, 1) + timedelta(rng.choice((0, 45, 90, 140, 200)) + k), rng.randint(150, 20000))
                for k in range(rng.randint(1, level + 1))
            )
            for s in skus
        }
        reps = {f"R{i:02d}": f"{rng.choice(FIRST)} {rng.choice(LAST)}" for i in range(1, 3 + 2 * level)}
        rates = {c: rng.randint(800, 12000) for c in CURRENCIES[1:]} | {"EUR": 10000}
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        sales, dropped = [], 0
        for n in range(20 * level**2):
            sku, day = rng.choice([*skus, 10000 + n]), date(2024, 1, 10) + timedelta(rng.randrange(340))
            rep = rng.choice([*reps, "R99"])
            quantity, currency = rng.randint(1, 9), rng.choice(CURRENCIES)
            sales.append(
                {
                    "sale": n + 1,
                    "item": {"sku": f"SKU-{sku:05d}"},
                    "rep": rep.lower() if n % 3 else rep,
                    "qty": quantity,
                    "day": day.isoformat(),
                    "currency": currency,
                }
            )
            price = next((p for start, p in reversed(prices.get(sku, [])) if start <= day), None)
            if price is None:
                dropped += 1
                continue
            one = sums[reps.get(rep, "(none)")]
            one[0] += quantity
            one[1] += int(rounded(cents(price) * quantity * rates[currency] / 10000) * 100)
        rows: list[list[Any]] = [[name, n, cents(money)] for name, (n, money) in sums.items()]
        rows.sort(key=lambda r: (-r[2], r[0]))
        csv = "rep_id,full_name\n" + "".join(f'{k},"{v}"\n' for k, v in reps.items())
        fixed = "".join(f"{s:<8}{d:%Y%m%d}{p:>10}\n" for s in skus for d, p in rng.sample(prices[s], len(prices[s])))
        xml = "".join(f'  <rate to="EUR" from="{c}">{r / 10000:.4f}</rate>\n' for c, r in rates.items() if c != "EUR")
        text = (
            "Four files belong together: sales.jsonl (one sale a line), reps.csv, prices.txt (fixed width: SKU "
            "number in columns 1-8, valid-from day YYYYMMDD in 9-16, price in hundredths in 17-26) and rates.xml. "
            "SKU-00042 in the sales is 42 in prices.txt; rep ids differ by case. A sale's price is the one with the "
            "latest valid-from day that is not after the sale; sales without a price are left out. Prices are in the "
            "sale's currency: qty * price * rate to EUR (EUR itself: 1) is rounded per sale to cents, half up.\n"
            "Write report.csv with the header rep,quantity,eur: totals by the representative's full name, '(none)' "
            "where "
            "the id is not in reps.csv, largest eur first, equal ones by name; who made no sale that counts has no "
            'row. Write dropped.json: {"dropped": number '
            "of sales left out}. Then answer `done`."
        )
        files = {
            "sales.jsonl": "".join(json.dumps(s) + "\n" for s in sales),
            "reps.csv": csv,
            "prices.txt": fixed,
            "rates.xml": f'<?xml version="1.0"?>\n<rates day="2024-12-31">\n{xml}</rates>\n',
        }
        wanted = {
            "report.csv": table(("rep", "quantity", "eur"), rows),
            "dropped.json": {"value": {"dropped": dropped}},
        }
        return Draft(text, "done", {"files": files, "wanted": wanted})
