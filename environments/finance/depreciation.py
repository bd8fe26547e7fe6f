"""A fixed-asset register to the year's depreciation and disposals."""

from __future__ import annotations

import random
from fractions import Fraction

from environments.base import Draft
from environments.deliverables import Deliverables, cents, rounded, table
from rewards.tables import write_csv

KINDS = ("forklift", "lathe", "server", "van", "press", "printer", "oven", "crane")


class Depreciation(Deliverables):
    """Straight line, declining balance, units of use; parts of years; assets sold on the way."""

    id = "finance/depreciation"
    domain = "finance"
    skills = ("accounting", "schedules")

    def draw(self, rng: random.Random, level: int) -> Draft:
        year = rng.randint(2022, 2025)
        methods = ("straight", "declining", "units")[: max(2, level)]
        assets, uses, rows = [], [], []
        for number in range(1, 3 + 3 * level):
            method, life = rng.choice(methods), rng.randint(3, 10)
            bought, month = year - rng.randint(0, 6), rng.randint(1, 12)
            cost = rng.randint(1000, 90_000) * 100
            residual = cost * rng.choice((0, 5, 10)) // 100
            gone = rng.randint(month if bought == year else 1, 12) if level >= 2 and rng.random() < 0.3 else 0
            price = rng.randint(0, cost // 100) * 100 if gone else 0
            capacity = rng.randint(10, 90) * 1000
            name = f"A{number:03d}"
            used = {y: rng.randint(0, capacity // 4) for y in range(bought, year + 1)} if method == "units" else {}
            uses += [[name, y, n] for y, n in used.items()]
            assets.append(
                [
                    name,
                    rng.choice(KINDS),
                    method,
                    f"{bought}-{month:02d}",
                    cents(cost),
                    cents(residual),
                    life,
                    capacity if method == "units" else "",
                    f"{year}-{gone:02d}" if gone else "",
                    cents(price) if gone else "",
                ]
            )
            before = charge = 0
            for y in range(bought, year + 1):
                before += charge
                held = (gone - 1 if gone and y == year else 12) - (month - 1 if y == bought else 0)
                left = max(cost - residual - before, 0)
                if method == "units":
                    full = Fraction((cost - residual) * used[y], capacity)
                elif method == "straight":
                    full = Fraction((cost - residual) * held, life * 12)
                else:
                    full = Fraction((cost - before) * 2 * held, life * 12)
                charge = min(int(rounded(full, 0)), left)
            book = cost - before - charge
            rows.append(
                [
                    name,
                    cents(before),
                    cents(charge),
                    "0.00" if gone else cents(book),
                    cents(price - book) if gone else "",
                ]
            )
        text = (
            "assets.csv is a fixed-asset register (asset,kind,method,bought,cost,residual,life,capacity,sold,price); "
            "life in years, capacity in units; usage.csv (asset,year,units) is for assets of method `units`. Work "
            f"year by year from the year of purchase and write schedule.csv for {year} with the header "
            "asset,accumulated_before,charge,book_value,gain: accumulated depreciation at the start of the year, the "
            "year's charge, book value at the end of the year (0.00 if sold), and for sold assets the gain (price "
            "less book value at sale; a loss is negative), otherwise empty; in the register's order.\n- straight: "
            "(cost - residual) / life a year\n- declining: 2 / life of the book value at the start of the year (its "
            "cost in the year of purchase); the residual value is not deducted\n- units: (cost - residual) * units "
            "of the year / capacity\n- The first two are charged by full months: the month of purchase counts, the "
            "month of sale does not. Each year's charge is rounded to cents (half up), and the book value never "
            "falls below the residual value. Then answer `done`."
        )
        files = {
            "assets.csv": write_csv(
                ["asset", "kind", "method", "bought", "cost", "residual", "life", "capacity", "sold", "price"], assets
            ),
            "usage.csv": write_csv(("asset", "year", "units"), uses),
        }
        header = ("asset", "accumulated_before", "charge", "book_value", "gain")
        return Draft(text, "done", {"files": files, "wanted": {"schedule.csv": table(header, rows)}})
