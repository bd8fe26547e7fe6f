"""Bring the workbooks of several branches into one table."""

from __future__ import annotations

import random
from datetime import date, timedelta

from environments.base import Draft
from environments.deliverables import CITIES, LAST, Deliverables, cents, table
from environments.office.writing import Value, workbook
from environments.task import Task

ALIASES = {
    "date": ("Date", "Day", "Booked on"),
    "customer": ("Customer", "Client"),
    "units": ("Units", "Qty"),
    "amount": ("Amount EUR", "Amount (kEUR)"),
}


class ConsolidateWorkbooks(Deliverables):
    """Columns in other orders and words, dates as serial numbers, thousands, sub-totals, sheets that do not count."""

    id = "office/consolidate_workbooks"
    domain = "office"
    skills = ("spreadsheets", "cleaning")

    def draw(self, rng: random.Random, level: int) -> Draft:
        books: dict[str, dict[str, list[list[Value]]]] = {}
        rows = []
        for city in rng.sample(CITIES, 2 * level):
            sheets: dict[str, list[list[Value]]] = {}
            for month in rng.sample(range(1, 13), level):
                order = rng.sample(sorted(ALIASES), 4)
                names = {k: rng.choice(ALIASES[k]) for k in order}
                thousand, serial = names["amount"].endswith("(kEUR)"), rng.random() < 0.6
                lines: list[list[Value]] = [[f"{city}, month {month}"]] if level >= 2 else []
                lines.append([names[k] for k in order])
                sums = [0, 0]
                for _ in range(rng.randint(3, 6)):
                    day = date(2024, month, 1) + timedelta(rng.randrange(28))
                    units, amount, customer = rng.randint(1, 50), rng.randint(100, 999_999), rng.choice(LAST)
                    number = str(cents(amount)) if not thousand else f"{amount / 100000:.5f}"
                    cells = {
                        "date": (day - date(1899, 12, 30)).days if serial else day.isoformat(),
                        "units": units,
                        "customer": rng.choice((customer, f" {customer} ")),
                        "amount": float(number),
                    }
                    lines.append([cells[k] for k in order])
                    sums = [sums[0] + units, sums[1] + amount]
                    rows.append([city, day.isoformat(), customer, units, cents(amount)])
                    if level >= 3 and rng.random() < 0.2:
                        lines.append([None] * 4)
                end = {"date": "Total", "customer": None, "units": sums[0], "amount": None}
                lines.append([end[k] for k in order])
                sheets[f"{month:02d}-2024"] = lines
            if level >= 2:
                sheets["Draft 2025"] = [["Date", "Client", "Units", "Amount EUR"], ["2025-01-05", "Nobody", 1, 5]]
            books[f"{city}.xlsx"] = sheets
        rows.sort(key=lambda r: (r[0], r[1], r[2], r[3], r[4]))
        words = "; ".join(f"{k}: {', '.join(v)}" for k, v in ALIASES.items())
        text = (
            "Each branch sent a workbook, branches/<city>.xlsx (python3 has only its standard library here). Collect "
            "the sales of all sheets named MM-2024; other sheets do not count. In each sheet one row names the "
            f"columns, in any order and with one of these words ({words}); a title may be above it, and rows whose "
            "date is `Total` or that are empty are no sales. Dates are text or serial day numbers (45292 is "
            "2024-01-01). A column in kEUR holds thousands of EUR. Write all.csv with the header "
            "city,date,customer,units,amount: ISO dates, trimmed customers, amounts in EUR with two decimals, one "
            "row a sale (equal ones stay), sorted by the columns from left to right (units and amounts as numbers). "
            "Then answer `done`."
        )
        header = ("city", "date", "customer", "units", "amount")
        return Draft(text, "done", {"books": books, "wanted": {"all.csv": table(header, rows)}})

    def files(self, task: Task) -> dict[str, str | bytes]:
        books = task.info["books"].items()
        return {f"branches/{n}": workbook(b) for n, b in books}
