"""Year-end adjustments in words, then income statement and balance sheet."""

from __future__ import annotations

import random
from collections import defaultdict
from fractions import Fraction

from environments.base import Draft
from environments.deliverables import Deliverables, cents, rounded, table, value
from environments.words import MONTHS
from rewards.tables import write_csv

CHART = {
    1000: "Cash at bank",
    1100: "Trade receivables",
    1150: "Allowance for doubtful debts",
    1200: "Inventory",
    1300: "Prepaid expenses",
    1500: "Equipment",
    1590: "Accumulated depreciation",
    2000: "Trade payables",
    2100: "Accrued expenses",
    2150: "Deferred revenue",
    2200: "Income tax payable",
    2600: "Bank loan",
    3000: "Share capital",
    3100: "Retained earnings",
    4000: "Sales",
    4100: "Service revenue",
    5000: "Cost of goods sold",
    6000: "Wages",
    6100: "Rent",
    6200: "Insurance",
    6300: "Depreciation expense",
    6400: "Bad debt expense",
    6500: "Interest expense",
    6900: "Income tax expense",
}


class Statements(Deliverables):
    """Accruals, prepayments, deferrals, depreciation, doubtful debts and tax on what is then the profit."""

    id = "finance/statements"
    domain = "finance"
    skills = ("accounting", "arithmetic")

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = [c for c in CHART if c not in (1000, 3100, 6300, 6400, 6900, 2200)]
        balance = defaultdict(int, {c: rng.randint(10_000, 900_000) * 100 + rng.randint(0, 99) for c in names})
        for code in balance:
            balance[code] *= -1 if 2000 <= code < 5000 or code in (1150, 1590) else 1
        balance[1590] = -balance[1500] // rng.randint(3, 6)
        balance[1150] = -rng.randint(10_000, 90_000)
        balance[4000] = -sum(balance[c] for c in balance if c >= 5000) * rng.randint(11, 16) // 10
        wages, premium, months = rng.randint(1000, 90_000) * 100, rng.randint(600, 20_000) * 1200, rng.randint(1, 9)
        percent, doubtful, tax = rng.choice((10, 15, 20, 25)), rng.choice((2, 3, 5, 8)), rng.choice((19, 21, 25, 30))
        served, rate = rng.randint(5, 90) * 10_000, rng.choice((4, 5, 6))
        balance[6200] += premium
        balance[1000] = rng.randint(100_000, 9_000_000)
        balance[3100] = -sum(balance.values())
        trial = dict(balance)
        start = MONTHS[12 - months]
        entries: list[tuple[int, int, int, str]] = [
            (6000, 2100, wages, f"Wages of {cents(wages)} for December are unpaid and not yet booked."),
            (
                1300,
                6200,
                premium * (12 - months) // 12,
                f"The premium of {cents(premium)} paid on 1 {start} for the twelve "
                "months from that day was booked to Insurance in full.",
            ),
            (6300, 1590, 0, f"Depreciate the equipment by {percent}% of its cost (straight line)."),
        ]
        if level >= 2:
            due = -int(rounded(Fraction(balance[2600] * rate, 1200), 0))
            entries.append(
                (6500, 2100, due, f"Interest at {rate}% a year on the bank loan's balance is unpaid for December.")
            )
            entries.append(
                (
                    4100,
                    2150,
                    served,
                    f"Of the service revenue {cents(served)} was invoiced for work to be done next year.",
                )
            )
        if level >= 3:
            lost = rng.randint(100, min(balance[1100] // 200, 5000)) * 100
            entries.append((1150, 1100, lost, f"A receivable of {cents(lost)} is written off against the allowance."))
            entries.append(
                (6400, 1150, 0, f"After any write-off the allowance must be {doubtful}% of the receivables.")
            )
        for debit, credit, amount, _ in entries:
            if debit == 6300:
                amount = int(rounded(Fraction(balance[1500] * percent, 100), 0))
            if debit == 6400:
                amount = int(rounded(Fraction(balance[1100] * doubtful, 100), 0)) + balance[1150]
            balance[debit] += amount
            balance[credit] -= amount
        before = -sum(v for c, v in balance.items() if c >= 4000)
        due = max(0, int(rounded(Fraction(before * tax, 100), 0)))
        balance[6900] += due
        balance[2200] -= due
        net = before - due
        shown = [
            [c, CHART[c], cents(v) if v > 0 else "", cents(-v) if v < 0 else ""]
            for c, v in sorted(balance.items())
            if v != 0
        ]

        def total(low: int, high: int) -> int:
            return sum(v for c, v in balance.items() if low <= c < high)

        wanted = {
            "revenue": -total(4000, 5000),
            "gross_profit": -total(4000, 6000),
            "profit_before_tax": before,
            "income_tax": due,
            "net_profit": net,
            "current_assets": total(1000, 1500),
            "non_current_assets": total(1500, 2000),
            "current_liabilities": -total(2000, 2600),
            "non_current_liabilities": -total(2600, 3000),
            "equity": -total(3000, 4000) + net,
        }
        said = [e[3] for e in entries]
        order = " in this order" if level >= 3 else ""
        text = (
            "trial_balance.csv is a company's trial balance at 31 December (code,account,debit,credit), chart.csv "
            f"its chart of accounts. adjustments.txt lists what must still be booked{order}; then income tax of "
            f"{tax}% on the profit before tax (none on a loss) is booked as payable. Round each amount to cents, half "
            "up.\nWrite adjusted.csv, the adjusted trial balance before closing, with the header "
            "code,account,debit,credit, by code, without accounts whose balance is zero, the other side left empty; "
            f"and statements.json with {', '.join(wanted)}. Codes: 1000-1499 current and 1500-1999 non-current assets "
            "(their contra accounts included), 2000-2599 current and 2600-2999 non-current liabilities, 3000 equity "
            "(with the year's result), 4000 revenue, 5000 cost of sales, 6000 other expenses. A loss is negative. "
            "Then answer `done`."
        )
        header = ("code", "account", "debit", "credit")
        rows = [[c, CHART[c], cents(v) if v > 0 else "", cents(-v) if v < 0 else ""] for c, v in sorted(trial.items())]
        files = {
            "trial_balance.csv": write_csv(header, rows),
            "chart.csv": write_csv(("code", "account"), list(CHART.items())),
            "adjustments.txt": "".join(f"{n}. {s}\n" for n, s in enumerate(said, 1)),
        }
        return Draft(
            text,
            "done",
            {
                "files": files,
                "wanted": {
                    "adjusted.csv": table(header, shown),
                    "statements.json": value({k: str(cents(v)) for k, v in wanted.items()}),
                },
            },
        )
