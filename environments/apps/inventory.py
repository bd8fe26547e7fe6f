"""Reorder what runs low from the supplier that the purchasing rules choose."""

from __future__ import annotations

import random
from typing import Any

from environments import words
from environments.apps.records import App, Records, pages
from environments.base import Draft
from environments.tools import ToolError, tool


class Warehouse(Records):
    """Tables: items, offers, purchases (some open), flags."""

    @tool
    def list_items(self, page: int = 1) -> dict[str, Any]:
        """Items with stock, reserved pieces, reorder point, target level, and whether they are discontinued."""
        return self.page([{"sku": k, **r} for k, r in self.db["items"].items()], page)

    @tool
    def list_offers(self, sku: str) -> list[dict[str, Any]]:
        """The suppliers' offers for an item: price of a piece in cents, pieces of a pack, days to delivery."""
        self.row("items", sku)
        return [{"offer": k, **r} for k, r in self.db["offers"].items() if r["sku"] == sku]

    @tool
    def list_purchases(self, page: int = 1) -> dict[str, Any]:
        """All purchases, oldest first, with their status: open or received."""
        return self.page([{"id": k, **r} for k, r in self.db["purchases"].items()], page)

    @tool
    def get_supplier(self, supplier: str) -> dict[str, Any]:
        """A supplier: rating (1 to 5), and whether it is on hold."""
        return self.row("suppliers", supplier)

    @tool
    def buy(self, offer: str, pieces: int) -> str:
        """Order pieces (a multiple of the pack) on an offer; it is binding."""
        row = self.row("offers", offer)
        if pieces <= 0 or pieces % row["pack"]:
            raise ToolError(f"pieces must be a positive multiple of the pack, {row['pack']}")
        return self.add("purchases", {"sku": row["sku"], "pieces": pieces, "offer": offer, "status": "open"})

    @tool
    def flag(self, sku: str) -> str:
        """Tell the purchasing manager that an item cannot be reordered."""
        self.row("items", sku)
        return self.add("flags", {"sku": sku})


class Inventory(App):
    """Reserved and ordered pieces count, packs round up, and the cheapest offer is often not allowed."""

    id = "apps/inventory"
    skills = ("arithmetic", "policy", "tools")
    world = Warehouse

    def draw(self, rng: random.Random, level: int) -> Draft:
        days, rating = rng.randint(5, 12), rng.choice([3, 4])
        suppliers = {
            name: {"rating": rng.randint(2, 5), "on_hold": rng.random() < 0.2}
            for name in words.several(rng, words.company, 4 + level)
        }
        db: dict[str, Any] = {"items": {}, "offers": {}, "purchases": {}, "flags": {}, "suppliers": suppliers}
        want: dict[str, Any] = {"purchases": [], "flags": []}
        plan = list[Any]()
        for i, good in enumerate(rng.sample(words.GOODS, (7, 11, 22)[level - 1])):
            sku, low = f"{good[:3].upper()}-{rng.randint(100, 999)}-{i}", rng.randint(20, 80)
            gone, target = rng.random() < 0.12, low + rng.randint(20, 150)
            stock, reserved, coming = rng.randint(0, 150), rng.randint(0, 30), rng.choice([0, 0, rng.randint(5, 60)])
            if rng.random() < 0.15:  # just at the reorder point
                stock = max(0, low + reserved - coming)
            db["items"][sku] = {
                "name": good, "stock": stock, "reserved": reserved, "reorder_point": low, "target": target,
                "discontinued": gone,
            }  # fmt: skip
            offers: dict[str, Any] = {}
            for supplier in rng.sample(sorted(suppliers), rng.randint(1, min(4, len(suppliers)))):
                offer = {
                    "sku": sku, "supplier": supplier, "price": rng.randint(300, 900),
                    "pack": rng.choice([1, 6, 10, 12, 25]), "days": rng.randint(2, days + 5),
                }  # fmt: skip
                offers[f"F{len(db['offers']) + len(offers) + 1:03d}"] = offer
            if len({o["price"] for o in offers.values()}) < len(offers):
                offers = dict([next(iter(offers.items()))])  # equal prices would leave the choice open
            db["offers"] |= offers
            for pieces, status in ((coming, "open"), (rng.randint(5, 60), "received")):
                if pieces and (status == "open" or rng.random() < 0.5):
                    self._purchase(db, sku, pieces, next(iter(offers)), status)
            have = stock - reserved + coming
            if gone or have >= low:
                continue
            fit = [
                (offer["price"], key)
                for key, offer in offers.items()
                if offer["days"] <= days
                and not suppliers[offer["supplier"]]["on_hold"]
                and suppliers[offer["supplier"]]["rating"] >= rating
            ]
            plan.append(["list_offers", {"sku": sku}])
            if not fit:
                want["flags"].append({"sku": sku})
                plan.append(["flag", {"sku": sku}])
                continue
            key = min(fit)[1]
            pack = offers[key]["pack"]
            pieces = -(-(target - have) // pack) * pack
            want["purchases"].append({"sku": sku, "pieces": pieces, "offer": key, "status": "open"})
            plan.append(["buy", {"offer": key, "pieces": pieces}])
        text = (
            "Reorder stock for every item that is not discontinued and whose available pieces are fewer than its "
            "reorder point. Available is stock, less reserved, plus the pieces of open purchases. Buy from one offer "
            f"only: the one with the lowest price of a piece among those that deliver within {days} days from a "
            f"supplier that is not on hold and has a rating of at least {rating}. Buy the smallest number of whole "
            "packs that brings the available pieces to the target or above. If no offer qualifies, flag the item "
            "instead. Each item is bought or flagged once. Answer `done`."
        )
        looks = [*pages("list_items", len(db["items"])), *pages("list_purchases", len(db["purchases"]))]
        looks += [["get_supplier", {"supplier": name}] for name in suppliers]
        return self.draft(text, db, want, [*looks, *plan])

    def _purchase(self, db: dict[str, Any], sku: str, pieces: int, offer: str, status: str) -> None:
        key = f"purchases-{len(db['purchases']) + 1}"
        db["purchases"][key] = {"sku": sku, "pieces": pieces, "offer": offer, "status": status}
