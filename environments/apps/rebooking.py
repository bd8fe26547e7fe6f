"""Move passengers of a cancelled flight to the cheapest journey that the airline's rules allow."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from environments import words
from environments.apps.records import App, Records
from environments.base import Draft
from environments.tools import ToolError, tool

CABINS = ("economy", "business")


class Airline(Records):
    """Tables: bookings, flights."""

    @tool
    def get_booking(self, booking: str) -> dict[str, Any]:
        """A booking: passengers, fare class, cabin, flights, status."""
        return self.row("bookings", booking)

    @tool
    def search_flights(self, origin: str, destination: str = "") -> list[dict[str, Any]]:
        """Flights from an airport (to one, if given) with times, free seats by cabin, and price a seat in EUR."""
        return [
            {"flight": k, **r}
            for k, r in self.db["flights"].items()
            if r["from"] == origin and destination in ("", r["to"])
        ]

    @tool
    def rebook(self, booking: str, flights: list[str]) -> str:
        """Put a booking on these flights, in their order; allowed once, and it takes the seats at once."""
        row, legs = self.row("bookings", booking), [self.row("flights", f) for f in flights]
        if row["status"] == "rebooked" or not legs:
            raise ToolError("no flights are given" if not legs else "it was rebooked before")
        if any(leg["seats"][row["cabin"]] < row["passengers"] for leg in legs):
            raise ToolError("not enough seats in this cabin")
        row.update(flights=flights, status="rebooked")
        return "rebooked"


class Rebooking(App):
    """The cheapest journey has too few seats, a short connection or a late arrival; sometimes none is allowed."""

    id = "apps/rebooking"
    skills = ("planning", "policy", "tools")
    world = Airline

    def draw(self, rng: random.Random, level: int) -> Draft:
        towns = words.several(rng, words.town, 3 + level)
        origin, destination, hubs = towns[0], towns[1], towns[2:]
        people, cabin = rng.randint(1, 4), rng.choice(CABINS)
        connection, cap = rng.choice([45, 60, 75]), rng.randrange(24, 60) * 10
        earliest, deadline = rng.randint(6, 10) * 60, rng.randint(17, 22) * 60
        fare = rng.choice(["standard"] * 2 + ["flex"] * 4 + ["basic"])
        flights: dict[str, Any] = {}
        prices = iter(rng.sample(range(40, 420), 60))
        routes = [(origin, destination)] * (1 + level)
        routes += [r for hub in hubs for r in ((origin, hub), (hub, destination)) for _ in range(1 + level)]
        for number, (start, end) in zip(rng.sample(range(100, 999), len(routes)), routes, strict=True):
            leave = rng.randint(5 * 12, 19 * 12) * 5
            if before := [f for f in flights.values() if f["to"] == start]:  # connections that are just too short
                wait = rng.choice([connection - 15, connection - 5, connection, connection + 20, connection + 90])
                leave = min(_minutes(rng.choice(before)["arrives"]) + wait, 19 * 60)
            flights[f"QX{number}"] = {
                "from": start, "to": end, "departs": _clock(leave), "arrives": _clock(leave + rng.randint(10, 40) * 5),
                "seats": {c: rng.choice([0, 1, 2, 4, 6, 9]) for c in CABINS}, "price": next(prices),
            }  # fmt: skip
        soonest = earliest if fare == "flex" else max(earliest, 12 * 60)
        found = sorted(
            (sum(flights[f]["price"] for f in legs), legs)
            for legs in _journeys(flights, origin, destination)
            if all(flights[f]["seats"][cabin] >= people for f in legs)
            and _minutes(flights[legs[0]]["departs"]) >= soonest
            and _minutes(flights[legs[-1]]["arrives"]) <= deadline
            and all(
                _minutes(flights[b]["departs"]) - _minutes(flights[a]["arrives"]) >= connection
                for a, b in pairwise(legs)
            )
        )
        found = [f for f in found if f[0] <= cap]
        if len(found) > 1 and found[0][0] == found[1][0]:
            return self.draw(rng, level)  # two cheapest journeys
        if not found and fare != "basic" and rng.random() < 0.6:
            return self.draw(rng, level)  # too often the right thing would be to do nothing
        booking, name = f"B{rng.randint(10**5, 10**6 - 1)}", words.person(rng)
        old = f"QX{rng.randint(10, 99)}"
        row = {
            "name": name, "passengers": people, "fare": fare, "cabin": cabin, "flights": [old], "status": "cancelled",
        }  # fmt: skip
        looks = [["get_booking", {"booking": booking}]]
        looks += [["search_flights", {"origin": town}] for town in (origin, *hubs)]
        answer, want, plan = "no_journey", dict[str, Any](), looks
        if fare == "basic":
            answer, plan = "basic_fare", looks[:1]
        elif found:
            answer, legs = "done", found[0][1]
            want = {f"bookings/{booking}/flights": legs, f"bookings/{booking}/status": "rebooked"}
            plan = [*looks, ["rebook", {"booking": booking, "flights": legs}]]
        text = (
            f"I am {name}, booking {booking}. Our flight {old} from {origin} to {destination} tomorrow is cancelled. "
            f"Please put all of us on the cheapest other journey tomorrow. We cannot leave before {_clock(earliest)} "
            f"and must be there by {_clock(deadline)}.\n\n"
            "Rules for the agent:\n"
            "- Basic fares are not rebooked: change nothing and answer `basic_fare`.\n"
            f"- A journey is direct or has one stop of at least {connection} minutes. Every flight of it needs seats "
            "for all passengers in the cabin of the booking; the cabin never changes.\n"
            "- Fares other than flex may only leave at 12:00 or later.\n"
            f"- A journey above {cap} EUR a person is not allowed.\n"
            "- If no journey fits, change nothing and answer `no_journey`. After rebooking answer `done`."
        )
        return self.draft(text, {"bookings": {booking: row}, "flights": flights}, want, plan, answer)


def _journeys(flights: dict[str, Any], origin: str, destination: str) -> Iterator[list[str]]:
    """Flights, one or two in a row, that lead from origin to destination, at any times."""
    for first, a in flights.items():
        if a["from"] == origin and a["to"] == destination:
            yield [first]
        elif a["from"] == origin:
            yield from ([first, k] for k, b in flights.items() if b["from"] == a["to"] and b["to"] == destination)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _minutes(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])
