"""Shipping rules: sentences for people, and the machine that applies them; two environments ask about them.

A rule is a JSON list [kind, ...numbers and names]. The price is in cents and starts at 0; rules apply in order.
"""

from __future__ import annotations

import random
from typing import Any

ZONES = ("home", "north", "coast", "island", "alpine", "overseas")
PREFIXES = ("GL-", "BK-", "EL-", "FR-", "TX-", "HZ-")
CODES = ("SPRING", "WELCOME", "VIP", "STAFF", "LOYAL")
COMPARE = {"at least": ">=", "more than": ">", "less than": "<", "at most": "<="}

ORDER = """An order is a dict: "weight" (grams, int), "zone" (str), "express" (bool), "coupon" (str or None) and
"items", a list of dicts with "sku" (str), "cents" (price of one piece, int) and "qty" (int). The goods value is the sum
of cents x qty over the items."""


def draw_rules(rng: random.Random, count: int) -> list[list[Any]]:
    """A base tier, then `count` - 1 rules of mixed kinds."""
    edges = sorted(rng.sample(range(250, 8001, 250), rng.randint(2, 4)))
    costs = sorted(rng.sample(range(290, 2990, 10), len(edges) + 1))
    rules: list[list[Any]] = [["tier", edges, costs]]
    makers = [
        lambda: ["zone", *rng.sample(ZONES, 2), rng.randrange(50, 900, 10), rng.randrange(50, 900, 10)],
        lambda: ["goods", rng.choice([*COMPARE]), rng.randrange(2000, 15000, 500), -rng.choice([5, 10, 12, 15, 20])],
        lambda: ["express", rng.choice([15, 25, 33, 35, 40, 60]), rng.choice(["up", "down", "nearest"])],
        lambda: ["sku", rng.choice(PREFIXES), rng.randrange(15, 300, 5)],
        lambda: ["lines", rng.randint(2, 4), rng.randrange(20, 200, 10)],
        lambda: ["coupon", rng.choice(CODES), rng.randrange(100, 800, 50), rng.choice(ZONES)],
        lambda: ["least", rng.randrange(200, 600, 10)],
        lambda: ["most", rng.randrange(1500, 5000, 100)],
        lambda: ["free", rng.randrange(5000, 20000, 500), rng.choice(ZONES)],
        lambda: ["refuse", rng.choice(ZONES), rng.randrange(3000, 9000, 500)],
        lambda: ["step", rng.choice([5, 10, 25, 50])],
        lambda: ["pieces", rng.randint(3, 8), rng.randrange(40, 400, 20)],
    ]
    while len(rules) < count:
        rule = rng.choice(makers)()
        if rule[0] != rules[-1][0]:
            rules.append(rule)
    return rules


def sentence(rule: list[Any]) -> str:
    """The rule as the shop writes it."""
    kind, *a = rule
    if kind == "tier":
        steps = [f"{c} cents up to and including {e} g" for e, c in zip(a[0], a[1], strict=False)]
        return f"The price starts by weight: {', '.join(steps)}, {a[1][-1]} cents above that."
    return {
        "zone": lambda: f"Zone {a[0]} adds {a[2]} cents, zone {a[1]} adds {a[3]} cents.",
        "goods": lambda: (
            f"If the goods value is {a[0]} {a[1]} cents, the price so far falls by {-a[2]} percent; the reduction is "
            "rounded down to a whole cent."
        ),
        "express": lambda: (
            f"Express adds {a[0]} percent of the price so far, the surcharge rounded {a[1]} to a whole cent"
            + (" (half a cent goes up)." if a[1] == "nearest" else ".")
        ),
        "sku": lambda: f"Each piece whose sku starts with {a[0]} adds {a[1]} cents.",
        "lines": lambda: f"Each item line after the first {a[0]} adds {a[1]} cents, whatever its quantity.",
        "coupon": lambda: (
            f"Coupon {a[0]} (compared without regard to case) takes off {a[1]} cents, but not in zone {a[2]}; the "
            "price does not fall below 0."
        ),
        "least": lambda: f"A price below {a[0]} cents becomes {a[0]} cents.",
        "most": lambda: f"A price above {a[0]} cents becomes {a[0]} cents, unless the order is express.",
        "free": lambda: (
            f"If the goods value is at least {a[0]} cents and the zone is {a[1]}, the price so far becomes 0; later "
            "rules still apply."
        ),
        "refuse": lambda: f"Orders for zone {a[0]} that weigh more than {a[1]} g are refused (ValueError).",
        "step": lambda: f"The price so far is rounded up to a multiple of {a[0]} cents.",
        "pieces": lambda: f"If the order holds {a[0]} pieces or more (all lines together), {a[1]} cents are added.",
    }[kind]()


def price(order: dict[str, Any], rules: list[list[Any]]) -> int:
    """What an order costs; raises ValueError where a rule refuses it."""
    compare = {
        "at least": lambda x, y: x >= y,
        "more than": lambda x, y: x > y,
        "less than": lambda x, y: x < y,
        "at most": lambda x, y: x <= y,
    }
    total = 0
    items, zone = order["items"], order["zone"]
    goods = sum(i["cents"] * i["qty"] for i in items)
    for kind, *a in rules:
        if kind == "tier":
            total += next((c for e, c in zip(a[0], a[1], strict=False) if order["weight"] <= e), a[1][-1])
        elif kind == "zone":
            total += {a[0]: a[2], a[1]: a[3]}.get(zone, 0)
        elif kind == "goods" and compare[a[0]](goods, a[1]):
            total -= total * -a[2] // 100
        elif kind == "express" and order["express"]:
            total += (total * a[0] + {"up": 99, "down": 0, "nearest": 50}[a[1]]) // 100
        elif kind == "sku":
            total += a[1] * sum(i["qty"] for i in items if i["sku"].startswith(a[0]))
        elif kind == "lines":
            total += a[1] * max(0, len(items) - a[0])
        elif kind == "coupon" and (order["coupon"] or "").upper() == a[0] and zone != a[2]:
            total = max(0, total - a[1])
        elif kind == "least":
            total = max(total, a[0])
        elif kind == "most" and not order["express"]:
            total = min(total, a[0])
        elif kind == "free" and goods >= a[0] and zone == a[1]:
            total = 0
        elif kind == "refuse" and zone == a[0] and order["weight"] > a[1]:
            raise ValueError("refused")
        elif kind == "step":
            total = -(-total // a[0]) * a[0]
        elif kind == "pieces" and sum(i["qty"] for i in items) >= a[0]:
            total += a[1]
    return total


def draw_order(rng: random.Random, rules: list[list[Any]]) -> dict[str, Any]:
    """An order near the limits of the rules: their zones, coupons, prefixes and numbers occur in it."""
    said = [r for r in rules if rng.random() < 0.5]
    zones = [x for r in said for x in r if x in ZONES] or [*ZONES]
    prefixes = [r[1] for r in said if r[0] == "sku"] or [*PREFIXES]
    weights = [e for r in rules if r[0] == "tier" for e in r[1]] + [r[2] for r in rules if r[0] == "refuse"]
    coupons = [r[1] for r in rules if r[0] == "coupon"] or [*CODES]
    items: list[dict[str, Any]] = [
        {
            "sku": f"{rng.choice(prefixes)}{rng.randint(100, 999)}",
            "cents": rng.randint(50, 3000),
            "qty": rng.choice((1, 1, 2, 3)),
        }
        for _ in range(rng.randint(1, 6))
    ]
    limits = [r[2] for r in rules if r[0] == "goods"] + [r[1] for r in rules if r[0] == "free"]
    if limits and rng.random() < 0.5:  # a goods value at a limit, or next to it
        wanted = rng.choice(limits) + rng.choice((-1, 0, 1))
        rest = sum(i["cents"] * i["qty"] for i in items[1:])
        items[0] |= {"qty": 1, "cents": wanted - rest} if rest < wanted else {}
    coupon = rng.choice(coupons)
    return {
        "weight": rng.choice(weights) + rng.choice((-1, 0, 1)) if rng.random() < 0.6 else rng.randint(20, 9500),
        "zone": rng.choice(zones),
        "express": rng.random() < 0.4,
        "coupon": rng.choice((None, coupon, coupon.lower(), rng.choice(CODES))),
        "items": items,
    }
