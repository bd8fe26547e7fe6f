"""A month's payroll from time sheets, tax brackets and deductions."""

from __future__ import annotations

import random
from fractions import Fraction

from environments.base import Draft
from environments.deliverables import FIRST, LAST, Deliverables, cents, rounded, table, value
from rewards.tables import write_csv


class Payroll(Deliverables):
    """Daily and weekly overtime, caps on contributions, cumulative tax, court orders that protect a minimum."""

    id = "finance/payroll"
    domain = "finance"
    skills = ("accounting", "rules")

    def draw(self, rng: random.Random, level: int) -> Draft:
        long_day, night, sunday = rng.choice((8, 9)), rng.choice((10, 15, 25)), rng.choice((50, 100))
        steps = sorted(rng.sample(range(600, 5200, 100), 2 + level))
        percents = sorted(rng.sample(range(5, 46), 3 + level))
        social, ceiling, allowance = rng.choice((75, 80, 93, 121)), rng.randint(25, 45) * 100, rng.randint(2, 9) * 10
        floor = rng.randint(9, 13) * 100
        staff, shifts, rows = [], [], []
        totals = {"gross": 0, "social": 0, "tax": 0, "net": 0}
        for number in range(1, 3 + 3 * level):
            name, wage = f"E{number:02d}", rng.randint(1300, 4800)
            children, order = rng.randint(0, 3), rng.randint(1, 9) * 5000 if level >= 3 and rng.random() < 0.5 else 0
            staff.append([name, f"{rng.choice(FIRST)} {rng.choice(LAST)}", cents(wage), children, cents(order)])
            gross = Fraction(0)
            for day in sorted(rng.sample(range(1, 31), rng.randint(8, 21))):  # June 2025: the 1st is a Sunday
                quarters = rng.randint(16, 46)
                late = rng.randint(0, 8) if level >= 2 else 0
                shifts.append([name, f"2025-06-{day:02d}", f"{quarters / 4:.2f}", f"{late / 4:.2f}"])
                over = max(0, quarters - 4 * long_day)
                paid = Fraction(quarters + Fraction(over, 2), 4) + Fraction(late * night, 400)
                if level >= 2 and day % 7 == 1:
                    paid += Fraction(quarters * sunday, 400)
                gross += paid * wage
            pay = int(rounded(gross, 0))
            contribution = int(rounded(Fraction(min(pay, ceiling * 100) * social, 1000), 0))
            taxable, tax = max(0, pay - contribution - children * allowance * 100), Fraction(0)
            for percent, low, high in zip(percents, [0, *steps], [*steps, 10**9], strict=True):
                tax += Fraction(max(0, min(taxable, high * 100) - low * 100) * percent, 100)
            due = int(rounded(tax, 0))
            net = pay - contribution - due
            seized = min(order, max(0, net - floor * 100))
            cells = [pay, contribution, due, seized, net - seized]
            rows.append([name, *map(cents, cells)])
            for key, amount in zip(totals, (pay, contribution, due, net - seized), strict=True):
                totals[key] += amount
        bounds = zip(percents, [0, *steps], [*steps, None], strict=True)
        scale = "\n".join(f"{p}% of what is over {a}" + (f" up to {b}" if b else "") for p, a, b in bounds)
        extra = (
            f"Night hours are among the day's hours and earn {night}% of the wage on top. All hours of a Sunday earn "
            f"{sunday}% of the wage on top. The supplements add up and do not multiply. "
        )
        court = (
            "The employee's `order` (a court order) is withheld from what remains after tax, as far as at least "
            f"{floor}.00 is left. "
        )
        rules = (
            f"Hours of one day beyond {long_day} earn half the wage on top. {extra if level >= 2 else ''}Gross pay is "
            f"added up exactly over the month, then rounded to cents. Social insurance is {social / 10}% of gross "
            f"pay, of at most {ceiling}.00 of it, rounded to cents. Taxable is gross less social insurance less "
            f"{allowance}.00 a child, not below 0. {court if level >= 3 else ''}Tax by slices of the taxable pay, "
            f"rounded once at the end:\n{scale}\n"
        )
        text = (
            "Run the payroll of June 2025. staff.csv: employee,name,wage (per hour),children,order; shifts.csv: "
            f"employee,day,hours,night. {rules}All halves round up. Write payroll.csv with the header "
            "employee,gross,social,tax,withheld,net in the order of staff.csv (withheld: by court order, else 0.00), "
            "and totals.json with the sums gross, social, tax and net. Then answer `done`."
        )
        rng.shuffle(shifts)
        files = {
            "staff.csv": write_csv(("employee", "name", "wage", "children", "order"), staff),
            "shifts.csv": write_csv(("employee", "day", "hours", "night"), shifts),
        }
        header = ("employee", "gross", "social", "tax", "withheld", "net")
        wanted = {
            "payroll.csv": table(header, rows),
            "totals.json": value({k: str(cents(v)) for k, v in totals.items()}),
        }
        return Draft(text, "done", {"files": files, "wanted": wanted})
