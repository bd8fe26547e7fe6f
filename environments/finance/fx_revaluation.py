"""Open items in foreign currencies: realised and unrealised differences."""

from __future__ import annotations

import random
from datetime import date, timedelta
from fractions import Fraction

from environments.base import Draft
from environments.deliverables import LAST, Deliverables, cents, rounded, table, value
from rewards.tables import write_csv


class FxRevaluation(Deliverables):
    """Part payments at their day's rate, liabilities with the other sign, days without a rate."""

    id = "finance/fx_revaluation"
    domain = "finance"
    skills = ("accounting", "currencies")

    def draw(self, rng: random.Random, level: int) -> Draft:
        currencies = {"USD": 9200, "GBP": 11700, "JPY": 62, "CHF": 10400}
        first, rates = date(2024, 10, 1), []
        known: dict[tuple[str, date], int] = {}
        for currency, rate in currencies.items():
            for k in range(92):
                day = first + timedelta(k)
                rate += rng.randint(-max(1, rate // 150), max(1, rate // 150))
                if k == 0 or (day.weekday() < 5 and (rng.random() < 0.95 or k == 91)):
                    known[currency, day] = rate
                    rates.append([day, currency, f"{rate / 10000:.4f}"])

        def rate_on(currency: str, day: date) -> int:
            while (currency, day) not in known:
                day -= timedelta(1)
            return known[currency, day]

        documents, payments, rows = [], [], []
        sums = {"realised": 0, "unrealised": 0}
        for number in range(1, 4 + 5 * level):
            kind, currency = rng.choice(("receivable", "payable")), rng.choice(sorted(currencies))
            amount, day = rng.randint(1000, 500_000) * 100, first + timedelta(rng.randrange(60))
            booked = int(rounded(Fraction(amount * rate_on(currency, day), 10_000), 0))
            documents.append([f"D{number:03d}", kind, rng.choice(LAST), day, currency, cents(amount), cents(booked)])
            left, carried, realised = amount, booked, 0
            for _ in range(rng.randint(0, level)):
                day += timedelta(rng.randint(1, 15))
                part = left if rng.random() < 0.3 else rng.randint(1, max(1, left // 200)) * 100
                if day > date(2024, 12, 31) or left == 0:
                    break
                payments.append([day, f"D{number:03d}", cents(part)])
                release = carried if part == left else int(rounded(Fraction(booked * part, amount), 0))
                paid = int(rounded(Fraction(part * rate_on(currency, day), 10_000), 0))
                realised += (paid - release) * (1 if kind == "receivable" else -1)
                left, carried = left - part, carried - release
            closing = int(rounded(Fraction(left * rate_on(currency, date(2024, 12, 31)), 10_000), 0))
            unrealised = (closing - carried) * (1 if kind == "receivable" else -1)
            sums["realised"] += realised
            sums["unrealised"] += unrealised
            rows.append(
                [f"D{number:03d}", cents(left), cents(carried), cents(closing), cents(realised), cents(unrealised)]
            )
        payments.sort()
        rng.shuffle(rates)
        text = (
            "documents.csv holds receivables and payables in foreign currency "
            "(document,kind,party,date,currency,amount,eur, where eur is the value at booking), payments.csv what "
            "was paid on them, in the document's currency, rates.csv EUR per unit of currency. A day without a rate "
            "has that of the last day before it which has one. A payment releases its share of the document's "
            "original eur value (payment / amount, rounded to cents), the one that settles the rest releases what is "
            "left; the difference from the payment's value at its day's rate is realised. What is open on 2024-12-31 "
            "is revalued at that day's rate: unrealised. Gains are positive, losses negative, for payables too. "
            "Rounding is to cents, halves up, for every single EUR value.\nWrite revaluation.csv with the header "
            "document,open,carried,revalued,realised,unrealised, one row a document (settled ones too) in the given "
            "order, and totals.json with the sums realised and unrealised. Then answer `done`."
        )
        files = {
            "documents.csv": write_csv(["document", "kind", "party", "date", "currency", "amount", "eur"], documents),
            "payments.csv": write_csv(("date", "document", "amount"), payments),
            "rates.csv": write_csv(("date", "currency", "rate"), rates),
        }
        header = ["document", "open", "carried", "revalued", "realised", "unrealised"]
        totals = value({k: str(cents(v)) for k, v in sums.items()})
        return Draft(
            text, "done", {"files": files, "wanted": {"revaluation.csv": table(header, rows), "totals.json": totals}}
        )
