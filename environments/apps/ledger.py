"""Reconcile a sheet of invoices with a bank statement, cell by cell."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.apps.records import App, Records
from environments.base import Draft
from environments.tools import ToolError, tool

ROWS = 20
"""Rows of one reading."""


class Sheets(Records):
    """Tables: the cells of sheets, row by row (row 1 is the header)."""

    @tool
    def list_sheets(self) -> list[dict[str, Any]]:
        """The sheets with their columns and number of rows."""
        return [{"sheet": k, "columns": s["1"], "rows": len(s)} for k, s in self.db.items()]

    @tool
    def read_rows(self, sheet: str, first: int, last: int) -> dict[str, Any]:
        """The cells of rows first to last, at most 20."""
        if sheet not in self.db or not 0 <= last - first < ROWS:
            raise ToolError(f"there is no such sheet, or these are not 1 to {ROWS} rows")
        return {str(n): self.db[sheet][str(n)] for n in range(first, last + 1) if str(n) in self.db[sheet]}

    @tool
    def write_cell(self, sheet: str, row: int, column: str, value: str) -> str:
        """Write one cell below the header."""
        if sheet not in self.db or str(row) not in self.db[sheet] or row < 2 or column not in self.db[sheet]["1"]:
            raise ToolError("there is no such cell below a header")
        self.db[sheet][str(row)][column] = value
        return "written"

    @tool
    def append_row(self, sheet: str, cells: dict) -> str:
        """Append a row of texts by column; columns that are left out stay empty."""
        if sheet not in self.db or set(cells) - set(self.db[sheet]["1"]):
            raise ToolError("there is no such sheet or column")
        if not all(isinstance(value, str) for value in cells.values()):
            raise ToolError("cells are texts")
        row = len(self.db[sheet]) + 1
        self.db[sheet][str(row)] = dict.fromkeys(self.db[sheet]["1"], "") | cells
        return f"row {row}"


class Ledger(App):
    """References are typed by people, several payments make one invoice, and some belong to none."""

    id = "apps/ledger"
    skills = ("matching", "arithmetic", "tools")
    world = Sheets

    def draw(self, rng: random.Random, level: int) -> Draft:
        def sheet(rows: list[dict[str, str]], columns: str) -> dict[str, Any]:
            header = {name: name for name in columns.split()}
            return {str(n): row for n, row in enumerate([header, *rows], start=1)}

        numbers = rng.sample(range(100, 999), (5, 11, 22)[level - 1])
        invoices, payments = list[dict[str, str]](), list[tuple[str, str, str]]()
        want: dict[str, Any] = {"exceptions": []}
        plan: list[Any] = [["list_sheets", {}]]
        for place, number in enumerate(numbers, start=2):
            payer, cents = words.company(rng), rng.randint(2000, 900_000)
            invoices.append({"invoice": f"INV-{number:05d}", "customer": payer, "amount": _euro(cents), "status": ""})
            kind = rng.choice(["paid", "paid", "split", "partial", "overpaid", "unpaid"])
            part = rng.randint(1, cents // 2)
            parts = {
                "paid": [cents], "split": [part, cents - part], "partial": [part], "unpaid": [],
                "overpaid": rng.choice([[cents, cents], [cents + part]]),
            }[kind]  # fmt: skip
            for paid in parts:
                payments.append((payer, self._reference(rng, number), _euro(paid)))
            status = "paid" if kind == "split" else kind
            want[f"invoices/{place}/status"] = status
            plan.append(["write_cell", {"sheet": "invoices", "row": place, "column": "status", "value": status}])
        spare = sorted(set(range(100, 999)) - set(numbers))
        for number in rng.sample(spare, 1 + level):
            payments.append((words.company(rng), self._reference(rng, number), _euro(rng.randint(1000, 90_000))))
        rng.shuffle(payments)
        statement = list[dict[str, str]]()
        for payer, reference, amount in payments:
            entry = f"S{rng.randint(10, 99)}{len(statement):02d}"
            statement.append({"entry": entry, "payer": payer, "reference": reference, "amount": amount})
            if not any(str(n) in reference for n in numbers):
                cells = {"entry": entry, "amount": amount}
                want["exceptions"].append(cells)
                plan.append(["append_row", {"sheet": "exceptions", "cells": cells}])
        for name, count in (("invoices", len(invoices)), ("statement", len(statement))):
            looks = range(1, count + 2, ROWS)
            plan[1:1] = [["read_rows", {"sheet": name, "first": n, "last": n + ROWS - 1}] for n in looks]
        text = (
            "Reconcile the sheet `invoices` with the sheet `statement` (our bank's). An entry belongs to the invoice "
            "whose number is in its reference, however it is written (`INV-00123`, `inv 123`, `Invoice no. 0123`); "
            "other numbers in a reference are dates and customer numbers. Write into the column `status` of each "
            "invoice: `paid` if its entries add up to the amount, `partial` if to less, `overpaid` if to more, "
            "`unpaid` if it has none. Append each entry that belongs to no invoice to the sheet `exceptions`, with "
            "entry and amount as they are in the statement. Answer `done`."
        )
        db = {
            "invoices": sheet(invoices, "invoice customer amount status"),
            "statement": sheet(statement, "entry payer reference amount"),
            "exceptions": sheet([], "entry amount"),
        }
        return self.draft(text, db, want, plan)

    def _reference(self, rng: random.Random, number: int) -> str:
        """A payer's text about an invoice; its other numbers have at most two digits or a letter before them."""
        how = rng.choice(["INV-{n:05d}", "inv {n}", "INV{n:05d}", "Invoice no. {n:04d}", "invoice {n}", "our inv.{n}"])
        more = rng.choice(
            ["", f" of {rng.randint(1, 28)}.{rng.randint(1, 12)}.", f" cust K{rng.randint(10, 99)}", " thanks"]
        )
        return how.format(n=number) + more


def _euro(cents: int) -> str:
    """123456 is `1,234.56`."""
    return f"{cents // 100:,}.{cents % 100:02d}"
