"""Book a meeting in the first gap that suits everybody."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.simulation import Simulation, World
from environments.task import Task
from environments.tools import ToolError, tool
from environments.words import listed
from rewards.grade import Grade

PEOPLE = ("Ada", "Bruno", "Chen", "Dina", "Emil", "Fatima", "Goran", "Hana")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
HOURS = range(9, 17)


class Calendars(World):
    """People's busy hours: a set of (person, day, hour)."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.busy = {(p, d, h) for p, d, h in task.info["busy"]}
        self.booked: list[tuple[tuple[str, ...], str, int]] = []

    @tool
    def show_day(self, person: str, day: str) -> dict[str, Any]:
        """The busy hours of a person on a day (Monday to Friday); an hour h means from h:00 to h+1:00."""
        if person not in PEOPLE or day not in DAYS:
            raise ToolError("no such person" if person not in PEOPLE else f"a day is one of {', '.join(DAYS)}")
        return {"person": person, "day": day, "busy": [h for h in HOURS if (person, day, h) in self.busy]}

    @tool
    def book(self, people: list[str], day: str, hour: int) -> str:
        """Book one hour for people; refused if one of them is busy, or outside 9 to 16 (the last hour that starts)."""
        if day not in DAYS or hour not in HOURS or not people or any(p not in PEOPLE for p in people):
            raise ToolError("a booking needs known people, a day of Monday to Friday and an hour of 9 to 16")
        if taken := [p for p in people if (p, day, hour) in self.busy]:
            raise ToolError(f"{taken[0]} is busy on {day} at {hour}")
        self.busy |= {(p, day, hour) for p in people}
        self.booked.append((tuple(sorted(set(people))), day, hour))
        return f"booked {day} {hour}:00"


class Calendar(Simulation):
    """Everybody's calendar must be looked at; exactly one booking, the earliest possible, is right."""

    id = "apps/calendar"
    domain = "automation"
    skills = ("planning", "tools")
    world = Calendars

    def draw(self, rng: random.Random, level: int) -> Draft:
        guests = sorted(rng.sample(PEOPLE, 1 + level))
        free = (rng.choice(DAYS), rng.choice(HOURS))
        busy = []
        for day in DAYS:
            for hour in HOURS:
                takers = [p for p in PEOPLE if rng.random() < 0.5]
                before = (DAYS.index(day), hour) < (DAYS.index(free[0]), free[1])
                if before and not set(takers) & set(guests):
                    takers.append(rng.choice(guests))
                busy += [(p, day, hour) for p in takers if (day, hour) != free or p not in guests]
        text = (
            f"Book a one-hour meeting for {listed(guests)} at the earliest hour of the week (Monday to Friday, "
            "starting between 9 and 16) when all of them are free. Book it once, then answer `done`."
        )
        return Draft(text, "done", {"busy": busy, "guests": guests, "free": list(free)})

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        guests, (day, hour) = task.info["guests"], task.info["free"]
        looks = [("show_day", {"person": p, "day": d}) for d in DAYS[: DAYS.index(day) + 1] for p in guests]
        return [*looks, ("book", {"people": guests, "day": day, "hour": hour})], "done"

    def judge(self, task: Task, world: Any, answer: str | None) -> Grade:
        day, hour = task.info["free"]
        return Grade.outcome(world.booked == [(tuple(task.info["guests"]), day, hour)], booked=world.booked)
