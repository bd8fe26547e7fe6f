"""A printed report (fixed-width pages) back into one table."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.deliverables import CITIES, LAST, Deliverables, cents, table

GOODS = (
    "stainless steel brackets",
    "LED panel",
    "garden hose with fittings",
    "desk lamp",
    "oak shelf, oiled",
    "paper A4",
    "set of wood screws 4x40 mm",
    "USB cable",
)


class PageTables(Deliverables):
    """Page heads and feet, carried-forward lines, wrapped cells (over a page break too), groups in own lines."""

    id = "office/page_tables"
    domain = "office"
    skills = ("parsing", "text")

    def draw(self, rng: random.Random, level: int) -> Draft:
        wide, length = rng.choice((12, 14, 16)), rng.choice((14, 18, 22))
        body: list[tuple[str, int]] = []  # (line, running sum after it)
        rows, running = [], 0
        for city in rng.sample(CITIES, 1 + level):
            if level >= 2:
                body.append((f"Branch: {city}", running))
            for _ in range(rng.randint(3, 4 + 3 * level)):
                number, customer, goods = rng.randint(10000, 99999), rng.choice(LAST), rng.choice(GOODS)
                amount = rng.randint(-50_000, 900_000)
                running += amount
                rows.append([*([city] if level >= 2 else []), number, customer, goods, cents(amount)])
                shown = f"{abs(cents(amount)):,}" + ("-" if amount < 0 else "")
                for k, piece in enumerate(_wrap(goods, wide)):
                    head = f"{number:<8}{customer:<12}" if k == 0 else " " * 20
                    body.append((f"{head}{piece:<{wide}}  {shown if k == 0 else '':>14}".rstrip(), running))
            if level >= 3:
                body.append((f"{'':<20}{'Subtotal':<{wide}}  {'see end of list':>14}", running))
        pages: list[str] = []
        at = 0
        columns = f"{'No.':<8}{'Customer':<12}{'Goods':<{wide}}  {'Amount':>14}"
        while at < len(body):
            part = body[at : at + length]
            at += length
            lines = ["", f"SALES LIST                         Page {len(pages) + 1}", columns, "-" * len(columns)]
            if pages:
                before = body[at - length - 1][1]
                lines.append(f"{'':<20}{'Brought fwd':<{wide}}  {_money(before):>14}")
            lines += [line for line, _ in part]
            word = "Carried fwd" if at < len(body) else "Total"
            lines += [f"{'':<20}{word:<{wide}}  {_money(part[-1][1]):>14}", "", "* printed by the system *"]
            pages.append("\n".join(lines))
        header = [*(["branch"] if level >= 2 else []), "number", "customer", "goods", "amount"]
        text = (
            "list.txt is a printed sales list, pages separated by form feeds. Write list.csv with the header "
            f"{','.join(header)}: one row per sale in order. Long goods go on in the next line (the words are joined "
            "by one blank), also on the next page; a minus is printed behind the amount; "
            + ("a line `Branch: ...` holds for the sales below it; " if level >= 2 else "")
            + "heads, feet, carried sums, subtotals and totals are no sales. Amounts as 1234.50. Then answer `done`."
        )
        return Draft(
            text, "done", {"files": {"list.txt": "\f".join(pages) + "\n"}, "wanted": {"list.csv": table(header, rows)}}
        )


def _money(amount: int) -> str:
    return f"{abs(cents(amount)):,}" + ("-" if amount < 0 else "")


def _wrap(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
