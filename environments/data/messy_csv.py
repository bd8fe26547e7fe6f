"""Clean a messy export by stated rules."""

from __future__ import annotations

import random
from datetime import date, timedelta

from environments.base import Draft
from environments.deliverables import CITIES, FIRST, LAST, Deliverables, cents, table

MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
COUNTRIES = {
    "Netherlands": ("NL", "nl", "Netherlands", "The Netherlands", "NETHERLANDS"),
    "Germany": ("DE", "Germany", "Deutschland", "germany"),
    "France": ("FR", "fr", "France", "FRANCE"),
    "Poland": ("PL", "Poland", "Polska", "poland"),
}
MISSING = ("", "n/a", "N/A", "-", "null", "unknown")


class MessyCsv(Deliverables):
    """Blanks, three date styles, decimal commas, quoted newlines, aliases, missing marks, repeated and stray rows."""

    id = "data/messy_csv"
    domain = "data"
    skills = ("cleaning", "parsing")

    def draw(self, rng: random.Random, level: int) -> Draft:
        clean, messy = [], []
        for number in range(rng.randint(8, 12) * level**2):
            code = f"C{rng.randint(100, 999)}{number:03d}"
            name = f"{rng.choice(FIRST)} {rng.choice(LAST)}"
            day, spend = date(2022, 1, 1) + timedelta(rng.randrange(1000)), rng.randint(100, 2_500_000)
            country, city = rng.choice(sorted(COUNTRIES)), rng.choice(CITIES)
            row = [code, name, day.isoformat(), str(cents(spend)), country, city]
            written = [
                rng.choice((code, code.lower(), f" {code}")),
                rng.choice((name, f"  {name} ", name.replace(" ", "   "))),
                _day(rng, day),
                _amount(rng, spend, level),
                rng.choice(COUNTRIES[country]),
                rng.choice((city, f"{city}  ")),
            ]
            if level >= 2 and rng.random() < 0.25:
                column = rng.choice((2, 3, 5))
                row[column], written[column] = "", rng.choice(MISSING)
            if level >= 3 and rng.random() < 0.2:
                written[5] = written[5].strip() + "\n"
            clean.append(row)
            messy.append(written)
            if rng.random() < 0.2:  # the same record once more, spelt otherwise, which the first one wins over
                messy.append([code.lower(), name.upper(), "1 Jan 2020", "1.00", "PL", "Leeds"])
        lines = ["Customer export;;;;;", ";;;;;"] if level >= 2 else []
        lines.append("Code;Full name;Since;Spend;Country;City")
        lines += [";".join(f'"{c}"' if "\n" in c or rng.random() < 0.1 else c for c in row) for row in messy]
        if level >= 2:
            lines += [";;;;;", f"Total rows: {len(messy)};;;;;"]
        header = ["code", "name", "since", "spend", "country", "city"]
        aliases = "; ".join(f"{name}: {', '.join(a)}" for name, a in COUNTRIES.items())
        text = (
            "export.csv is a messy export (semicolons, quotes as in CSV). Write clean.csv, comma-separated, with the "
            "header code,name,since,spend,country,city and one line per customer in the order of first appearance.\n"
            "- Trim every value and make runs of white space in it one blank; codes in upper case.\n- Dates appear "
            "as 2024-03-31, 31/03/2024 (day first) or 31 Mar 2024: write 2024-03-31.\n- Amounts may have a currency "
            "sign and separators: the last `.` or `,` followed by exactly two digits at the end is the decimal mark, "
            f"every other one separates thousands. Write 1234.50.\n- Countries by their English name ({aliases}).\n- "
            f"A value that is, trimmed, one of {', '.join(repr(m) for m in MISSING)} is missing: leave it empty.\n- "
            "Of several lines with one code only the first counts. Titles, totals and empty lines are no customers.\n"
            "Then answer `done`."
        )
        return Draft(
            text,
            "done",
            {"files": {"export.csv": "\n".join(lines) + "\n"}, "wanted": {"clean.csv": table(header, clean)}},
        )


def _day(rng: random.Random, day: date) -> str:
    return rng.choice((day.isoformat(), f"{day:%d/%m/%Y}", f"{day.day} {MONTHS[day.month - 1]} {day.year}"))


def _amount(rng: random.Random, amount: int, level: int) -> str:
    whole, part = divmod(amount, 100)
    styles = [f"{whole}.{part:02d}", f"{whole:,}.{part:02d}", f"{whole:,}".replace(",", ".") + f",{part:02d}"]
    text = rng.choice(styles[: 1 + level])
    if part == 0 and level >= 2:
        text = rng.choice((text, f"{whole:,}"))
    return rng.choice((text, f"€{text}", f"{text} EUR") if level >= 2 else (text, f"€{text}"))
