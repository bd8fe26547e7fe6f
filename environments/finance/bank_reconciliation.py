"""Reconcile the cash book with the bank statement."""

from __future__ import annotations

import random
from datetime import date, timedelta

from environments.base import Draft
from environments.deliverables import LAST, Deliverables, cents, table, value
from rewards.tables import write_csv

OPEN = ("outstanding cheque", "deposit in transit")


class BankReconciliation(Deliverables):
    """Outstanding cheques, deposits in transit, fees, bounced cheques, swapped digits, last month's items."""

    id = "finance/bank_reconciliation"
    domain = "finance"
    skills = ("accounting", "matching")

    def draw(self, rng: random.Random, level: int) -> Draft:
        opening, number = rng.randint(200_000, 900_000), rng.randint(1000, 8000)
        book: list[tuple[date, str, str, int]] = []
        bank: list[tuple[date, str, int]] = []
        items: list[tuple[str, str, int]] = []
        first = date(2024, rng.randint(1, 12), 1)
        ledger = statement = opening
        for _ in range(8 * level**2):
            day, number = first + timedelta(rng.randrange(26)), number + 1
            cheque, amount = rng.random() < 0.5, rng.randint(1000, 300_000)
            reference, sign = (f"CHQ{number}", -1) if cheque else (f"DEP{number}", 1)
            booked = amount
            fate = rng.choice(("both",) * 4 + ("open", "error") * (level >= 2) + ("open",))
            if fate == "error":
                digits = f"{amount:06d}"
                booked = int(digits[:3] + digits[4] + digits[3] + digits[5])
                if booked == amount or booked == 0:
                    booked, fate = amount, "both"
            book.append((day, reference, rng.choice(LAST), sign * booked))
            ledger += sign * booked
            if fate == "open":
                items.append((reference, OPEN[0] if cheque else OPEN[1], sign * amount))
                continue
            bank.append(
                (
                    day + timedelta(rng.randint(0, 3)),
                    reference.replace("CHQ", "CHEQUE 00" if rng.random() < 0.5 else "CHQ"),
                    sign * amount,
                )
            )
            statement += sign * amount
            if fate == "error":
                items.append((reference, "book error", sign * (amount - booked)))
            elif not cheque and level >= 2 and rng.random() < 0.15:
                bank.append((day + timedelta(4), f"RETURNED {reference}", -amount))
                statement -= amount
                items.append((reference, "returned deposit", -amount))
        for k in range(level):
            charge = rng.randint(300, 5000)
            bank.append((first + timedelta(27), f"FEE{k + 1}", -charge))
            items.append((f"FEE{k + 1}", "bank charge", -charge))
            statement -= charge
        if level >= 2:
            interest = rng.randint(100, 9000)
            bank.append((first + timedelta(27), "INT1", interest))
            items.append(("INT1", "interest", interest))
            statement += interest
        before = 0
        if level >= 3:  # cheques of the month before: in the opening ledger balance, paid only now
            before = rng.randint(1000, 50_000)
            bank.append((first + timedelta(1), "CHQ0999", -before))
        bank.sort()
        book.sort()
        items.sort()
        adjusted = statement + sum(amount for _, kind, amount in items if kind in OPEN)
        opening_bank = opening + before
        text = (
            "cash_book.csv (date,reference,party,amount) and bank.csv (date,text,amount) cover one month; payments "
            "are negative. A bank text like CHEQUE 001234 is the book's CHQ1234. balances.json has both opening "
            "balances. "
            + (
                f"Last month's only open item is cheque CHQ0999 of {cents(before)}, which is no item of this month. "
                if before
                else ""
            )
            + "If one reference has different amounts, the bank is right (book error). RETURNED means that the bank "
            "took a deposit back.\nWrite items.csv with the header reference,kind,amount, by reference: kind is one "
            "of outstanding cheque, deposit in transit, bank charge (FEE), interest (INT), returned deposit, book "
            "error. The amount is what must be added to the bank balance (first two kinds) or to the book balance "
            "(the others) to get the true balance. Write balances_out.json with book_closing, bank_closing (both "
            "before adjustments) and adjusted (the true balance, which must be reached from both sides). Then answer "
            "`done`."
        )
        files = {
            "cash_book.csv": write_csv(
                ("date", "reference", "party", "amount"), [[d, r, p, cents(a)] for d, r, p, a in book]
            ),
            "bank.csv": write_csv(("date", "text", "amount"), [[d, t, cents(a)] for d, t, a in bank]),
            "balances.json": f'{{"book_opening": "{cents(opening)}", "bank_opening": "{cents(opening_bank)}"}}\n',
        }
        closing = {
            "book_closing": str(cents(ledger)),
            "bank_closing": str(cents(statement)),
            "adjusted": str(cents(adjusted)),
        }
        wanted = {
            "items.csv": table(("reference", "kind", "amount"), [[r, k, cents(a)] for r, k, a in items]),
            "balances_out.json": value(closing),
        }
        return Draft(text, "done", {"files": files, "wanted": wanted})
