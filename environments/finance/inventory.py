"""Value the stock by FIFO, or by the moving average, through returns, write-offs and counts."""

from __future__ import annotations

import random
from datetime import date, timedelta
from fractions import Fraction

from environments.base import Draft
from environments.deliverables import Deliverables, cents, rounded, table
from rewards.tables import write_csv


class Inventory(Deliverables):
    """Freight belongs to cost, customers' returns come back at the cost of their sale, counts correct quantities."""

    id = "finance/inventory"
    domain = "finance"
    skills = ("accounting", "simulation")

    def draw(self, rng: random.Random, level: int) -> Draft:
        moves, rows = [], []
        items = {f"P-{n}": rng.choice(("fifo", "average")) for n in rng.sample(range(100, 999), 1 + level)}
        for item, method in items.items():
            # layers: [quantity, value of it in cents], oldest first; the average keeps one layer
            layers: list[list[int]] = []
            sales: list[tuple[str, int, int]] = []
            cost = 0
            day = date(2024, 1, 1)
            for number in range(6 + 6 * level):
                day += timedelta(rng.randint(1, 6))
                stock = sum(q for q, _ in layers)
                kinds = ["buy"] if stock < 5 else ["buy", "sell", "sell", "sell"] + ["count"] * (level >= 2)
                kind = rng.choice(kinds + ["return"] * (level >= 3 and bool(sales)))
                reference = f"{item[2:]}-{number:02d}"
                if kind == "buy":
                    n, price, freight = (
                        rng.randint(5, 60),
                        rng.randint(200, 5000),
                        rng.choice((0, rng.randint(100, 3000))),
                    )
                    _receive(layers, n, n * price + freight, method)
                    moves.append([day, reference, item, "buy", n, cents(price), cents(freight), ""])
                elif kind == "return":
                    sale, sold, value = sales.pop(rng.randrange(len(sales)))
                    n = rng.randint(1, sold)
                    back = int(rounded(Fraction(value * n, sold), 0))
                    cost -= back
                    layers.insert(0, [n, back])
                    if method == "average":
                        layers[:] = [[sum(q for q, _ in layers), sum(v for _, v in layers)]]
                    moves.append([day, reference, item, "return", n, "", "", sale])
                else:
                    n = rng.randint(1, stock - 1) if kind == "sell" else rng.randint(1, 3)
                    taken = _take(layers, n)
                    cost += taken
                    if kind == "sell":
                        sales.append((reference, n, taken))
                    shown = stock - n if kind == "count" else n
                    moves.append([day, reference, item, kind, shown, "", "", ""])
            rows.append([item, sum(q for q, _ in layers), cents(sum(v for _, v in layers)), cents(cost)])
        moves.sort(key=lambda m: (m[0], m[1]))
        text = (
            "methods.json gives each article's valuation method, moves.csv the year's movements "
            "(date,reference,article,kind,quantity,price,freight,sale) in order; stocks were empty before.\n- buy: "
            "cost is quantity * price plus the freight of the lot\n- sell: goods leave at cost\n- count: the "
            "quantity counted; what is missing since leaves at cost, like a sale\n- return: a customer brings back "
            "part of the sale named in `sale`, at that sale's cost times returned / sold quantity (rounded alike); "
            "cost of sales falls, and under FIFO these goods form a layer of their own that is the first to leave "
            "again.\nfifo: the oldest layer leaves first. average: all goods of an article are one layer, merged at "
            "each receipt. When part of a layer leaves, it takes value * quantity / layer quantity of its value at "
            "that moment, rounded to cents (half up); the rest stays.\nWrite stock.csv with the header "
            "article,quantity,value,cost_of_sales (losses found by counting are in cost_of_sales), in the order of "
            "methods.json. Then answer `done`."
        )
        pairs = ", ".join(f'"{i}": "{m}"' for i, m in items.items())
        header = ["date", "reference", "article", "kind", "quantity", "price", "freight", "sale"]
        files = {"methods.json": f"{{{pairs}}}\n", "moves.csv": write_csv(header, moves)}
        wanted = {"stock.csv": table(("article", "quantity", "value", "cost_of_sales"), rows)}
        return Draft(text, "done", {"files": files, "wanted": wanted})


def _receive(layers: list[list[int]], quantity: int, value: int, method: str) -> None:
    if method == "average" and layers:
        layers[0][0] += quantity
        layers[0][1] += value
    else:
        layers.append([quantity, value])


def _take(layers: list[list[int]], quantity: int) -> int:
    """Remove the oldest goods; their value in cents."""
    taken = 0
    while quantity:
        layer = layers[0]
        if layer[0] <= quantity:
            quantity -= layer[0]
            taken += layer[1]
            layers.pop(0)
        else:
            part = int(rounded(Fraction(layer[1] * quantity, layer[0]), 0))
            layer[0], layer[1] = layer[0] - quantity, layer[1] - part
            taken, quantity = taken + part, 0
    return taken
