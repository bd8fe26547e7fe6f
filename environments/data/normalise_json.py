"""Nested JSON documents to relational tables with keys."""

from __future__ import annotations

import json
import random
from typing import Any

from environments.base import Draft
from environments.deliverables import CITIES, FIRST, LAST, Deliverables, cents, table


class NormaliseJson(Deliverables):
    """Repeated sub-documents become one row, lists become child tables, missing and null fields stay empty."""

    id = "data/normalise_json"
    domain = "data"
    skills = ("json", "modelling")

    def draw(self, rng: random.Random, level: int) -> Draft:
        people: list[dict[str, Any]] = [
            {
                "name": f"{rng.choice(FIRST)} {rng.choice(LAST)}",
                "email": f"u{n}@example.net",
                "address": {"city": rng.choice(CITIES), "zip": f"{rng.randint(0, 99999):05d}"},
            }
            for n in rng.sample(range(1000), 4 * level)
        ]
        tags = rng.sample(["gift", "express", "fragile", "bulk", "return", "vip", "export", "seasonal"], 3 + level)
        documents: list[dict[str, Any]] = []
        customers: dict[str, list[Any]] = {}
        orders: list[list[Any]] = []
        items: list[list[Any]] = []
        labels: list[list[Any]] = []
        for number in rng.sample(range(1000, 9999), 8 * level):
            person = rng.choice(people)
            lines: list[dict[str, Any]] = [
                {
                    "sku": f"{rng.choice('ABCD')}-{rng.randint(10, 99)}",
                    "qty": rng.randint(1, 5),
                    "price": {"amount": str(cents(rng.randint(100, 9900))), "discount": rng.choice((None, 5, 10))},
                }
                for _ in range(rng.randint(0, 2 + level))
            ]
            document: dict[str, Any] = {"order": number, "customer": person, "items": lines}
            picked = rng.sample(tags, rng.randint(0, 3))
            if picked or rng.random() < 0.5:
                document["tags"] = picked if len(picked) != 1 or level < 2 else picked[0]
            note = rng.choice(
                (None, "leave at door", 'said "call first", then ring', "two\nlines" if level >= 3 else "ok")
            )
            if note is not None or rng.random() < 0.5:
                document["note"] = note
            key = person["email"]
            customers.setdefault(
                key, [len(customers) + 1, key, person["name"], person["address"]["city"], person["address"]["zip"]]
            )
            orders.append([number, customers[key][0], note or ""])
            for position, line in enumerate(lines, 1):
                discount = line["price"]["discount"]
                items.append(
                    [
                        number,
                        position,
                        line["sku"],
                        line["qty"],
                        line["price"]["amount"],
                        "" if discount is None else discount,
                    ]
                )
            labels += [[number, tag] for tag in picked]
            documents.append(document)
        text = (
            "orders.json is an array of order documents. Write it as four CSV files with headers, empty cells for "
            "null or missing values, rows in any order:\n- customers.csv: customer_id,email,name,city,zip - one row "
            "per different e-mail, customer_id 1, 2, ... in the order in which customers first appear\n- orders.csv: "
            "order_id,customer_id,note\n- items.csv: order_id,position,sku,qty,amount,discount - position 1, 2, ... "
            "in the order's list\n- tags.csv: order_id,tag (`tags` is a list, one string, or missing)\nThen answer "
            "`done`."
        )
        wanted = {
            "customers.csv": table(("customer_id", "email", "name", "city", "zip"), list(customers.values()), False),
            "orders.csv": table(("order_id", "customer_id", "note"), orders, False),
            "items.csv": table(("order_id", "position", "sku", "qty", "amount", "discount"), items, False),
            "tags.csv": table(("order_id", "tag"), labels, False),
        }
        return Draft(text, "done", {"files": {"orders.json": json.dumps(documents, indent=1)}, "wanted": wanted})
