"""Sink a hidden fleet with a limited number of shots."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Limits, Message, Task
from environments.tools import ToolError, tool

SIDES, FLEETS, SHOTS = (6, 8, 10), ((3, 2, 2), (4, 3, 3, 2), (5, 4, 3, 3, 2)), (26, 44, 66)
SALVO = 5
"""Shots of one call: more would leave nothing to learn from each answer."""


def place(row: int, column: int) -> str:
    """(0, 0) is A1."""
    return f"{'ABCDEFGHIJ'[row]}{column + 1}"


class Sea(Match):
    """Ships as lists of places, and the places that were shot at."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        side = task.info["side"]
        self.places = {place(r, c) for r in range(side) for c in range(side)}
        self.shot: set[str] = set()
        self.left = task.info["shots"]

    @tool
    def fire(self, places: list[str]) -> dict[str, Any]:
        """Fire at up to 5 places such as B4; the answer has miss, hit or sunk for each, in order."""
        if not 1 <= len(places) <= SALVO or len({*places}) != len(places) or not {*places} <= self.places - self.shot:
            raise ToolError("give 1 to 5 different places of the grid that were not shot at; this cost no shot")
        told = []
        for at in places[: self.left]:
            self.shot.add(at)
            ship = next((s for s in self.task.info["ships"] if at in s), None)
            told.append(f"{at} " + ("miss" if ship is None else "sunk" if {*ship} <= self.shot else "hit"))
        self.left -= len(told)
        afloat = sum(not {*s} <= self.shot for s in self.task.info["ships"])
        if not afloat or not self.left:
            self.end(not afloat)
        return {"shots": told, "ships_afloat": afloat, "shots_left": self.left}


class Battleship(Game):
    """A larger sea with a longer fleet: search where ships still fit, then follow the hits."""

    id = "games/battleship"
    skills = ("search", "deduction")
    world = Sea
    limits = Limits(turns=SHOTS[-1] + 6, tokens=32_768, seconds=60.0)

    def draw(self, rng: random.Random, level: int) -> Draft:
        side, fleet, shots = SIDES[level - 1], FLEETS[level - 1], SHOTS[level - 1]
        while True:
            ships = _fleet(rng, side, fleet)
            if len(_shots(side, ships)) <= shots:
                break
        text = (
            f"A fleet hides in a sea of {side} x {side} places (rows A to {'ABCDEFGHIJ'[side - 1]}, columns 1 to "
            f"{side}): ships of {', '.join(map(str, fleet))} places, each in a straight line across or down, no two on "
            f"the same place (they may touch). Sink all of them with at most {shots} shots, with the tool `fire`."
        )
        return Draft(text, None, {"side": side, "ships": ships, "shots": shots})

    def play(self, task: Task) -> Play:
        for at in _shots(task.info["side"], task.info["ships"]):
            yield "fire", {"places": [at]}

    def weak(self, task: Task) -> list[Message]:
        """Sweeps the sea row by row."""
        return self.script(task, _sweep(task.info))


def _sweep(info: dict[str, Any]) -> Play:
    places = [place(r, c) for r in range(info["side"]) for c in range(info["side"])]
    for start in range(0, len(places), SALVO):
        yield "fire", {"places": places[start : start + SALVO]}


def _fleet(rng: random.Random, side: int, fleet: tuple[int, ...]) -> list[list[str]]:
    ships, taken = list[list[str]](), set[str]()
    for length in fleet:
        while True:
            fixed, start, down = rng.randrange(side), rng.randrange(side - length + 1), rng.random() < 0.5
            ship = [place(*((start + i, fixed) if down else (fixed, start + i))) for i in range(length)]
            if not taken & {*ship}:
                break
        ships.append(ship)
        taken |= {*ship}
    return ships


def _shots(side: int, ships: list[list[str]]) -> list[str]:
    """The shots of a player who searches every second place and then shoots around hits; it reads hits only."""
    hidden = {at for ship in ships for at in ship}
    search = sorted(((r, c) for r in range(side) for c in range(side)), key=lambda p: ((p[0] + p[1]) % 2, _mix(p)))
    shot, near, left = list[str](), list[tuple[int, int]](), {*hidden}
    while left:
        r, c = near.pop() if near else search.pop(0)
        if not (0 <= r < side and 0 <= c < side) or place(r, c) in shot:
            continue
        shot.append(place(r, c))
        if shot[-1] in hidden:
            left.discard(shot[-1])
            near += [(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)]
    return shot


def _mix(at: tuple[int, int]) -> int:
    """An order that spreads over the sea."""
    return (at[0] * 37 + at[1] * 61) % 101
