"""A maze of which only the neighbourhood is seen, with coloured doors and their keys."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Task
from environments.tools import ToolError, tool

STEPS = {"N": (-1, 0), "E": (0, 1), "S": (1, 0), "W": (0, -1)}
CELLS = (5, 7, 8)
"""Cells of a side; with walls between them a maze has 2 n + 1 squares a side."""
SIGHT = 2
"""Squares that are seen in each direction."""
RUN = 20
"""Steps of one call."""


class Maze(Match):
    """Where the player is, the keys that were found, and the steps that are left."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.rows = [[*row] for row in task.info["rows"]]
        self.at = (1, 1)
        self.keys: list[str] = []
        self.left = task.info["steps"]

    def shown(self) -> dict[str, Any]:
        """What is seen: the neighbourhood, the place as [row, column], keys."""
        r, c = self.at
        lines = []
        for y in range(r - SIGHT, r + SIGHT + 1):
            row = range(c - SIGHT, c + SIGHT + 1)
            inside = lambda x, y=y: 0 <= y < len(self.rows) and 0 <= x < len(self.rows)
            lines.append("".join("@" if (y, x) == (r, c) else self.rows[y][x] if inside(x) else "#" for x in row))
        return {"view": lines, "at": [r, c], "keys": self.keys, "steps_left": self.left}

    @tool
    def walk(self, steps: str) -> dict[str, Any]:
        """Walk up to 20 steps such as NNE (empty: only look); stops before a wall or a door without its key."""
        if len(steps) > RUN or not {*steps} <= {*STEPS}:
            raise ToolError(f"give at most {RUN} letters of N, E, S and W")
        stopped = None
        for step in steps:
            r, c = self.at[0] + STEPS[step][0], self.at[1] + STEPS[step][1]
            square = self.rows[r][c]
            if square == "#" or (square in "AB" and square.lower() not in self.keys):
                stopped = "wall" if square == "#" else f"door {square} is locked"
                break
            self.at, self.left = (r, c), self.left - 1
            if square in "ab":
                self.keys.append(square)
            if square != "X":
                self.rows[r][c] = "."
            if square == "X" or not self.left:
                self.end(square == "X")
                break
        return self.shown() | ({"stopped": stopped} if stopped else {})


class FogMaze(Game):
    """A larger maze with more doors: a map must be kept in mind, and dead ends must be remembered with their keys."""

    id = "games/fog_maze"
    skills = ("exploration", "memory")
    world = Maze

    def draw(self, rng: random.Random, level: int) -> Draft:
        rows = _maze(rng, CELLS[level - 1], level - 1)
        info = {"rows": rows, "steps": 10**6}
        info["steps"] = sum(len(run) for run in _runs(info)) * 5 // 4 + 10
        doors = ("There are no doors in it.", "Door A needs key a.", "Door A needs key a, door B key b.")[level - 1]
        side = len(rows)
        text = (
            f"You are in a maze of {side} x {side} squares, at [1, 1] ([row, column]; rows grow to the south, columns "
            f"to the east). `#` is wall, `.` free, `X` the exit, small letters keys, capitals doors. {doors} Keys are "
            f"picked up by walking over them. You see only {SIGHT} squares around you, through walls too. Reach X "
            f"within {info['steps']} steps, with the tool `walk`."
        )
        return Draft(text, None, info)

    def play(self, task: Task) -> Play:
        for run in ["", *_runs(task.info)]:
            yield "walk", {"steps": run}


def _maze(rng: random.Random, cells: int, doors: int) -> list[str]:
    """A spanning tree of cells; the exit is a farthest cell, doors stand on the way to it, each key before its door."""
    side = 2 * cells + 1
    rows = [["#"] * side for _ in range(side)]
    stack, came = [(1, 1)], {(1, 1): (1, 1)}
    rows[1][1] = "."
    while stack:
        r, c = stack[-1]
        ways = [(r + 2 * dr, c + 2 * dc) for dr, dc in STEPS.values()]
        ways = [(y, x) for y, x in ways if 0 < y < side and 0 < x < side and rows[y][x] == "#"]
        if not ways:
            stack.pop()
            continue
        y, x = rng.choice(ways)
        rows[y][x] = rows[(r + y) // 2][(c + x) // 2] = "."
        came[y, x] = (r, c)
        stack.append((y, x))

    def path(cell: tuple[int, int]) -> list[tuple[int, int]]:
        return [*path(came[cell]), cell] if cell != (1, 1) else [cell]

    way = max((path(cell) for cell in came), key=len)
    rows[way[-1][0]][way[-1][1]] = "X"
    for number in range(doors):
        # Door k on the k-th part of the way; its key in a cell whose own path does not pass that door.
        index = len(way) * (number + 1) // (doors + 1)
        before, behind = way[index - 1], way[index]
        rows[(before[0] + behind[0]) // 2][(before[1] + behind[1]) // 2] = "AB"[number]
        free = [p for p in came if rows[p[0]][p[1]] == "." and p != (1, 1) and behind not in path(p)]
        r, c = rng.choice(free)
        rows[r][c] = "ab"[number]
    return ["".join(row) for row in rows]


def _runs(info: dict[str, Any]) -> list[str]:
    """The runs of a player who walks to the exit or a key if seen, else to the nearest edge of what was seen."""
    rows, at, keys, known, runs = info["rows"], (1, 1), set[str](), dict[tuple[int, int], str](), list[str]()
    while rows[at[0]][at[1]] != "X":
        for y in range(max(0, at[0] - SIGHT), min(len(rows), at[0] + SIGHT + 1)):
            for x in range(max(0, at[1] - SIGHT), min(len(rows), at[1] + SIGHT + 1)):
                known[y, x] = rows[y][x]
        came, queue = {at: ""}, deque([at])
        goals: dict[int, str] = {}
        while queue:
            here = queue.popleft()
            square = known[here]
            fresh = square in "ab" and square not in keys
            edge = any((here[0] + dr, here[1] + dc) not in known for dr, dc in STEPS.values())
            if here != at and (square == "X" or fresh or edge):
                goals.setdefault(0 if square == "X" else 1 if fresh else 2, came[here])
            for step, (dr, dc) in STEPS.items():
                there = (here[0] + dr, here[1] + dc)
                square = known.get(there, "#")
                if there not in came and square != "#" and (square not in "AB" or square.lower() in keys):
                    came[there] = came[here] + step
                    queue.append(there)
        run = goals[min(goals)][:RUN]
        runs.append(run)
        for step in run:
            at = (at[0] + STEPS[step][0], at[1] + STEPS[step][1])
            keys |= {rows[at[0]][at[1]]} & {"a", "b"}
    return runs
