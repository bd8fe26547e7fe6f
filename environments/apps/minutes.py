"""Turn meeting notes into tasks of another application, without doubling what is there."""

from __future__ import annotations

import datetime
import random
from typing import Any

from environments import words
from environments.apps.records import App, Records, pages
from environments.base import Draft
from environments.tools import ToolError, tool

VERBS = ("review", "order", "test", "describe", "measure", "replace", "document", "price", "repair", "compare")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


class Office(Records):
    """Tables: notes, staff, tasks."""

    @tool
    def list_notes(self, page: int = 1) -> dict[str, Any]:
        """The meeting notes by date, without their text."""
        return self.page([{"id": k, "date": n["date"], "team": n["team"]} for k, n in self.db["notes"].items()], page)

    @tool
    def read_note(self, note: str) -> dict[str, Any]:
        """A note with its text."""
        return self.row("notes", note)

    @tool
    def find_staff(self, first_name: str) -> list[dict[str, Any]]:
        """The colleagues of a first name, with their teams."""
        return [{"id": k, **p} for k, p in self.db["staff"].items() if p["name"].split()[0] == first_name]

    @tool
    def list_tasks(self, page: int = 1) -> dict[str, Any]:
        """All tasks; `item` is the action item (such as `A12`) that a task came from."""
        return self.page([{"id": k, **t} for k, t in self.db["tasks"].items()], page)

    @tool
    def create_task(self, item: str, assignee: str, due: str) -> str:
        """Create a task for an action item: id of the assignee, due date as YYYY-MM-DD."""
        self.row("staff", assignee)
        return self.add("tasks", {"item": item, "assignee": assignee, "due": _date(due), "status": "open"})

    @tool
    def update_task(self, task_id: str, assignee: str, due: str, status: str) -> str:
        """Set assignee, due date and status (open, done or cancelled) of a task."""
        self.row("staff", assignee)
        if status not in ("open", "done", "cancelled"):
            raise ToolError("status is open, done or cancelled")
        self.row("tasks", task_id).update(assignee=assignee, due=_date(due), status=status)
        return "updated"


def _date(text: str) -> str:
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise ToolError("a date is written YYYY-MM-DD") from None


class Minutes(App):
    """Later notes move, hand over, finish or drop what earlier ones agreed; due dates are relative."""

    id = "apps/minutes"
    skills = ("dates", "extraction", "tools")
    world = Office

    def draw(self, rng: random.Random, level: int) -> Draft:
        teams = ["Sales", "Design", "Support"]
        firsts = rng.sample(words.FIRST, 3 + level)
        staff: dict[str, Any] = {}
        for first in firsts:
            for team, last in zip(teams, rng.sample(words.LAST, 3), strict=True):
                if rng.random() < 0.6 or first in firsts[:2]:
                    staff[f"u{rng.randint(10, 99)}{len(staff):02d}"] = {"name": f"{first} {last}", "team": team}
        who = {(p["name"].split()[0], p["team"]): k for k, p in staff.items()}
        begin = words.day(rng, "2026-01-05", "2026-09-01")
        count = (2, 4, 7)[level - 1]
        dates = sorted(words.later(begin, d) for d in rng.sample(range(40), count))
        notes: dict[str, Any] = {}
        made: dict[str, dict[str, Any]] = {}
        team_of: dict[str, str] = {}
        codes = iter(rng.sample(range(10, 99), 60))
        for date in dates:
            team = rng.choice(teams)
            people = [first for first, t in who if t == team]
            lines = []
            for item in [i for i, t in team_of.items() if t == team and made[i]["status"] == "open"]:
                first = rng.choice(people)
                change = rng.choice(["none", "due", "assignee", "done", "cancelled"])
                if change == "due":
                    words_due, made[item]["due"] = self._due(rng, date)
                    lines.append(f"- {item} takes longer, it is now due {words_due}.")
                elif change == "assignee":
                    made[item]["assignee"] = who[first, team]
                    lines.append(f"- {first} takes {item} over, same date.")
                elif change in ("done", "cancelled"):
                    made[item]["status"] = change
                    lines.append(f"- {item} is {'finished, thanks!' if change == 'done' else 'no longer needed.'}")
            for _ in range(rng.randint(1, 3)):
                item, first = f"A{next(codes)}", rng.choice(people)
                words_due, due = self._due(rng, date)
                team_of[item] = team
                made[item] = {"item": item, "assignee": who[first, team], "due": due, "status": "open"}
                lines.append(f"- {item}: {first} to {rng.choice(VERBS)} the {rng.choice(words.GOODS)} {words_due}.")
            lines.append(f"- Somebody should think about the {rng.choice(words.GOODS)} one day.")
            rng.shuffle(lines)
            lines.sort(key=lambda line: ":" in line)  # what is new comes last, as in the loop
            notes[f"n{len(notes) + 1}"] = {"date": date, "team": team, "text": "\n".join(lines)}
        tasks: dict[str, Any] = {}
        want: dict[str, Any] = {"tasks": []}
        plan: list[Any] = []
        known = [i for i in made if rng.random() < 0.5]
        for item in known:
            stale = made[item] | {"status": "open"}
            if rng.random() < 0.6:
                stale |= {
                    "assignee": rng.choice(sorted(staff)),
                    "due": words.later(made[item]["due"], -rng.randint(0, 9)),
                }
            tasks[f"tasks-{len(tasks) + 1}"] = stale
        for key, task in tasks.items():
            right = made[task["item"]]
            want |= {f"tasks/{key}/{f}": right[f] for f in right if right[f] != task[f]}
            if right != task:
                fields = {f: right[f] for f in ("assignee", "due", "status")}
                plan.append(["update_task", {"task_id": key, **fields}])
        for item, right in made.items():
            if item not in known and right["status"] == "open":
                want["tasks"].append(right)
                plan.append(["create_task", {f: right[f] for f in ("item", "assignee", "due")}])
        looks = [*pages("list_notes", count), *(["read_note", {"note": k}] for k in notes)]
        looks += [["find_staff", {"first_name": f}] for f in firsts] + pages("list_tasks", len(tasks))
        text = (
            "Bring our tasks in line with the meeting notes, read in the order of their dates. Each action item (A "
            "and a number) is one task; lines without one are not tasks. First names mean the colleague of the note's "
            "team. Later notes change earlier items. `by Friday` is the first Friday after the day of the meeting (a "
            "week later if the meeting is on a Friday), `within N days` counts from the meeting, `at the end of the "
            "month` is the last day of the meeting's month. An item that has a task already is updated where it "
            "differs (assignee, due date, status open, done or cancelled; a finished or dropped item keeps its last "
            "assignee and date). An item without a task gets one, unless it is finished or dropped. Answer `done`."
        )
        return self.draft(text, {"notes": notes, "staff": staff, "tasks": tasks}, want, [*looks, *plan])

    def _due(self, rng: random.Random, date: str) -> tuple[str, str]:
        """A due date in words, and as a date."""
        at, kind = datetime.date.fromisoformat(date), rng.choice(["weekday", "days", "month", "plain"])
        if kind == "weekday":
            goal = rng.randrange(5)
            return f"by {WEEKDAYS[goal]}", words.later(date, (goal - at.weekday() - 1) % 7 + 1)
        if kind == "days":
            days = rng.randint(3, 20)
            return f"within {days} days", words.later(date, days)
        if kind == "month":
            end = (at.replace(day=1) + datetime.timedelta(31)).replace(day=1) - datetime.timedelta(1)
            return "at the end of the month", end.isoformat()
        due = words.later(date, rng.randint(3, 30))
        return f"by {words.spoken(due)}", due
