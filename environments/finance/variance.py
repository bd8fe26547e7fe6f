"""Explain a difference from budget: volume, mix, price, and the costs' price and efficiency."""

from __future__ import annotations

import random
from fractions import Fraction

from environments.base import Draft
from environments.deliverables import Deliverables, cents, rounded, table, value
from rewards.tables import write_csv


class Variance(Deliverables):
    """The parts must add up to the whole; favourable is positive for sales and costs alike."""

    id = "finance/variance"
    domain = "finance"
    skills = ("accounting", "analysis")

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = rng.sample(["Aspen", "Breeze", "Cobalt", "Delta", "Ember", "Fjord", "Garnet", "Harbor"], 2 + level)
        plan, actual, rows = [], [], []
        lines = {}
        for name in names:
            units, price, need, cost = (
                rng.randint(50, 900),
                rng.randint(20, 300) * 100,
                rng.randint(2, 30),
                rng.randint(50, 600),
            )
            sold = max(1, units + rng.randint(-units // 3, units // 3))
            got, paid = price + rng.randint(-15, 15) * 50, cost + rng.randint(-40, 40)
            used = sold * need + rng.randint(-sold, sold)
            lines[name] = (units, price, need, cost, sold, got, used, paid)
            plan.append([name, units, cents(price), need, cents(cost)])
            actual.append([name, sold, cents(sold * got), used, cents(used * paid)])
        budgeted, moved = sum(v[0] for v in lines.values()), sum(v[4] for v in lines.values())
        sums = {"volume": 0, "mix": 0, "price": 0, "material_price": 0, "material_usage": 0}
        for name, (units, price, need, cost, sold, got, used, paid) in lines.items():
            margin = price - need * cost
            straight = Fraction(moved * units, budgeted)
            volume = int(rounded((straight - units) * margin, 0))
            mix = (sold - units) * margin - volume
            parts = [volume, mix, sold * (got - price), used * (cost - paid), (sold * need - used) * cost]
            rows.append([name, *map(cents, parts)])
            for key, part in zip(sums, parts, strict=True):
                sums[key] += part
        profit = sum(v[4] * v[5] - v[6] * v[7] for v in lines.values())
        target = sum(v[0] * (v[1] - v[2] * v[3]) for v in lines.values())
        assert sum(sums.values()) == profit - target
        totals = {"budget_margin": target, "actual_margin": profit, **sums}
        rng.shuffle(actual)
        text = (
            "budget.csv (product,units,price,material_per_unit,material_price) and actual.csv (product,units,revenue,"
            "material_used,material_cost) describe a quarter. The margin is revenue less material. Break the "
            "difference between actual and budgeted margin down by product:\n- volume: what the change of total "
            "units is worth at the budgeted mix and budgeted margin per unit (rounded to cents, halves away from "
            "zero)\n- mix: the rest of what the change in the product's units is worth at its budgeted margin per "
            "unit\n- price: actual less budgeted selling price, on units sold\n- material_price: budgeted less "
            "actual price of material, on what was used\n- material_usage: what the units sold should have used less "
            "what was used, at the budgeted price\nFavourable is positive. Write variance.csv with the header "
            f"product,{','.join(sums)} in the budget's order, and totals.json with {', '.join(totals)} (sums over the "
            "products). Then answer `done`."
        )
        files = {
            "budget.csv": write_csv(["product", "units", "price", "material_per_unit", "material_price"], plan),
            "actual.csv": write_csv(["product", "units", "revenue", "material_used", "material_cost"], actual),
        }
        wanted = {
            "variance.csv": table(("product", *sums), rows),
            "totals.json": value({k: str(cents(v)) for k, v in totals.items()}),
        }
        return Draft(text, "done", {"files": files, "wanted": wanted})
