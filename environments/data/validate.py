"""Report every violation of a data contract, and nothing else."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.deliverables import FIRST, LAST, Deliverables, table
from rewards.tables import write_csv

HEADER = (
    "order_id",
    "customer",
    "email",
    "country",
    "quantity",
    "unit_price",
    "total",
    "ordered",
    "shipped",
    "replaces",
)
RULES = """\
format: order_id must be O- and six digits
duplicate: order_id must not be on an earlier line (compare the text as it is)
required: customer must not be blank
email: email is empty, or has exactly one @ with something before it and a dot after it, no blanks
country: country must be a code of countries.txt
quantity: quantity must be a whole number from 1 to {most}
price: unit_price must have exactly two decimals (12.50) and not be negative
total: total must be quantity * unit_price (checked only where quantity and price follow their rules)
dates: shipped is empty, or not before ordered (all dates are valid ISO days)
reference: replaces is empty, or the order_id of an earlier line"""


class Validate(Deliverables):
    """Violations are planted, several a line; look-alikes (0 prices, same-day shipping) are legal."""

    id = "data/validate"
    domain = "data"
    skills = ("validation", "parsing")

    def draw(self, rng: random.Random, level: int) -> Draft:
        most, countries = (
            rng.randint(20, 60),
            sorted(rng.sample(["AT", "BE", "CH", "CZ", "DE", "DK", "ES", "FI", "FR", "IT", "NL", "PL", "PT", "SE"], 6)),
        )
        rows: list[list[Any]] = []
        found: list[tuple[int, str, str]] = []
        ids: list[str] = []
        for line in range(2, 12 + 25 * level):
            quantity, price = rng.randint(1, most), rng.choice((0, rng.randint(1, 9000), rng.randint(1, 9000)))
            name, day = f"{rng.choice(FIRST)} {rng.choice(LAST)}", rng.randint(1, 20)
            row = {
                "order_id": f"O-{line:02d}{rng.randint(0, 9999):04d}",
                "customer": name,
                "email": rng.choice(("", f"{name.lower().replace(' ', '.')}@mail.example.com")),
                "country": rng.choice(countries),
                "quantity": str(quantity),
                "unit_price": f"{price / 100:.2f}",
                "total": f"{quantity * price / 100:.2f}",
                "ordered": f"2024-05-{day:02d}",
                "shipped": rng.choice(("", f"2024-05-{day:02d}", f"2024-05-{day + 9:02d}")),
                "replaces": rng.choice(("", "", "", *ids[-3:])),
            }
            for rule in rng.sample(_PLANTS, rng.choice((0, 0, 1, 1, level))):
                column = _plant(rng, rule, row, ids, most, day)
                if column:
                    found.append((line, column, rule))
            if {"quantity", "price"} & {r for n, _, r in found if n == line}:
                found = [f for f in found if f[0] != line or f[2] != "total"]
            ids.append(row["order_id"])
            rows.append([row[h] for h in HEADER])
        found.sort(key=lambda f: (f[0], HEADER.index(f[1]), f[2]))
        text = (
            "orders.csv must follow these rules (rule name first):\n"
            + RULES.format(most=most)
            + "\nWrite violations.csv "
            "with the header line,column,rule: one row per violation, line counted in the file (the header is line "
            "1), column the one that the rule speaks of first, rule its name. Sort by line, then by the order of the "
            "columns in the file, then by rule. Then answer `done`."
        )
        files = {"orders.csv": write_csv(HEADER, rows), "countries.txt": "\n".join(countries) + "\n"}
        return Draft(
            text, "done", {"files": files, "wanted": {"violations.csv": table(("line", "column", "rule"), found)}}
        )


_PLANTS = ("format", "duplicate", "required", "email", "country", "quantity", "price", "total", "dates", "reference")


def _plant(rng: random.Random, rule: str, row: dict[str, str], ids: list[str], most: int, day: int) -> str | None:
    """Break one rule in a row, and nothing else; the column, or None where it cannot be done here."""
    if rule == "format":
        if row["order_id"] in ids:
            return None
        row["order_id"] = rng.choice((row["order_id"].lower(), row["order_id"] + "0", row["order_id"].replace("-", "")))
        return "order_id"
    if rule == "duplicate":
        legal = [i for i in ids if i.startswith("O-") and len(i) == 8]
        if not legal or not (row["order_id"].startswith("O-") and len(row["order_id"]) == 8):
            return None
        row["order_id"] = rng.choice(legal)
        return "order_id"
    if rule == "reference" and not ids:
        return None
    column, wrong = {
        "required": ("customer", rng.choice(("", "  "))),
        "email": ("email", rng.choice(("info@example", "a@b@example.com", "@example.com", "ann lee@example.com"))),
        "country": ("country", rng.choice(("XX", row["country"].lower(), "UK"))),
        "quantity": ("quantity", rng.choice(("0", str(most + 1), "2.5", "-3", "two", ""))),
        "price": ("unit_price", rng.choice(("-1.00", "3.5", "7", "1,20", ""))),
        "total": ("total", f"{float(row['total']) + rng.choice((0.01, 1, 10)):.2f}"),
        "dates": ("shipped", f"2024-0{rng.choice((3, 4))}-{day:02d}"),
        "reference": ("replaces", f"O-99{rng.randint(0, 9999):04d}"),
    }[rule]
    row[column] = wrong
    return column
