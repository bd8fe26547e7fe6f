"""Decide on requests for leave: balances in working days, notice, blocked weeks, and who else is away."""

from __future__ import annotations

import datetime
import random
from typing import Any

from environments import words
from environments.apps.records import App, Records, pages
from environments.base import Draft
from environments.tools import ToolError, tool


class Staff(Records):
    """Tables: people, requests, calendar (blocked periods and holidays)."""

    @tool
    def list_requests(self, page: int = 1) -> dict[str, Any]:
        """The requests in the order in which they were handed in, with their status."""
        return self.page([{"id": k, **r} for k, r in self.db["requests"].items()], page)

    @tool
    def get_person(self, person: str) -> dict[str, Any]:
        """A person: team and days of leave that are left."""
        return self.row("people", person)

    @tool
    def get_team(self, team: str) -> list[str]:
        """The people of a team."""
        return [k for k, p in self.db["people"].items() if p["team"] == team]

    @tool
    def get_calendar(self) -> list[dict[str, Any]]:
        """Public holidays, and periods in which a team may not be on leave."""
        return list(self.db["calendar"].values())

    @tool
    def decide(self, request: str, decision: str) -> str:
        """Approve a request (`approved`, which takes its days off the balance) or deny it with a reason code; final."""
        row = self.row("requests", request)
        if row["status"] != "pending":
            raise ToolError("it is decided")
        if decision == "approved":
            person = self.row("people", row["person"])
            person["left"] -= len(working_days(row["first"], row["last"], self.db["calendar"]))
        row["status"] = decision
        return "recorded"


def working_days(first: str, last: str, calendar: dict[str, Any]) -> list[str]:
    """The days from first to last that are neither on a weekend nor a holiday."""
    off = {c["first"] for c in calendar.values() if c["kind"] == "holiday"}
    begin, end = datetime.date.fromisoformat(first), datetime.date.fromisoformat(last)
    days = [begin + datetime.timedelta(i) for i in range((end - begin).days + 1)]
    return [d.isoformat() for d in days if d.weekday() < 5 and d.isoformat() not in off]


class Leave(App):
    """What is approved changes what may be approved next; weekends and holidays cost nothing."""

    id = "apps/leave"
    skills = ("dates", "policy", "tools")
    world = Staff

    def draw(self, rng: random.Random, level: int) -> Draft:
        notice, most = rng.choice([7, 14, 21]), rng.choice([1, 2])
        year = rng.randint(2026, 2029)
        names = words.several(rng, words.person, 4 + 3 * level)
        teams = ["Support", "Finance", "Platform"][:level]
        people: dict[str, Any] = {
            n: {"team": teams[i % level], "left": rng.randint(2, 18)} for i, n in enumerate(names)
        }
        start = words.day(rng, f"{year}-05-01", f"{year}-09-01")
        calendar = {
            f"H{i}": {
                "kind": "holiday",
                "team": "all",
                "first": (day := words.later(start, rng.randint(0, 50))),
                "last": day,
            }
            for i in range(1 + level)
        }
        for team in teams:
            first = words.later(start, rng.randint(0, 50))
            calendar[f"B-{team}"] = {
                "kind": "blocked", "team": team, "first": first, "last": words.later(first, rng.randint(2, 6)),
            }  # fmt: skip
        requests: dict[str, Any] = {}
        for number in rng.sample(range(100, 999), (4, 8, 16)[level - 1]):
            first = words.later(start, rng.randint(0, 50))
            requests[f"R{number}"] = {
                "person": rng.choice(names), "first": first, "last": words.later(first, rng.choice([1, 4, 6, 9, 11])),
                "handed_in": words.later(first, -rng.choice([notice - 1, notice, notice + 9, notice + 30])),
                "status": "approved" if rng.random() < 0.2 else "pending",
            }  # fmt: skip
        requests = dict(sorted(requests.items(), key=lambda r: r[1]["handed_in"]))
        left = {n: p["left"] for n, p in people.items()}
        away = {
            (r["person"], d)
            for r in requests.values()
            if r["status"] == "approved"
            for d in working_days(r["first"], r["last"], calendar)
        }
        want: dict[str, Any] = {}
        plan: list[Any] = [*pages("list_requests", len(requests)), ["get_calendar", {}]]
        plan += [["get_team", {"team": team}] for team in teams]
        for key, row in requests.items():
            if row["status"] != "pending":
                continue
            who, days = row["person"], working_days(row["first"], row["last"], calendar)
            team, block = people[who]["team"], calendar[f"B-{people[who]['team']}"]
            mates = [d for p, d in away if p != who and people[p]["team"] == team]
            if row["handed_in"] > words.later(row["first"], -notice):
                decision = "short_notice"
            elif any(d in days for p, d in away if p == who) or not days:
                decision = "overlap"
            elif any(block["first"] <= d <= block["last"] for d in days):
                decision = "blocked_period"
            elif any(mates.count(d) >= most for d in days):
                decision = "understaffed"
            elif len(days) > left[who]:
                decision = "no_balance"
            else:
                decision = "approved"
                left[who] -= len(days)
                away |= {(who, d) for d in days}
            want[f"requests/{key}/status"] = decision
            plan += [["get_person", {"person": who}], ["decide", {"request": key, "decision": decision}]]
        want |= {f"people/{n}/left": days for n, days in left.items() if days != people[n]["left"]}
        text = (
            "Decide on all pending requests for leave, in the order in which they are listed. Only working days "
            "count: Monday to Friday without public holidays. The first rule that applies gives the decision:\n"
            f"1. Handed in fewer than {notice} days (calendar days) before the first day: short_notice.\n"
            "2. It has no working day, or one for which the same person has approved leave: overlap.\n"
            "3. One of its working days is in a blocked period of the person's team: blocked_period.\n"
            f"4. On one of its working days {most} or more others of the team have approved leave, counting what you "
            "have approved: understaffed.\n"
            "5. It has more working days than the person has left: no_balance. Leave that was approved before today "
            "is already taken off.\n"
            "6. Otherwise approved.\n"
            "Answer `done`."
        )
        return self.draft(text, {"people": people, "requests": requests, "calendar": calendar}, want, plan)
