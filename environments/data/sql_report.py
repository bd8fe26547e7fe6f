"""Write a query that is right on every database of a schema, not only on the one at hand."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from environments.base import Draft
from environments.deliverables import CITIES, FIRST, LAST, Call
from environments.sandbox.api import Sandbox
from environments.task import Task
from environments.workspace import Workspace, probe
from rewards.grade import Grade

SCHEMA = """CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE products (id INTEGER PRIMARY KEY, title TEXT NOT NULL, category TEXT NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, ordered_on TEXT NOT NULL, status TEXT);
CREATE TABLE lines (order_id INTEGER, product_id INTEGER, quantity INTEGER NOT NULL, unit_cents INTEGER NOT NULL);
"""
CATEGORIES = ("audio", "books", "garden", "kitchen", "office", "toys")
WIDTHS = {"customers": 3, "products": 3, "orders": 4, "lines": 4}

RUN = """
import sqlite3
sql, results = open('query.sql', encoding='utf-8').read(), []
for script in cases:
    base = sqlite3.connect(':memory:')
    base.executescript(script)
    cursor = base.execute(sql)
    results.append([[d[0] for d in cursor.description], cursor.fetchmany(1000)])
json.dump(results, out)
"""


class SqlReport(Workspace):
    """Missing cities, cancelled orders, ties and customers without orders are in the hidden databases too."""

    id = "data/sql_report"
    domain = "data"
    skills = ("sql", "tables")

    def draw(self, rng: random.Random, level: int) -> Draft:
        ask: dict[str, Any] = {
            "year": rng.choice((2023, 2024)),
            "categories": sorted(rng.sample(CATEGORIES, 3)),
            "least": rng.choice((2, 3)),
            "top": rng.choice((2, 3)),
            "months": rng.choice((2, 3)),
            "kind": level,
        }
        counted = "Orders with status 'cancelled' never count; a NULL status counts as open, so it does count."
        period = f"orders of the calendar year {ask['year']}"
        among = ", ".join(f"'{c}'" for c in ask["categories"])
        wish = {
            1: f"for each city the revenue (sum of quantity * unit_cents) of {period}, over products of the categories "
            f"{among} only. Show cities with at least {ask['least']} different customers who bought such products "
            "then; customers without a city are together as 'unknown'. Columns: city, revenue; largest revenue "
            "first, equal "
            "revenues by city.",
            2: f"in each category the {ask['top']} products of largest revenue (sum of quantity * unit_cents) over "
            f"{period}. Products without sales then are left out; of products with equal revenue the lower id is "
            "ahead. "
            "Columns: category, place (1 is best), title, revenue; by category, then place.",
            3: f"the customers who ordered something (an order with at least one line) in {ask['months']} or more "
            f"consecutive calendar months within {ask['year']}. Columns: name, months (the length of the customer's "
            "longest such streak), revenue (sum of quantity * unit_cents of the months of that streak; of streaks of "
            "equal length the earliest); longest first, then by customer id.",
        }[level]
        text = (
            f"shop.sql makes an example of a shop's SQLite database (python3 has sqlite3):\n{SCHEMA}Dates are ISO "
            f"days. Write query.sql, one SELECT (CTEs are fine) that gives {wish} {counted}\nThe query will be run on "
            "other databases of this schema, larger and with other content. Answer `done`."
        )
        return Draft(text, "done", {"ask": ask, "bases": [_base(rng, n) for n in (12, 25, 40)]})

    def files(self, task: Task) -> dict[str, str | bytes]:
        return {
            "shop.sql": script(task.info["bases"][0]),
            "README.txt": "Make shop.db: python3 make_db.py\n",
            "make_db.py": "import sqlite3\nbase = sqlite3.connect('shop.db')\n"
            "base.executescript(open('shop.sql').read())\n",
        }

    def solve(self, task: Task) -> tuple[list[Call], str]:
        return [("write_file", {"path": "query.sql", "text": _query(task.info["ask"])})], "done"

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        ask, bases = task.info["ask"], task.info["bases"]
        found = await probe(place, RUN, [script(base) for base in bases], alone=True)
        return Grade.outcome(found == [_report(ask, base) for base in bases])


def script(base: dict[str, list[list[Any]]]) -> str:
    """SQL that makes a database."""

    def literal(x: Any) -> str:
        return "NULL" if x is None else str(x) if isinstance(x, int) else "'" + x.replace("'", "''") + "'"

    rows = [
        f"INSERT INTO {name} VALUES ({', '.join(map(literal, row))});" for name, all_ in base.items() for row in all_
    ]
    return SCHEMA + "\n".join(rows) + "\n"


def _base(rng: random.Random, size: int) -> dict[str, list[list[Any]]]:
    cities = rng.sample(CITIES, 4)
    customers: list[list[Any]] = [
        [i, f"{rng.choice(FIRST)} {rng.choice(LAST)}", rng.choice([*cities, None])] for i in range(1, size + 1)
    ]
    products: list[list[Any]] = [
        [i, f"Item {rng.randint(100, 999)}-{i}", rng.choice(CATEGORIES)] for i in range(1, size + 1)
    ]
    orders, lines = [], []
    for i in range(1, size * 4):
        day = f"{rng.choice((2023, 2024))}-{rng.randint(1, 12):02d}-{rng.choice((1, 15, 28, 30 if i % 2 else 31)):02d}"
        day = day if day[5:7] != "02" or day[8:] < "29" else day[:8] + "28"
        day = day[:8] + "30" if day[5:7] in ("04", "06", "09", "11") and day[8:] == "31" else day
        orders.append([i, rng.randint(1, size - 2), day, rng.choice(["paid", "paid", "open", "cancelled", None])])
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            lines.append([i, rng.randint(1, size - 1), rng.randint(1, 5), rng.choice((250, 499, 500, 1000, 1999))])
    for year in (2023, 2024):  # a tie at the top, and a customer with two streaks of one length
        orders.append([len(orders) + 1, 1, f"{year}-05-05", "paid"])
        lines += [[len(orders), size + k, 9, 99_900] for k in rng.sample(range(1, 6), 5)]
        for month in (2, 3, 4, 8, 9, 10):
            orders.append([len(orders) + 1, size - 1, f"{year}-{month:02d}-09", None])
            lines.append([len(orders), rng.randint(1, size - 1), 1, rng.randint(1, 999)])
    twin = rng.choice(CATEGORIES)
    products += [[size + k, f"Set {k}", twin] for k in range(1, 6)]
    return {"customers": customers, "products": products, "orders": orders, "lines": lines}


def _report(ask: dict[str, Any], base: dict[str, list[list[Any]]]) -> list[Any]:
    """[column names, rows] that the query must give, computed without SQL."""
    customers = {i: (name, city) for i, name, city in base["customers"]}
    products = {i: (title, category) for i, title, category in base["products"]}
    orders = {i: (c, d) for i, c, d, s in base["orders"] if s != "cancelled" and d[:4] == str(ask["year"])}
    lines = [(*orders[o], p, q * u) for o, p, q, u in base["lines"] if o in orders]
    if ask["kind"] == 1:
        money: dict[str, int] = defaultdict(int)
        buyers: dict[str, set[int]] = defaultdict(set)
        for customer, _, product, amount in lines:
            if products[product][1] in ask["categories"]:
                city = customers[customer][1] or "unknown"
                money[city] += amount
                buyers[city].add(customer)
        kept = [[c, money[c]] for c in money if len(buyers[c]) >= ask["least"]]
        return [["city", "revenue"], sorted(kept, key=lambda r: (-r[1], r[0]))]
    if ask["kind"] == 2:
        sold: dict[int, int] = defaultdict(int)
        for _, _, product, amount in lines:
            sold[product] += amount
        out = []
        for category in CATEGORIES:
            best = sorted((p for p in sold if products[p][1] == category), key=lambda p: (-sold[p], p))[: ask["top"]]
            out += [[category, n, products[p][0], sold[p]] for n, p in enumerate(best, 1)]
        return [["category", "place", "title", "revenue"], out]
    active: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for customer, day, _, amount in lines:
        active[customer][int(day[5:7])] += amount
    found = []
    for customer, months in active.items():
        length, start = max(((_run(months, m), -m) for m in months), default=(0, 0))
        if length >= ask["months"]:
            found.append((customer, length, sum(months[-start + k] for k in range(length))))
    found.sort(key=lambda r: (-r[1], r[0]))
    return [["name", "months", "revenue"], [[customers[c][0], n, m] for c, n, m in found]]


def _run(months: dict[int, int], first: int) -> int:
    """How many months in a row from `first` on are active."""
    length = 0
    while first + length in months:
        length += 1
    return length


def _query(ask: dict[str, Any]) -> str:
    """The oracle's SQL."""
    base = (
        "WITH sales AS (SELECT o.customer_id AS c, o.ordered_on AS d, l.product_id AS p, l.quantity * l.unit_cents "
        "AS m FROM orders o JOIN lines l ON l.order_id = o.id WHERE coalesce(o.status, 'open') <> 'cancelled' AND "
        f"substr(o.ordered_on, 1, 4) = '{ask['year']}')"
    )
    if ask["kind"] == 1:
        among = ", ".join(f"'{c}'" for c in ask["categories"])
        return (
            f"{base} SELECT coalesce(k.city, 'unknown') AS city, sum(m) AS revenue FROM sales JOIN customers k ON "
            f"k.id = c JOIN products x ON x.id = p WHERE x.category IN ({among}) GROUP BY 1 HAVING count(DISTINCT c) "
            f">= {ask['least']} ORDER BY 2 DESC, 1"
        )
    if ask["kind"] == 2:
        return (
            f"{base}, sums AS (SELECT x.category, x.id, x.title, sum(m) AS revenue FROM sales JOIN products x ON x.id "
            "= p GROUP BY x.id), ranked AS (SELECT *, row_number() OVER (PARTITION BY category ORDER BY revenue "
            "DESC, id) AS place FROM sums) SELECT category, place, title, revenue FROM ranked WHERE place <= "
            f"{ask['top']} ORDER BY category, place"
        )
    return (
        f"{base}, months AS (SELECT c, cast(substr(d, 6, 2) AS INTEGER) AS month, sum(m) AS m FROM sales GROUP BY 1, "
        "2), groups AS (SELECT *, month - row_number() OVER (PARTITION BY c ORDER BY month) AS g FROM months), "
        "streaks AS (SELECT c, min(month) AS first, count(*) AS months, sum(m) AS revenue FROM groups GROUP BY c, "
        "g), ranked AS (SELECT *, row_number() OVER (PARTITION BY c ORDER BY months DESC, first) AS place FROM "
        "streaks) SELECT k.name, months, revenue FROM ranked JOIN customers k ON k.id = c WHERE place = 1 AND months "
        f">= {ask['months']} ORDER BY months DESC, c"
    )
