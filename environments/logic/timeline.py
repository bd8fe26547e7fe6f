"""Earliest and latest days under rules about gaps between events."""

from __future__ import annotations

import random

from environments.base import Draft
from environments.logic.puzzle import Number, asked

EVENTS = (
    "the audit",
    "the briefing",
    "the contract",
    "the demo",
    "the exhibition",
    "the filming",
    "the gala",
    "the hearing",
    "the inspection",
)
Bound = tuple[int, int, int]
"""(a, b, w): day[b] <= day[a] + w."""


class Timeline(Number):
    """A network of minimal and maximal gaps: the bound that counts runs over a chain of rules, often backwards."""

    id = "logic/timeline"
    skills = ("temporal reasoning", "constraints")

    def draw(self, rng: random.Random, level: int) -> Draft:
        n = 3 + 2 * level
        while True:
            days = [0, *(rng.randint(2, 60) for _ in range(n - 1))]
            bounds: list[Bound] = []
            lines = []
            for b in range(1, n):
                for a in rng.sample(range(b), min(b, 2)) if b > 1 else [0]:
                    gap, slack = days[b] - days[a], rng.randint(0, 6)
                    first, last = (a, b) if gap >= 0 else (b, a)
                    x, y, gap = EVENTS[first - 1] if first else "day 0", EVENTS[last - 1] if last else "day 0", abs(gap)
                    kind = rng.choice(("least", "most", "both"))
                    if kind != "most":
                        bounds.append((last, first, -max(gap - slack, 0)))
                        lines.append(
                            f"{y.capitalize()} is at least {_days(gap - slack)} after {x}."
                            if gap > slack
                            else f"{y.capitalize()} is not before {x}."
                        )
                    if kind != "least":
                        bounds.append((first, last, gap + slack))
                        lines.append(f"{y.capitalize()} is at most {_days(gap + slack)} after {x}.")
            asked_event, latest = rng.randrange(1, n), rng.random() < 0.5
            answer = extreme(n, bounds, asked_event, latest)
            direct = [
                w if latest else -w
                for a, b, w in bounds
                if (a, b) == ((0, asked_event) if latest else (asked_event, 0))
            ]
            if answer is not None and answer not in direct and answer > 0:
                break
        rng.shuffle(lines)
        text = (
            f"A project has {n - 1} events, each on a whole day, counted from day 0: "
            f"{', '.join(EVENTS[: n - 1])}. These rules hold, where an event "
            "`at most 3 days after` another may also be before it:\n"
            + "\n".join(f"- {line}" for line in lines)
            + (
                f"\nWhat is the {'latest' if latest else 'earliest'} possible day of {EVENTS[asked_event - 1]}? (A "
                "day may be negative.)"
            )
        )
        return asked(text, str(answer), "Answer with an integer")


def _days(count: int) -> str:
    return f"{count} day{'s' if count != 1 else ''}"


def extreme(n: int, bounds: list[Bound], event: int, latest: bool) -> int | None:
    """The greatest (least) day of an event by shortest paths from (to) day 0; None where nothing bounds it."""
    far: list[float] = [float("inf")] * n
    far[0 if latest else event] = 0
    for _ in range(n):
        for a, b, w in bounds:
            far[b] = min(far[b], far[a] + w)
    found = far[event] if latest else -far[0]
    return int(found) if abs(found) != float("inf") else None
