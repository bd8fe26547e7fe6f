"""Consolidate a group: eliminations, unrealised profit, goodwill and outside interests."""

from __future__ import annotations

import random
from fractions import Fraction

from environments.base import Draft
from environments.deliverables import Deliverables, rounded, value
from rewards.tables import write_csv

ITEMS = (
    "cash",
    "receivables",
    "inventory",
    "plant",
    "payables",
    "loans",
    "capital",
    "reserves",
    "sales",
    "cost of sales",
    "expenses",
)


class Consolidation(Deliverables):
    """Balances between companies differ by cash on the way; profit in stock is charged to the seller's owners."""

    id = "finance/consolidation"
    domain = "finance"
    skills = ("accounting", "reasoning")

    def draw(self, rng: random.Random, level: int) -> Draft:
        def some(low: int, high: int) -> int:
            return rng.randint(low, high) * 100

        names = ["Alder Holding", "Birch Ltd", "Cedar SA", "Dogwood BV"][: 1 + level]
        books = {n: {i: some(200, 3000) for i in ITEMS} for n in names}
        for book in books.values():
            book["sales"] = some(9000, 20_000)
            book["cost of sales"], book["expenses"] = some(3000, 6000), some(500, 2500)
        parent, *others = names
        notes, share, cost = [], {}, {}
        eliminated = transit = debt = unrealised = goodwill = 0
        outside_equity = outside_profit = Fraction(0)
        profit = {n: b["sales"] - b["cost of sales"] - b["expenses"] for n, b in books.items()}
        for name in others:
            book, share[name] = books[name], rng.choice((60, 70, 75, 80, 90, 100))
            then = rng.randint(100, book["reserves"] // 2)
            bought = Fraction((book["capital"] + then) * share[name], 100)
            cost[name] = int(rounded(bought, 0)) + some(1, 20)
            notes.append(
                f"{parent} bought {share[name]}% of {name} for {cost[name]} (its investment at cost); {name}'s "
                f"reserves were {then} then."
            )
            goodwill += int(rounded(cost[name] - bought, 0))
            traded = some(10, 800)
            left, margin = rng.choice((0, 10, 20, 25, 40)), rng.choice((20, 25, 30, 40))
            up = level >= 2 and rng.random() < 0.5
            seller, buyer = (name, parent) if up else (parent, name)
            hidden = int(rounded(Fraction(traded * left * margin, 10_000), 0))
            eliminated += traded
            unrealised += hidden
            notes.append(
                f"{seller} sold goods for {traded} to {buyer} this year at a margin of {margin}% of the selling "
                f"price; {left}% of them are still in {buyer}'s inventory."
            )
            owed = rng.randint(1, 150)
            late = rng.randint(1, owed) if level >= 3 and rng.random() < 0.7 else 0
            debt += owed
            transit += late
            notes.append(
                f"{seller}'s receivables hold {owed} due from {buyer}"
                + (
                    f"; {buyer} paid {late} of it on the last day, which {seller} has not received yet."
                    if late
                    else "."
                )
            )
            charged = hidden if up else 0
            # reserves in the trial balance are those before this year's profit
            outside_profit += Fraction((profit[name] - charged) * (100 - share[name]), 100)
            outside_equity += Fraction(
                (book["capital"] + book["reserves"] + profit[name] - charged) * (100 - share[name]), 100
            )
        total = {i: sum(b[i] for b in books.values()) for i in ITEMS}
        group_profit = sum(profit.values()) - unrealised
        minority, minority_profit = int(rounded(outside_equity, 0)), int(rounded(outside_profit, 0))
        invested = sum(cost.values())
        books[parent]["investments"] = invested
        for name, book in books.items():  # cash balances each company's books
            assets = sum(book.get(i, 0) for i in ("receivables", "inventory", "plant", "investments"))
            claims = book["payables"] + book["loans"] + book["capital"] + book["reserves"] + profit[name]
            book["cash"] = claims - assets
        total["cash"] = sum(b["cash"] for b in books.values())
        assets = (
            total["cash"]
            + transit
            + total["receivables"]
            - debt
            + total["inventory"]
            - unrealised
            + total["plant"]
            + goodwill
        )
        liabilities = total["payables"] - (debt - transit) + total["loans"]
        wanted = {
            "sales": total["sales"] - eliminated,
            "cost_of_sales": total["cost of sales"] - eliminated + unrealised,
            "group_profit": group_profit,
            "profit_of_outside_shareholders": minority_profit,
            "cash": total["cash"] + transit,
            "receivables": total["receivables"] - debt,
            "inventory": total["inventory"] - unrealised,
            "payables": total["payables"] - (debt - transit),
            "goodwill": goodwill,
            "outside_interests": minority,
            "equity_of_owners": assets - liabilities - minority,
            "total_assets": assets,
        }
        text = (
            "books.csv holds the books of a group's companies at year end, one column a company (reserves are those "
            "before this year's profit; cash may be negative); notes.txt says what happened between them. Prepare "
            "the consolidated figures with full elimination. Goodwill is cost less the share of capital and reserves "
            "at purchase, and is not amortised; unrealised profit in inventory is eliminated in full and charged to "
            "the seller, so outside shareholders bear their share of it where a subsidiary sold; payments on the way "
            "are cash of the group. Outside interests (no goodwill) are their share of capital, reserves and this "
            "year's profit. Every single goodwill, unrealised profit, and the sums of the outside shareholders' "
            f"shares are rounded to whole numbers, half up. Write group.json with {', '.join(wanted)}. Then answer "
            "`done`."
        )
        rows = [[i, *(books[n].get(i, 0) for n in names)] for i in (*ITEMS[:4], "investments", *ITEMS[4:])]
        files = {"books.csv": write_csv(("item", *names), rows), "notes.txt": "".join(f"- {n}\n" for n in notes)}
        return Draft(text, "done", {"files": files, "wanted": {"group.json": value(wanted)}})
