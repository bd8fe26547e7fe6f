"""Extract a record from a rambling message, as JSON of a given schema."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from environments.base import Draft
from environments.instructions.writing import Verbatim
from environments.task import Message, Task
from environments.words import MONTHS
from rewards.answers import last_reply
from rewards.grade import Grade

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

PEOPLE = (
    "Amira Nassar",
    "Ben Ortiz",
    "Carla Weiss",
    "Deniz Kaya",
    "Erik Holm",
    "Fiona Walsh",
    "Goro Ito",
    "Hanna Virtanen",
)
GOODS = ("notebook", "kettle", "backpack", "headset", "lamp", "flask", "tripod", "raincoat", "keyboard", "blanket")


class JsonRecord(Verbatim):
    """Types count (cents as integers, ISO dates, null for what is not told), and corrections replace what was said."""

    id = "instructions/json_record"
    skills = ("extraction", "formatting")

    def draw(self, rng: random.Random, level: int) -> Draft:
        name, day, month, express = rng.choice(PEOPLE), rng.randint(1, 28), rng.randint(1, 12), rng.random() < 0.5
        goods = rng.sample(GOODS, 1 + level)
        counts, cents = [rng.randint(2, 12) for _ in goods], [rng.randint(200, 9900) for _ in goods]
        phone = f"0{rng.randint(10**7, 10**8 - 1)}" if rng.random() < 0.6 else None
        said = [f"Hi, this is {name}."]
        items = [
            {"name": g, "quantity": n, "unit_price_cents": c} for g, n, c in zip(goods, counts, cents, strict=True)
        ]
        for g, n, c in zip(goods, counts, cents, strict=True):
            said.append(f"I would like {n} {g}s at {c / 100:.2f} euros each.")
        if level > 1:
            i = rng.randrange(len(items))
            items[i]["quantity"] = rng.randint(13, 30)
            said.append(f"Sorry, make that {items[i]['quantity']} {goods[i]}s.")
        if level > 2:
            dropped = items.pop(rng.randrange(len(items)))
            said.append(f"On second thought, leave the {dropped['name']}s out.")
        said.append(
            f"I need them by the {day}{_ending(day)} of {MONTHS[month - 1]} 2031, "
            f"{'with' if express else 'no need for'} express delivery."
        )
        said.append(f"You can reach me at {phone}." if phone else "No phone number, please, just write.")
        record = {
            "customer": name,
            "due": f"2031-{month:02d}-{day:02d}",
            "express": express,
            "phone": phone,
            "items": items,
        }
        text = (
            "Turn this message into one JSON object with exactly the keys customer (string), due (string, "
            "YYYY-MM-DD), express (boolean), phone (string or null), and "
            "items (array of objects with the keys name (singular string), quantity (integer) and "
            "unit_price_cents (integer), in the order they were first named, "
            "as finally wanted). Reply with the JSON only.\n\n" + " ".join(said)
        )
        return Draft(text, json.dumps(record))

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """Equality of the parsed values and their types; a code fence around them is allowed."""
        said = last_reply(conversation).strip()
        if said.startswith("```") and said.endswith("```") and "\n" in said:
            said = said[said.index("\n") : -3]
        if len(said) > 10_000:
            return Grade.unparsed(why="too long")
        try:
            record = json.loads(said, object_pairs_hook=_once)
        except (ValueError, RecursionError):
            return Grade.unparsed(why="no JSON")
        return Grade.outcome(json.dumps(record, sort_keys=True) == json.dumps(json.loads(task.answer), sort_keys=True))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without repeated keys: the value of a repeated one is anybody's guess."""
    if len({k for k, _ in pairs}) != len(pairs):
        raise ValueError("a key is repeated")
    return dict(pairs)


def _ending(day: int) -> str:
    return "th" if 10 < day < 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
