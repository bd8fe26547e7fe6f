"""Work through help-desk tickets: refunds within policy, the rest to the right queue or closed with a reason."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.apps.records import App, Records, pages
from environments.base import Draft
from environments.tools import ToolError, tool

TODAY = "2026-05-20"
LINES = {"audio": ("headset", "microphone", "speaker"), "office": ("printer", "scanner", "stapler")}


class Desk(Records):
    """Tables: tickets, orders, customers, refunds."""

    @tool
    def list_open(self, page: int = 1) -> dict[str, Any]:
        """The open tickets."""
        return self.page([{"id": k, **t} for k, t in self.db["tickets"].items() if t["status"] == "open"], page)

    @tool
    def get_order(self, order: str) -> dict[str, Any]:
        """An order: customer, product, price in EUR, delivery date (null: under way), earlier refund in EUR."""
        return self.row("orders", order)

    @tool
    def get_customer(self, customer: str) -> dict[str, Any]:
        """A customer: name and plan."""
        return self.row("customers", customer)

    @tool
    def refund(self, order: str, amount: int) -> str:
        """Pay money (whole EUR) of an order back; it cannot be undone."""
        row = self.row("orders", order)
        if not 0 < amount <= row["price"] - row["refunded"]:
            raise ToolError("the amount must be positive and at most what is left of the price")
        row["refunded"] += amount
        return "refunded"

    @tool
    def route(self, ticket: str, queue: str) -> str:
        """Hand a ticket to a queue."""
        self.row("tickets", ticket).update(status="routed", note=queue)
        return "routed"

    @tool
    def close(self, ticket: str, reason: str) -> str:
        """Close a ticket with a reason code."""
        self.row("tickets", ticket).update(status="closed", note=reason)
        return "closed"


class Helpdesk(App):
    """Whether a refund is due is in order and customer, not in what the customer claims."""

    id = "apps/helpdesk"
    skills = ("policy", "tools")
    world = Desk

    def draw(self, rng: random.Random, level: int) -> Draft:
        days, cap, fee = rng.choice([14, 21, 30]), rng.randrange(10, 30) * 10, rng.choice([10, 20, 25])
        db: dict[str, Any] = {"tickets": {}, "orders": {}, "customers": {}}
        want: dict[str, Any] = {}
        numbers = rng.sample(range(1000, 9999), (3, 7, 14)[level - 1])
        plan = pages("list_open", len(numbers))
        for number in numbers:
            ticket, order, customer = f"T{number}", f"O{rng.randrange(10, 99)}{number}", f"K{number}"
            line = rng.choice(list(LINES))
            age = rng.choice([None, rng.randint(1, days), rng.randint(1, days), days, rng.randint(days + 1, days + 20)])
            price = rng.choice([rng.randint(20, cap), rng.randint(20, cap), rng.randint(cap + 1, cap * 3)])
            mine, plan_name = rng.random() < 0.85, rng.choice(["basic", "basic", "business"])
            refunded = rng.choice([0, 0, 0, 0, price])
            db["customers"][customer] = {"name": words.person(rng), "plan": plan_name}
            db["orders"][order] = {
                "customer": customer if mine else f"K{rng.randrange(100, 999)}",
                "product": rng.choice(LINES[line]),
                "price": price,
                "delivered": None if age is None else words.later(TODAY, -age),
                "refunded": refunded,
            }
            wants = rng.random() < 0.7
            text = rng.choice(
                [
                    "I want my money back for {o}, it came last week.",
                    "Please refund order {o} in full. It is defective.",
                ]
                if wants
                else [
                    "How do I connect what I bought in {o}? A refund is not needed.",
                    "Order {o}: where is the manual?",
                ]
            ).format(o=order)
            db["tickets"][ticket] = {"customer": customer, "text": text, "status": "open", "note": None}
            plan += [["get_order", {"order": order}], ["get_customer", {"customer": customer}]]
            note, status, amount = f"{line}_help", "routed", 0
            if wants and not mine:
                status, note = "closed", "not_your_order"
            elif wants and refunded:
                status, note = "closed", "already_refunded"
            elif wants and age is None:
                status, note = "routed", "shipping"
            elif wants and (age or 0) > days:
                status, note = "closed", "too_late"
            elif wants and price > cap:
                status, note = "routed", "supervisor"
            elif wants:
                amount = price if plan_name == "business" else price - fee
                status, note = "closed", "refunded"
            if amount > 0:
                want[f"orders/{order}/refunded"] = amount
                plan.append(["refund", {"order": order, "amount": amount}])
            want |= {f"tickets/{ticket}/status": status, f"tickets/{ticket}/note": note}
            call = ["close", {"ticket": ticket, "reason": note}]
            plan.append(call if status == "closed" else ["route", {"ticket": ticket, "queue": note}])
        text = (
            f"Today is {TODAY}. Work through all open tickets. For a ticket that asks for a refund, take the first "
            "rule that applies:\n"
            "1. The order belongs to another customer: close, reason not_your_order.\n"
            "2. It was refunded before: close, reason already_refunded.\n"
            "3. It is not delivered yet: route to shipping.\n"
            f"4. It was delivered more than {days} days ago: close, reason too_late.\n"
            f"5. Its price is above {cap} EUR: route to supervisor; you may not refund it.\n"
            f"6. Otherwise refund the price, less a handling fee of {fee} EUR unless the customer's plan is business; "
            "then close, reason refunded. If that leaves nothing, pay nothing, but close the ticket all the same.\n"
            "Every other ticket is routed to audio_help (headset, microphone, speaker) or office_help (printer, "
            "scanner, stapler), by the product of its order. Answer `done` at the end."
        )
        return self.draft(text, db, want, plan)
