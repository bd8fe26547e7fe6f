"""Minutes of a meeting to a table of who does what by when, as it stood at the end."""

from __future__ import annotations

import random
from datetime import date, timedelta

from environments.base import Draft
from environments.deliverables import FIRST, Deliverables, table

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
TASKS = (
    "send the draft contract to legal",
    "book the hall for the fair",
    "update the price list",
    "order new badges",
    "call the insurer about the leak",
    "translate the leaflet",
    "test the backup",
    "clean up the shared drive",
    "write the job advert",
    "get three quotes for the roof",
    "plan the summer party",
    "renew the licence",
)


class ActionItems(Deliverables):
    """Tasks change hands, move, are dropped or done already; days are relative to the meeting."""

    id = "office/action_items"
    domain = "office"
    skills = ("reading", "dates")

    def draw(self, rng: random.Random, level: int) -> Draft:
        day = date(2024, 1, 1) + timedelta(rng.randrange(360))
        people, tasks = rng.sample(FIRST, 3 + level), rng.sample(TASKS, 2 + 3 * level)
        state: dict[str, tuple[str, date]] = {}
        said = []
        for number, task in enumerate(tasks, 1):
            who, (words, due) = rng.choice(people), _due(rng, day)
            state[task] = (who, due)
            said.append(
                rng.choice(
                    (
                        f"{number}. {who} will {task} {words}.",
                        f"{number}. Agreed: {who} to {task} {words}.",
                        f"{number}. {rng.choice([p for p in people if p != who])} asked who could {task}; {who} "
                        f"offered to do it {words}.",
                    )
                )
            )
        later = []
        for number in rng.sample(range(1, len(tasks) + 1), min(len(tasks), 3 * level - 1)):
            task = tasks[number - 1]
            who, due = state[task]
            kind = rng.choice(("person", "day", "drop", "done", "talk", "both"))
            other = rng.choice([p for p in people if p != who])
            words, new = _due(rng, day)
            if kind == "person":
                state[task] = (other, due)
                later.append(f"{who} is away then, so {other} takes over item {number}.")
            elif kind == "day":
                state[task] = (who, new)
                later.append(f"{who} needs more time: item {number} is now due {words}.")
            elif kind == "both":
                state[task] = (other, new)
                later.append(f"Correction to item {number}: {other} does it, {words}, not {who}.")
            elif kind in ("drop", "done"):
                del state[task]
                later.append(
                    f"Item {number} is no longer needed."
                    if kind == "drop"
                    else f"{other} noted that item {number} was finished this morning."
                )
            else:
                later.append(f"{other} proposed to take item {number} from {who}, but it was left as it is.")
        rows = sorted([due.isoformat(), who, task] for task, (who, due) in state.items())
        filler = [
            "The minutes of the last meeting were approved.",
            f"{rng.choice(people)} reported on the visit to the plant.",
            "The heating was discussed again; nothing was decided.",
        ]
        text = (
            "minutes.txt holds the minutes of a meeting. Write actions.csv with the header due,owner,task: the tasks "
            "that are still to be done when the meeting ends, due as ISO date, owner the first name, task in the "
            "words of the minutes (`update the price list`). `by Friday` means the first Friday after the meeting's "
            "day, `by Friday week` seven days after that; `within N days` counts from the meeting's day, `by the end "
            "of the month` is the last day of the meeting's month, `by the end of next month` that of the next. Sort "
            "by due, owner, task. Then answer `done`."
        )
        minutes = [
            f"Minutes of {day:%A}, {day.day} {day:%B %Y}",
            f"Present: {', '.join(people)}",
            "",
            filler[0],
            *said,
            *filler[1:],
            *later,
        ]
        files = {"minutes.txt": "\n".join(minutes) + "\nThe meeting closed at 12:15.\n"}
        return Draft(text, "done", {"files": files, "wanted": {"actions.csv": table(("due", "owner", "task"), rows)}})


def _due(rng: random.Random, day: date) -> tuple[str, date]:
    weekday, count = rng.randrange(5), rng.randint(2, 40)
    next_one = day + timedelta((weekday - day.weekday() - 1) % 7 + 1)
    first = (day.replace(day=1) + timedelta(32)).replace(day=1)
    second = (first + timedelta(32)).replace(day=1)
    return rng.choice(
        (
            (f"by {DAYS[weekday]}", next_one),
            (f"by {DAYS[weekday]} week", next_one + timedelta(7)),
            (f"within {count} days", day + timedelta(count)),
            ("by the end of the month", first - timedelta(1)),
            ("by the end of next month", second - timedelta(1)),
        )
    )
