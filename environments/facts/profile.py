"""Write the profile of a person from a knowledge base, in fixed fields, with nothing that it does not support."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from environments import words
from environments.base import Draft
from environments.facts.form import lines_of
from environments.simulation import Simulation, World
from environments.task import Limits, Message, Task
from environments.tools import ToolError, tool
from rewards.claims import grade_claims, same_claim, same_set
from rewards.grade import Grade

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

SINGLE = ("born in", "employer", "spouse", "studied at", "year of birth", "residence")
STATUS = ("current", "current", "retracted", "superseded")
PAGE = 5


class Knowledge(World):
    """Items with labels, and statements about them; values may be items."""

    @tool
    def find(self, label: str) -> list[dict[str, Any]]:
        """The items of a label, with a short description."""
        items = self.task.info["items"]
        return [{"item": k, **v} for k, v in items.items() if v["label"].casefold() == label.casefold()]

    @tool
    def label_of(self, item: str) -> str:
        """The label of an item."""
        if item not in self.task.info["items"]:
            raise ToolError(f"no item {item[:40]!r}")
        return self.task.info["items"][item]["label"]

    @tool
    def statements(self, item: str, page: int = 1) -> dict[str, Any]:
        """Statements about an item: property, value (a text or an item), status: current, retracted or superseded."""
        rows = [s for s in self.task.info["statements"] if s["item"] == item]
        pages = max(1, -(-len(rows) // PAGE))
        if not 1 <= page <= pages:
            raise ToolError(f"page must be 1 to {pages}")
        return {"statements": rows[(page - 1) * PAGE : page * PAGE], "page": page, "pages": pages}


class Profile(Simulation):
    """Only current statements count, some fields have several values, some none, and namesakes have their own."""

    id = "facts/profile"
    domain = "facts"
    skills = ("knowledge base", "abstention", "tools")
    limits = Limits(turns=40, tokens=16_384, seconds=60.0)
    world = Knowledge

    def draw(self, rng: random.Random, level: int) -> Draft:
        numbers = iter(rng.sample(range(1000, 9999), 200))
        items: dict[str, Any] = {}
        rows: list[dict[str, Any]] = []
        name, jobs = words.person(rng), rng.sample(["botanist", "painter", "judge", "chemist", "cellist"], 1 + level)
        fields = rng.sample(SINGLE, (3, 4, 6)[level - 1])
        claims: dict[str, str] = {}
        people = [f"Q{next(numbers)}" for _ in jobs]
        looked = list[str]()
        for person, job in zip(people, jobs, strict=True):
            items[person] = {"label": name, "description": f"{job} from {words.town(rng)}"}
            for field in (*SINGLE, "award"):
                current = list[str]()
                for status in rng.sample(STATUS, rng.randint(1, 3)):
                    if field != "award" and status == "current" and current:
                        continue
                    value = label = self._value(rng, field)
                    if field not in ("year of birth",):
                        value = f"Q{next(numbers)}"
                        items[value] = {"label": label, "description": field}
                    rows.append({"item": person, "property": field, "value": value, "status": status})
                    if status == "current":
                        current.append(label)
                        looked += [value] if person == people[0] and value != label else []
                if person == people[0] and field in (*fields, "award"):
                    claims[field] = ", ".join(current) or "unknown"
        rng.shuffle(rows)
        text = (
            f"Write the profile of {name}, the {jobs[0]}, from the knowledge base: the lines "
            + ", ".join(f"`{field}: ...`" for field in claims)
            + " and nothing else. Give labels, not item numbers. Only statements with the status current count. "
            "Where there is none, write `unknown`; where there are several, all of them, separated by commas."
        )
        count = sum(row["item"] == people[0] for row in rows)
        plan: list[Any] = [["find", {"label": name}]]
        plan += [["statements", {"item": people[0], "page": p}] for p in range(1, max(1, -(-count // PAGE)) + 1)]
        plan += [["label_of", {"item": value}] for value in looked]
        return Draft(text, claims, {"items": items, "statements": rows, "plan": plan})

    def _value(self, rng: random.Random, field: str) -> str:
        if field == "year of birth":
            return str(rng.randint(1900, 1990))
        makers = {"employer": words.company, "spouse": words.person}
        if field == "award":
            return f"{words.company(rng).split()[0]} Medal {rng.randint(1950, 2020)}"
        return makers.get(field, words.town)(rng)

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        return [(name, arguments) for name, arguments in task.info["plan"]], lines_of(task.answer)

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """The claims of the last message, which calls no tool."""
        if conversation[-1]["role"] != "assistant" or conversation[-1].get("tool_calls"):
            return Grade.unparsed(why="the episode ended without a final message")
        return grade_claims(conversation, task.answer, lambda a, g: same_set(a, g) or same_claim(a, g))
