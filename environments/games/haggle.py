"""Buy from sellers who concede step by step towards a price that they keep to themselves."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Message, Task
from environments.tools import ToolError, tool

GOODS = ("a used delivery van", "a pallet of copper pipe", "a walk-in freezer", "a printing press", "a small tractor")
NAMES = ("Okafor", "Lindqvist", "Moreau", "Tanaka", "Petrov", "Alvarez")
OFFERS = (6, 5, 4)
CLOSE = 1.02
"""A deal is good up to this multiple of the lowest reserve."""


class Market(Match):
    """What each seller asks now, and their patience."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.asks = {s["name"]: s["ask"] for s in task.info["sellers"]}
        self.patience = {s["name"]: task.info["offers"] for s in task.info["sellers"]}
        self.price: int | None = None

    @tool
    def offer(self, seller: str, price: int) -> str:
        """Offer a seller a price in whole euros; an accepted offer is the deal and ends the talks."""
        who = next((s for s in self.task.info["sellers"] if s["name"] == seller), None)
        if who is None or price < 1:
            raise ToolError(f"the sellers are {', '.join(self.asks)}, and a price is at least 1")
        if not self.patience[seller]:
            raise ToolError(f"{seller} has left")
        if price >= who["reserve"]:
            self.price = price
            best = min(s["reserve"] for s in self.task.info["sellers"])
            self.end(price <= best * CLOSE)
            return f"{seller}: agreed, it is yours for {price}."
        self.patience[seller] -= 2 if 2 * price < self.asks[seller] and self.patience[seller] > 1 else 1
        if not self.patience[seller]:
            if not any(self.patience.values()):
                self.end(False)
            return f"{seller}: we are wasting our time. (leaves)"
        self.asks[seller] = lowered(self.asks[seller], who)
        return f"{seller}: no. I could let it go for {self.asks[seller]}. ({self.patience[seller]} refusals left)"


def lowered(ask: int, seller: dict[str, Any]) -> int:
    """The next ask: a fixed percentage of the way to the reserve."""
    return ask - round((ask - seller["reserve"]) * seller["percent"] / 100)


class Haggle(Game):
    """Concessions shrink geometrically and so reveal the reserve; then the best seller is offered just enough."""

    id = "games/haggle"
    skills = ("negotiation", "inference")
    world = Market

    def draw(self, rng: random.Random, level: int) -> Draft:
        names = rng.sample(NAMES, level)
        reserves = [rng.randint(3000, 6000)]
        while len(reserves) < level:
            reserves.append(round(reserves[0] * rng.uniform(1.05, 1.3)))
        rng.shuffle(reserves)
        sellers = [
            {"name": n, "reserve": r, "ask": round(r * rng.uniform(1.4, 1.9)), "percent": rng.randint(20, 45)}
            for n, r in zip(names, reserves, strict=True)
        ]
        offers = OFFERS[level - 1]
        asks = "; ".join(f"{s['name']} asks {s['ask']} euros" for s in sellers)
        text = (
            f"You want to buy {rng.choice(GOODS)}. {asks}. Every seller has a lowest price, which you are not told, "
            "and accepts the first offer that reaches it. A refused offer makes that seller lower the asked price by a "
            "fixed percentage (each seller has their own) of what it is above their lowest price. A seller leaves at "
            f"the {offers}th refused offer, and an offer under half of what they ask counts as two. Only one deal can "
            "be made. Buy at no more than 2 percent above the lowest of all lowest prices, with the tool `offer`."
        )
        return Draft(text, None, {"sellers": sellers, "offers": offers})

    def play(self, task: Task) -> Play:
        yield from _bought(task.info["sellers"])

    def weak(self, task: Task) -> list[Message]:
        """Talks to the first seller alone."""
        return self.script(task, _bought(task.info["sellers"][:1]))


def _bought(sellers: list[dict[str, Any]]) -> Play:
    """Three asks of each of these sellers, then an offer to the one with the lowest limit."""
    limits = {}
    for seller in sellers:
        asks = [seller["ask"]]
        for _ in range(2):
            told = yield "offer", {"seller": seller["name"], "price": asks[-1] // 2 + 1}
            asks.append(int(told.partition("go for ")[2].partition(".")[0]))
        a, b, c = asks  # of a geometric approach, whose limit is (ac - b^2) / (a + c - 2b)
        limits[seller["name"]] = (a * c - b * b) / (a + c - 2 * b)
    best = min(limits, key=lambda n: limits[n])
    yield "offer", {"seller": best, "price": round(limits[best] * 1.01)}
