"""A cash-flow statement by the indirect method from two balance sheets."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.deliverables import Deliverables, value
from rewards.tables import write_csv


class CashFlow(Deliverables):
    """Disposals, revaluations, new leases and bonus shares hide in the differences of two balance sheets."""

    id = "finance/cash_flow"
    domain = "finance"
    skills = ("accounting", "reasoning")

    def draw(self, rng: random.Random, level: int) -> Draft:
        def some(low: int, high: int) -> int:
            return rng.randint(low, high) * 10

        start = {
            "receivables": some(500, 9000),
            "inventory": some(500, 9000),
            "payables": some(400, 7000),
            "tax payable": some(50, 900),
            "interest payable": some(10, 300),
            "equipment (net)": some(9000, 50_000),
            "loan": some(3000, 20_000),
            "share capital": some(5000, 20_000),
        }
        start["cash"] = some(500, 5000)
        start["retained earnings"] = sum(
            start[k] for k in ("cash", "receivables", "inventory", "equipment (net)")
        ) - sum(start[k] for k in ("payables", "tax payable", "interest payable", "loan", "share capital"))
        profit, tax, interest = some(1000, 9000), some(200, 2000), some(50, 800)
        depreciation, dividend, bought, borrowed, repaid = (
            some(500, 3000),
            some(0, 900),
            some(500, 6000),
            some(0, 3000),
            some(0, 2000),
        )
        issued = some(0, 3000)
        sold = gain = lease = bonus = 0
        if level >= 2:
            sold, gain = some(200, 1500), some(-100, 150)
        if level >= 3:
            lease, bonus = some(100, 2000), some(100, 1500)
        change = {k: some(-40, 60) for k in ("receivables", "inventory", "payables")}
        tax_paid, interest_paid = tax + some(-4, 4), interest + some(-1, 1)
        after_tax = profit - tax - interest  # `profit` is the operating profit, the gain on disposal included
        operations = profit + depreciation - gain - change["receivables"] - change["inventory"] + change["payables"]
        operations -= tax_paid + interest_paid
        investing, financing = sold + gain - bought, borrowed - repaid + issued - dividend
        end = {k: start[k] + change.get(k, 0) for k in start}
        end["tax payable"] += tax - tax_paid
        end["interest payable"] += interest - interest_paid
        end["equipment (net)"] += bought + lease - sold - depreciation
        end["loan"] += borrowed - repaid + lease
        end["share capital"] += issued + bonus
        end["retained earnings"] += after_tax - dividend - bonus
        end["cash"] += operations + investing + financing
        if end["cash"] <= 0:  # no company's balance sheet shows that
            return self.draw(rng, level)
        notes = [
            f"Operating profit {profit}, interest expense {interest}, income tax expense {tax}; depreciation of "
            f"{depreciation} "
            "is in the operating profit.",
            f"Loans of {repaid} were repaid; all other new borrowing was in cash.",
        ]
        if level >= 2:
            word = "gain" if gain >= 0 else "loss"
            notes.append(
                f"Equipment with a book value of {sold} was sold for cash; the {word} of {abs(gain)} is in the "
                "operating profit."
            )
        if level >= 3:
            notes.append(
                f"A leased machine was capitalised at {lease} against the loan account; no cash moved at signing."
            )
            notes.append(
                f"Bonus shares of {bonus} were issued out of retained earnings; other new shares were paid in cash."
            )
        wanted = {
            "cash_from_operating_activities": operations,
            "interest_paid": interest_paid,
            "tax_paid": tax_paid,
            "equipment_bought": bought,
            "proceeds_of_equipment": sold + gain,
            "cash_from_investing_activities": investing,
            "borrowed": borrowed,
            "shares_issued": issued,
            "dividends_paid": dividend,
            "cash_from_financing_activities": financing,
            "net_change_in_cash": operations + investing + financing,
        }
        text = (
            "balance.csv holds a company's balance sheets at the start and the end of a year (in thousands), "
            "notes.txt what else is known. Prepare the cash-flow statement by the indirect method; interest and tax "
            f"paid are operating, dividends financing. Write cash_flow.json with {', '.join(wanted)}. Payments and "
            "proceeds are positive numbers; the three sub-totals and the net change are negative where cash went "
            "out. Then answer `done`."
        )
        rows = [[k, start[k], end[k]] for k in sorted(start)]
        files = {
            "balance.csv": write_csv(("item", "start", "end"), rows),
            "notes.txt": "".join(f"- {n}\n" for n in notes),
        }
        return Draft(text, "done", {"files": files, "wanted": {"cash_flow.json": value(wanted)}})
