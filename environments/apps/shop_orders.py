"""Change a customer's orders in a web shop as far as the shop's rules allow."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.apps.records import App, Records, spaced
from environments.base import Draft
from environments.task import Task
from environments.tools import ToolError, tool
from rewards.grade import Grade

COLOURS, SIZES = ("black", "blue", "green", "grey", "red"), ("S", "M", "L", "XL")
STATES = ("pending", "pending", "pending", "shipped", "delivered", "delivered")
WISHES = {
    "pending": ("swap", "swap", "cancel", "return"),
    "shipped": ("swap", "cancel"),
    "delivered": ("return", "return", "swap"),
}
"""Order status -> wishes that are drawn for it; some of each are against the rules."""


class Shop(Records):
    """Tables: customers, orders, variants, vouchers."""

    @tool
    def find_customer(self, full_name: str, postcode: str) -> str:
        """The id of the customer of this name and postcode."""
        found = [k for k, c in self.db["customers"].items() if (c["name"], c["postcode"]) == (full_name, postcode)]
        if not found:
            raise ToolError("no such customer")
        return found[0]

    @tool
    def list_orders(self, customer: str, page: int = 1) -> dict[str, Any]:
        """A customer's orders: status, lines (variant, price in cents), postcode of the delivery."""
        self.row("customers", customer)
        return self.page([{"id": k, **o} for k, o in self.db["orders"].items() if o["customer"] == customer], page)

    @tool
    def list_variants(self, product: str, page: int = 1) -> dict[str, Any]:
        """The variants of a product: colour, size, price in cents, stock."""
        return self.page([{"id": k, **v} for k, v in self.db["variants"].items() if v["product"] == product], page)

    @tool
    def swap(self, order: str, old: str, new: str) -> str:
        """Replace a variant in a pending order by another one at its present price, and take it from stock."""
        row, variant = self.row("orders", order), self.row("variants", new)
        line = next((line for line in row["lines"] if line["variant"] == old), None)
        if line is None or row["status"] != "pending" or variant["stock"] < 1:
            raise ToolError("the order is not pending, has no such line, or the new variant is out of stock")
        line.update(variant=new, price=variant["price"])
        variant["stock"] -= 1
        self.db["variants"][old]["stock"] += 1
        return "swapped"

    @tool
    def cancel(self, order: str) -> str:
        """Cancel an order for good; its variants go back to stock."""
        row = self.row("orders", order)
        if row["status"] != "pending":
            raise ToolError("only pending orders can be cancelled")
        row["status"] = "cancelled"
        for line in row["lines"]:
            self.db["variants"][line["variant"]]["stock"] += 1
        return "cancelled"

    @tool
    def start_return(self, order: str, variant: str) -> str:
        """Open the return of a line of an order."""
        row = self.row("orders", order)
        line = next((line for line in row["lines"] if line["variant"] == variant), None)
        if line is None:
            raise ToolError("the order has no such line")
        line["returning"] = True
        return "opened"


class ShopOrders(App):
    """Products are named by what the customer remembers; each wish is done or refused on its own."""

    id = "apps/shop_orders"
    skills = ("policy", "search", "tools")
    world = Shop

    def draw(self, rng: random.Random, level: int) -> Draft:
        goods = rng.sample(words.GOODS, 4 + 2 * level)
        variants: dict[str, Any] = {}
        for i, good in enumerate(goods):
            base = rng.randint(900, 20_000)
            pairs = rng.sample([(c, s) for c in COLOURS for s in SIZES], 6)
            for j, (colour, size) in enumerate(pairs):
                variants[f"V{i:02d}{j}"] = {
                    "product": good, "colour": colour, "size": size, "price": base + rng.randint(-5, 5) * 100,
                    "stock": rng.choice([0, 1, 5]),
                }  # fmt: skip
        name = words.person(rng)
        codes = rng.sample(range(10_000, 99_999), 3)
        customers = {f"K{i}": {"name": name, "postcode": str(code)} for i, code in enumerate(codes)}
        me = rng.choice(sorted(customers))
        orders: dict[str, Any] = {}
        mine: dict[str, str] = {}  # the good of one line of each of my orders -> order
        fresh = iter(goods)
        wishes = (2, 3, 5)[level - 1]
        for number in rng.sample(range(1000, 9999), wishes + 4 + level):
            owner = me if len(mine) < wishes else rng.choice([k for k in customers if k != me])
            good = next(fresh) if owner == me else rng.choice(goods)
            kinds = [k for k, v in variants.items() if v["product"] == good]
            more = [k for k, v in variants.items() if v["product"] in goods[-2:]]
            chosen = [rng.choice(kinds), *rng.sample(more, rng.randint(0, 2))]
            if owner == me:
                mine[good] = f"W{number}"
            lines = [{"variant": k, "price": variants[k]["price"], "returning": False} for k in dict.fromkeys(chosen)]
            orders[f"W{number}"] = {"customer": owner, "status": rng.choice(STATES), "lines": lines}
        asks, verdicts, plan = list[str](), list[str](), list[Any]()
        want: dict[str, Any] = {}
        stock = {k: v["stock"] for k, v in variants.items()}
        plan = [
            ["find_customer", {"full_name": name, "postcode": customers[me]["postcode"]}],
            ["list_orders", {"customer": me}],
        ]
        for number, (good, order) in enumerate(mine.items(), start=1):
            row = orders[order]
            old, pending = row["lines"][0]["variant"], row["status"] == "pending"
            wish = rng.choice(WISHES[row["status"]])
            verdict = "not_possible"
            if wish == "cancel":
                asks.append(f"{number}. Cancel the order with the {good}.")
                if pending:
                    verdict = "done"
                    want[f"orders/{order}/status"] = "cancelled"
                    for line in row["lines"]:
                        stock[line["variant"]] += 1
                    plan.append(["cancel", {"order": order}])
            elif wish == "return":
                asks.append(f"{number}. I want to send the {good} back.")
                if row["status"] == "delivered":
                    verdict = "done"
                    want[f"orders/{order}/lines"] = [row["lines"][0] | {"returning": True}, *row["lines"][1:]]
                    plan.append(["start_return", {"order": order, "variant": old}])
            else:
                field, other = rng.sample(["colour", "size"], 2)
                value = rng.choice([v for v in (COLOURS if field == "colour" else SIZES) if v != variants[old][field]])
                asks.append(f"{number}. Swap the {good} for one in {value}, in any {other}.")
                plan.append(["list_variants", {"product": good}])
                fit = [
                    (variants[k]["price"], k)
                    for k in variants
                    if variants[k]["product"] == good and variants[k][field] == value and stock[k] > 0
                ]
                if len({p for p, _ in fit}) < len(fit):
                    return self.draw(rng, level)  # two are the cheapest
                if pending and not fit:
                    verdict = "out_of_stock"
                elif pending:
                    price, new = min(fit)
                    verdict = "done"
                    line = row["lines"][0] | {"variant": new, "price": price}
                    want[f"orders/{order}/lines"] = [line, *row["lines"][1:]]
                    stock[new] -= 1
                    stock[old] += 1
                    plan.append(["swap", {"order": order, "old": old, "new": new}])
            verdicts.append(verdict)
        want |= {f"variants/{k}/stock": n for k, n in stock.items() if n != variants[k]["stock"]}
        text = (
            f"Hi, I am {name}, postcode {customers[me]['postcode']}. Please do the following:\n"
            + "\n".join(asks)
            + "\n\nRules of the shop: only pending orders are cancelled or changed, only delivered ones returned. "
            "If a wish breaks this, do nothing for it: `not_possible`. A swap takes the cheapest variant in stock "
            "that fits the wish; if none is in stock: `out_of_stock`. Work through the wishes in their order. Answer "
            "with one outcome for each, such as `done, not_possible`."
        )
        shuffled = dict(rng.sample(sorted(orders.items()), len(orders)))
        db = {"customers": customers, "orders": shuffled, "variants": variants}
        return self.draft(text, db, want, plan, ", ".join(verdicts))

    def judge(self, task: Task, world: Any, answer: str | None) -> Grade:
        return super().judge(task, world, spaced(answer))
