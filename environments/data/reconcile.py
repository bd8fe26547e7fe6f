"""Compare two systems' exports of the same payments and say what differs."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.deliverables import Deliverables, cents, table
from rewards.tables import write_csv


class Reconcile(Deliverables):
    """References are spelt in two ways, one side splits payments into parts, amounts differ in sign and unit."""

    id = "data/reconcile"
    domain = "data"
    skills = ("joins", "parsing")

    def draw(self, rng: random.Random, level: int) -> Draft:
        ours: list[list[str]] = []
        theirs: list[list[str]] = []
        rows = []
        tolerance = rng.choice((0, 1, 2, 5))
        for number in rng.sample(range(1, 99999), 12 * level**2):
            year, amount = rng.choice((2023, 2024)), rng.randint(2000, 900_000)
            key = f"INV-{year}-{number:05d}"
            other = amount
            fate = rng.choice(("match", "match", "match", "amount", "ours", "theirs"))
            if fate == "match":
                other += rng.choice((0, 0, tolerance, -tolerance))
            elif fate == "amount":
                other += rng.choice((-1, 1)) * rng.choice((tolerance + 1, 90, 1000))
            if fate != "theirs":
                ours.append([key, str(cents(amount))])
            if fate != "ours":
                parts = [other]
                if level >= 2 and rng.random() < 0.3:
                    first = rng.randint(1, other - 1)
                    parts = [first, other - first]
                if level >= 3 and rng.random() < 0.2:
                    parts += [777, -777]
                short = rng.choice((f"{year}/{number}", f"inv {year}-{number:05d}", f"INV{year}{number:05d}"))
                theirs += [[short, str(part)] for part in parts]
            if fate == "match":
                continue
            left, right = ("" if fate == "theirs" else cents(amount)), ("" if fate == "ours" else cents(other))
            kind = {"amount": "amount differs", "ours": "missing at processor", "theirs": "missing in ledger"}[fate]
            rows.append([key, kind, left, right])
        rng.shuffle(ours)
        rng.shuffle(theirs)
        rows.sort(key=lambda r: r[0])
        text = (
            "ledger.csv (invoice,amount; in EUR) and processor.csv (reference,cents) record the same payments. The "
            "processor writes the invoice INV-2024-00042 as `2024/42`, `inv 2024-00042` or `INV202400042`, and may "
            "split a payment into several lines with one invoice, or book and reverse some of it: add them up. Two "
            f"amounts match if they differ by at most {tolerance} cents. Write differences.csv with the header "
            "invoice,kind,ledger,processor: kind is `amount differs`, `missing at processor` or `missing in ledger`; "
            "invoices in the ledger's spelling; amounts in EUR with two decimals, empty where missing; matching "
            "invoices are left out; sorted by invoice. Then answer `done`."
        )
        files = {
            "ledger.csv": write_csv(("invoice", "amount"), ours),
            "processor.csv": write_csv(("reference", "cents"), theirs),
        }
        wanted = {"differences.csv": table(("invoice", "kind", "ledger", "processor"), rows)}
        return Draft(text, "done", {"files": files, "wanted": wanted})
