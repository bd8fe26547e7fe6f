"""A text adventure: find a treasure behind locked doors and bring it home, with two hands."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Limits, Task
from environments.tools import ToolError, tool

ROOMS = [
    "hall",
    "kitchen",
    "cellar",
    "library",
    "attic",
    "chapel",
    "armoury",
    "stable",
    "garden",
    "crypt",
    "gallery",
    "pantry",
    "study",
    "tower",
    "workshop",
    "vault",
]
KEYS = ["brass", "iron", "silver", "copper", "bone", "glass"]
JUNK = ["candle", "rope", "spoon", "mirror", "bucket", "hammer"]
TREASURES = ["crown", "chalice", "sceptre", "emerald", "ledger"]
WAYS = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
SIZES, LOCKS = (6, 10, 14), (1, 2, 4)
HANDS = 2


class House(Match):
    """Where the player is, what is carried, what lies where, which doors are open."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        info = task.info
        self.here, self.carried = info["home"], list[str]()
        self.lying = {room: [*things] for room, things in info["things"].items()}
        self.locked = dict(info["locks"])
        self.left = info["steps"]

    def _seen(self) -> dict[str, Any]:
        exits = {
            way: f"a door with a {self.locked[f'{self.here}/{way}']} lock"
            if f"{self.here}/{way}" in self.locked
            else "open"
            for way in self.task.info["exits"][self.here]
        }
        return {
            "room": self.here, "exits": exits, "lying_here": self.lying[self.here], "carried": self.carried,
            "actions_left": self.left,
        }  # fmt: skip

    def _act(self) -> dict[str, Any]:
        self.left -= 1
        home = self.here == self.task.info["home"] and self.task.info["treasure"] in self.carried
        if home or not self.left:
            self.end(home)
        return self._seen()

    @tool
    def look(self) -> dict[str, Any]:
        """The room, its exits, what lies there and what you carry. Costs nothing."""
        return self._seen()

    @tool
    def go(self, way: str) -> dict[str, Any]:
        """Go north, east, south or west through an open exit."""
        if way not in self.task.info["exits"][self.here]:
            raise ToolError("there is no exit that way")
        if f"{self.here}/{way}" in self.locked:
            raise ToolError("the door is locked")
        self.here = self.task.info["exits"][self.here][way]
        return self._act()

    @tool
    def unlock(self, way: str) -> dict[str, Any]:
        """Unlock the door that way with the right key, which you must carry; the key stays in the lock."""
        metal = self.locked.get(f"{self.here}/{way}")
        if metal is None or f"{metal} key" not in self.carried:
            raise ToolError("there is no locked door that way" if metal is None else f"you carry no {metal} key")
        self.carried.remove(f"{metal} key")
        del self.locked[f"{self.here}/{way}"]
        return self._act()

    @tool
    def take(self, thing: str) -> dict[str, Any]:
        """Take a thing that lies in the room."""
        if thing not in self.lying[self.here] or len(self.carried) >= HANDS:
            raise ToolError("no such thing lies here" if thing not in self.lying[self.here] else "your hands are full")
        self.lying[self.here].remove(thing)
        self.carried.append(thing)
        return self._act()

    @tool
    def drop(self, thing: str) -> dict[str, Any]:
        """Put down a thing that you carry."""
        if thing not in self.carried:
            raise ToolError("you do not carry that")
        self.carried.remove(thing)
        self.lying[self.here].append(thing)
        return self._act()


class TextAdventure(Game):
    """More rooms, and locks whose keys lie behind other locks; actions are limited, so the map must be remembered."""

    id = "games/text_adventure"
    skills = ("exploration", "memory")
    world = House
    limits = Limits(turns=160, tokens=49_152, seconds=60.0)

    def draw(self, rng: random.Random, level: int) -> Draft:
        info = _house(rng, SIZES[level - 1], LOCKS[level - 1])
        info["steps"] = len(_actions(info)) + 10 + 10 * level
        text = (
            f"You stand in the {info['home']} of an old house. Somewhere in it lies the {info['treasure']}: bring it "
            f"back to the {info['home']}. You can carry {HANDS} things at a time. A door with a lock opens with the "
            f"key of the same metal. You have {info['steps']} actions (going, unlocking, taking, dropping; what is "
            "refused costs nothing). Begin with `look`."
        )
        return Draft(text, None, info)

    def play(self, task: Task) -> Play:
        yield "look", {}
        for name, argument in _actions(task.info):
            yield name, {"way" if name in ("go", "unlock") else "thing": argument}


def _house(rng: random.Random, size: int, locks: int) -> dict[str, Any]:
    """A tree of rooms on a grid; every key lies in a room that needs neither it nor a later one."""
    names = rng.sample(ROOMS, size)
    at, exits, parent = {names[0]: (0, 0)}, {n: dict[str, str]() for n in names}, dict[str, tuple[str, str]]()
    for name in names[1:]:
        while True:
            base, way = rng.choice([*at]), rng.choice([*WAYS])
            where = (at[base][0] + WAYS[way][0], at[base][1] + WAYS[way][1])
            if where not in at.values():
                break
        at[name], parent[name] = where, (base, way)
        back = [*WAYS][([*WAYS].index(way) + 2) % 4]
        exits[base][way], exits[name][back] = name, base
    # The treasure is in the last room; its own door and some others are locked, in the order of the rooms.
    shut = [*sorted(rng.sample(range(1, size - 1), locks - 1)), size - 1]
    metals = rng.sample(KEYS, locks)
    things: dict[str, list[str]] = {n: [] for n in names}
    doors = {}
    for index, metal in zip(shut, metals, strict=True):
        base, way = parent[names[index]]
        doors[f"{base}/{way}"] = metal
        things[names[rng.randrange(max(1, index // 2), index) if index > 1 else 0]].append(f"{metal} key")
    things[names[-1]].append(treasure := rng.choice(TREASURES))
    for junk in rng.sample(JUNK, 3):
        things[rng.choice(names)].append(junk)
    return {"home": names[0], "exits": exits, "things": things, "locks": doors, "treasure": treasure}


def _actions(info: dict[str, Any]) -> list[tuple[str, str]]:
    """What a player does who goes to the nearest useful thing, door or unseen room, knowing only what was seen."""
    here, seen, locked = info["home"], {info["home"]}, dict(info["locks"])
    lying = {room: [t for t in things if t not in JUNK] for room, things in info["things"].items()}
    carried, done = set[str](), list[tuple[str, str]]()

    def route(wanted: Any) -> list[tuple[str, str]]:
        queue, came = deque([here]), {here: list[tuple[str, str]]()}
        while queue:
            room = queue.popleft()
            if wanted(room):
                return came[room]
            for way, other in info["exits"][room].items():
                metal = locked.get(f"{room}/{way}")
                if other in came or (metal and f"{metal} key" not in carried) or room not in seen:
                    continue
                came[other] = [*came[room], *([("unlock", way)] if metal else []), ("go", way)]
                queue.append(other)
        raise ValueError("the house has no way to the treasure: draw another")

    def walk(steps: list[tuple[str, str]]) -> None:
        nonlocal here
        for name, way in steps:
            if name == "unlock":
                carried.discard(f"{locked.pop(f'{here}/{way}')} key")
            else:
                here = info["exits"][here][way]
                seen.add(here)
            done.append((name, way))

    def fetch() -> bool:
        things = [t for t in lying[here] if len(carried) < HANDS and (t == info["treasure"] or _door(t, locked, seen))]
        for thing in things[: HANDS - len(carried)]:
            lying[here].remove(thing)
            carried.add(thing)
            done.append(("take", thing))
        return bool(things)

    while info["treasure"] not in carried:
        if fetch():
            continue
        useful = lambda room: (
            room not in seen
            or (len(carried) < HANDS and any(t == info["treasure"] or _door(t, locked, seen) for t in lying[room]))
        )
        walk(route(useful))
    walk(route(lambda room: room == info["home"]))
    return done


def _door(thing: str, locked: dict[str, str], seen: set[str]) -> bool:
    """Whether a thing is the key of a locked door that was seen: other keys would only fill the hands."""
    return any(thing == f"{metal} key" and door.partition("/")[0] in seen for door, metal in locked.items())
