"""Push crates onto their places in a small store room."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Task
from environments.tools import ToolError, tool

STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
SIDES, CRATES, PULLS, LEAST = (6, 7, 9), (1, 2, 4), (20, 60, 200), (4, 10, 24)
"""`LEAST`: steps that our own solution has at least, so that no room is solved by a step or two."""
RUN = 60
"""Steps of one call."""

Place = tuple[int, int]


def shown(walls: set[Place], goals: set[Place], crates: set[Place], at: Place, side: int) -> str:
    """The room as text."""

    def square(p: Place) -> str:
        if p in walls:
            return "#"
        if p == at:
            return "+" if p in goals else "@"
        return ("*" if p in goals else "$") if p in crates else "." if p in goals else " "

    return "\n".join("".join(square((r, c)) for c in range(side)) for r in range(side))


class Room(Match):
    """The player and the crates."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        info = task.info
        self.walls, self.goals = ({tuple(p) for p in info[k]} for k in ("walls", "goals"))
        self.left = info["steps"]
        self._begin()

    def _begin(self) -> None:
        self.crates, self.at = {tuple(p) for p in self.task.info["crates"]}, tuple(self.task.info["at"])

    def _shown(self) -> str:
        return f"{shown(self.walls, self.goals, self.crates, self.at, self.task.info['side'])}\n{self.left} steps left"

    @tool
    def reset(self) -> str:
        """Put everything back to the beginning; steps that were made stay spent."""
        self._begin()
        return self._shown()

    @tool
    def walk(self, steps: str) -> str:
        """Walk up to 60 steps such as UULR, pushing a crate that is in the way; stops where something blocks."""
        if not 1 <= len(steps) <= RUN or not {*steps} <= {*STEPS}:
            raise ToolError(f"give 1 to {RUN} letters of U, D, L and R")
        for number, step in enumerate(steps):
            dr, dc = STEPS[step]
            to, beyond = (self.at[0] + dr, self.at[1] + dc), (self.at[0] + 2 * dr, self.at[1] + 2 * dc)
            if to in self.walls or (to in self.crates and beyond in self.walls | self.crates):
                return f"step {number + 1} ({step}) is blocked\n{self._shown()}"
            if to in self.crates:
                self.crates = (self.crates - {to}) | {beyond}
            self.at, self.left = to, self.left - 1
            if self.crates == self.goals or not self.left:
                self.end(self.crates == self.goals)
                break
        return self._shown()


class Sokoban(Game):
    """More crates in a larger room: a wrong push cannot be undone, only the whole room can be reset."""

    id = "games/sokoban"
    skills = ("planning", "spatial")
    world = Room

    def draw(self, rng: random.Random, level: int) -> Draft:
        side = SIDES[level - 1]
        while True:
            info = _room(rng, side, CRATES[level - 1], PULLS[level - 1])
            if info is not None and len(info["way"]) >= LEAST[level - 1]:
                break
        walls, goals, crates = ({tuple(p) for p in info[k]} for k in ("walls", "goals", "crates"))
        board = shown(walls, goals, crates, tuple(info["at"]), side)
        text = (
            "Push every crate onto a goal. You can push one crate at a time and pull none. # is wall, @ you, $ a "
            f"crate, . a goal, * a crate on a goal, + you on a goal.\n\n{board}\n\n"
            f"U, D, L and R move up, down, left and right. You have {info['steps']} steps, with the tool `walk`; "
            "`reset` starts again without giving steps back."
        )
        return Draft(text, None, info)

    def play(self, task: Task) -> Play:
        way = task.info["way"]
        for start in range(0, len(way), RUN):
            yield "walk", {"steps": way[start : start + RUN]}


def _room(rng: random.Random, side: int, number: int, pulls: int) -> dict[str, Any] | None:
    """A room made from its solved state by walking and pulling at random; None where a crate stayed on its goal."""
    border = {(r, c) for r in range(side) for c in range(side) if r in (0, side - 1) or c in (0, side - 1)}
    inner = [(r, c) for r in range(1, side - 1) for c in range(1, side - 1)]
    walls = border | {*rng.sample(inner, side - 3)}
    floor = [p for p in inner if p not in walls]
    goals = {*rng.sample(floor, number)}
    at, crates, back = rng.choice([p for p in floor if p not in goals]), {*goals}, list[str]()
    for _ in range(pulls):
        step = rng.choice([*STEPS])
        dr, dc = STEPS[step]
        to, behind = (at[0] + dr, at[1] + dc), (at[0] - dr, at[1] - dc)
        if to in walls or to in crates:
            continue
        if behind in crates and rng.random() < 0.8:
            crates = (crates - {behind}) | {at}
        at = to
        back.append(step)
    if crates & goals:
        return None
    way = "".join({"U": "D", "D": "U", "L": "R", "R": "L"}[s] for s in reversed(back))
    # The reverse of a pull is a push; of a walk beside a crate that was left standing it is a walk, unless it pushes.
    info = {
        "side": side, "walls": [*map(list, sorted(walls))], "goals": [*map(list, sorted(goals))],
        "crates": [*map(list, sorted(crates))], "at": list(at),
    }  # fmt: skip
    solved = _shortened(way, walls, goals, crates, at)
    return None if solved is None else info | {"way": solved, "steps": 3 * len(solved) + 20}


def _shortened(way: str, walls: set[Place], goals: set[Place], crates: set[Place], at: Place) -> str | None:
    """The way up to the solved room, without walks that come back to a state; None where it does not solve it."""
    seen, done = {(at, frozenset(crates)): 0}, list[str]()
    for step in way:
        dr, dc = STEPS[step]
        to, beyond = (at[0] + dr, at[1] + dc), (at[0] + 2 * dr, at[1] + 2 * dc)
        if to in walls or (to in crates and beyond in walls | crates):
            return None
        if to in crates:
            crates = (crates - {to}) | {beyond}
        at = to
        done.append(step)
        state = (at, frozenset(crates))
        if state in seen:
            for key in [k for k, v in seen.items() if v > seen[state]]:
                del seen[key]
            del done[seen[state] :]
        seen[state] = len(done)
        if crates == goals:
            return "".join(done)
    return None
