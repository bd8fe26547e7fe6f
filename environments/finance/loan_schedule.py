"""An amortisation schedule to the cent, with what happens to real loans."""

from __future__ import annotations

import random
from fractions import Fraction

from environments.base import Draft
from environments.deliverables import Deliverables, cents, rounded, table


class LoanSchedule(Deliverables):
    """Rounded instalments, a rate that is reset, extra payments, a payment holiday, and the odd last cents."""

    id = "finance/loan_schedule"
    domain = "finance"
    skills = ("interest", "schedules")

    def draw(self, rng: random.Random, level: int) -> Draft:
        amount, months = rng.randint(20, 900) * 100_000, rng.choice((12, 18, 24)) * level
        rate = rng.randint(200, 900)
        resets = {rng.randint(5, months - 3): rng.randint(150, 1100)} if level >= 2 else {}
        extras = {m: rng.randint(1, 9) * 10_000 for m in rng.sample(range(2, months - 2), level - 1)}
        holiday = rng.randint(4, months - 4) if level >= 3 else 0
        clauses = [
            f"A loan of {cents(amount)} is repaid in {months} monthly instalments, at the end of each month; the rate "
            f"is {rate / 100:.2f}% a year, a twelfth of it a month."
        ]
        clauses += [
            f"From month {m} on (its interest included) the rate is {r / 100:.2f}% a year." for m, r in resets.items()
        ]
        clauses += [
            f"With the instalment of month {m} an extra {cents(x)} is repaid." for m, x in sorted(extras.items())
        ]
        if holiday:
            clauses.append(
                f"Month {holiday} is a holiday: nothing is paid, extra payments aside, and its interest is added to "
                "the balance."
            )
        balance, rows, payment = amount, [], _instalment(amount, rate, months)
        for month in range(1, months + 1):
            if month in resets:
                rate = resets[month]
                payment = _instalment(balance, rate, months - month + 1)
            interest = int(rounded(Fraction(balance * rate, 120_000), 0))
            paid = 0 if month == holiday else payment
            if month == months or paid > balance + interest:
                paid = balance + interest
            extra = min(extras.get(month, 0), balance + interest - paid)
            balance += interest - paid - extra
            rows.append([month, cents(interest), cents(paid), cents(extra), cents(balance)])
            if month in extras or month == holiday:
                payment = _instalment(balance, rate, months - month)
            if balance == 0:
                break
        text = (
            "\n".join(clauses)
            + "\nWrite schedule.csv with the header month,interest,instalment,extra,balance (after the "
            "payments). Interest of a month is the balance before it times the monthly rate, rounded to cents. The "
            "instalment is the level payment that repays the balance over the remaining months at the current rate "
            "(annuity, computed exactly, then rounded to cents); it is computed at the start, at the start of a "
            "month with a new rate, and after a month with an extra payment or a holiday, from the new balance and "
            "the months that are left. The last instalment is whatever is left. All halves round up. Then answer "
            "`done`."
        )
        header = ("month", "interest", "instalment", "extra", "balance")
        return Draft(text, "done", {"files": {}, "wanted": {"schedule.csv": table(header, rows)}})


def _instalment(balance: int, rate: int, months: int) -> int:
    """The level payment in cents for a rate in hundredths of a percent a year, exact before it is rounded."""
    growth = 1 + Fraction(rate, 120_000)
    return int(rounded(balance * (growth - 1) / (1 - 1 / growth**months), 0))
