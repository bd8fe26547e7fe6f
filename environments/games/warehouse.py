"""Plan robots that carry parcels through a warehouse at the same time without meeting."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Task
from environments.tools import ToolError, tool

STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1), "W": (0, 0)}
SIDES, ROBOTS, STOPS, SLACK, RUNS = (5, 6, 7), (2, 3, 4), (2, 2, 4), (4, 2, 1), (4, 3, 3)

Place = tuple[int, int]


def trace(info: dict[str, Any], plans: dict[str, str]) -> str | None:
    """What goes wrong when all plans run at once, in words; None where every robot makes all its stops in order."""
    at = {name: tuple(robot["start"]) for name, robot in info["robots"].items()}
    left = {name: [*map(tuple, robot["stops"])] for name, robot in info["robots"].items()}
    for tick in range(info["ticks"]):
        new = {}
        for name, place in at.items():
            step = STEPS[plans[name][tick] if tick < len(plans[name]) else "W"]
            new[name] = (place[0] + step[0], place[1] + step[1])
            if not _free(info, new[name]):
                return f"tick {tick + 1}: {name} runs into a shelf or a wall"
        for a in new:
            for b in new:
                if a < b and (new[a] == new[b] or (new[a] == at[b] and new[b] == at[a])):
                    return f"tick {tick + 1}: {a} and {b} collide"
        at = new
        for name, stops in left.items():
            if stops and at[name] == stops[0]:
                stops.pop(0)
    if late := [name for name, stops in left.items() if stops]:
        return f"after {info['ticks']} ticks {late[0]} has not made all its stops"
    return None


def _free(info: dict[str, Any], place: Place) -> bool:
    r, c = place
    return 0 <= r < len(info["rows"]) and 0 <= c < len(info["rows"]) and info["rows"][r][c] != "#"


class Floor(Match):
    """The runs that are left."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.left = task.info["runs"]

    @tool
    def run(self, plans: dict) -> str:
        """Run the plans of all robots from their starts, such as {"R1": "UURW", "R2": "L"}; a shorter plan waits."""
        info = self.task.info
        for name in info["robots"]:
            plan = plans.get(name)
            if not isinstance(plan, str) or not {*plan} <= {*STEPS} or len(plan) > info["ticks"]:
                raise ToolError(f"{name} needs a plan of at most {info['ticks']} letters of U, D, L, R and W")
        wrong = trace(info, {name: plans[name] for name in info["robots"]})
        self.left -= 1
        if wrong is None or not self.left:
            self.end(wrong is None)
        return "all parcels are delivered" if wrong is None else f"{wrong}; {self.left} runs left"


class Warehouse(Game):
    """More robots, more stops and hardly a spare tick: shortest ways cross, and somebody must wait or go around."""

    id = "games/warehouse"
    skills = ("planning", "scheduling")
    world = Floor

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:
            info = _warehouse(rng, SIDES[level - 1], ROBOTS[level - 1], STOPS[level - 1])
            plans = _plans(info)
            if plans is not None:
                break
        info |= {"plans": plans, "ticks": max(map(len, plans.values())) + SLACK[level - 1], "runs": RUNS[level - 1]}
        jobs = "\n".join(
            f"{name} starts at {robot['start']} and must visit, in this order, "
            + ", then ".join(map(str, robot["stops"]))
            for name, robot in info["robots"].items()
        )
        text = (
            f"Robots share a warehouse floor of {len(info['rows'])} x {len(info['rows'])} squares ([row, column], from "
            f"[0, 0] at the top left; # is a shelf):\n\n" + "\n".join(info["rows"]) + f"\n\n{jobs}\n\nIn every tick "
            "each robot makes one step (U, D, L, R) or waits (W). Two robots must never be on one square after a tick, "
            f"nor swap squares in it; a robot that is done still stands there. Give plans of at most {info['ticks']} "
            f"ticks that make all stops, with the tool `run`; you have {info['runs']} runs, each from the start."
        )
        return Draft(text, None, info)

    def play(self, task: Task) -> Play:
        yield "run", {"plans": task.info["plans"]}


def _warehouse(rng: random.Random, side: int, robots: int, stops: int) -> dict[str, Any]:
    squares = [(r, c) for r in range(side) for c in range(side)]
    shelves = {*rng.sample(squares, side * side // 5)}
    while not _connected({s for s in squares if s not in shelves}):  # else most plans fail, after long searches
        shelves = {*rng.sample(squares, side * side // 5)}
    rows = ["".join("#" if (r, c) in shelves else "." for c in range(side)) for r in range(side)]
    # Different places for everything, so that no robot must end where another has to go.
    free = rng.sample([s for s in squares if s not in shelves], robots * (1 + stops))
    names = [f"R{i + 1}" for i in range(robots)]
    parts = [free[i * (1 + stops) : (i + 1) * (1 + stops)] for i in range(robots)]
    return {
        "rows": rows,
        "robots": {
            n: {"start": list(p[0]), "stops": [list(s) for s in p[1:]]} for n, p in zip(names, parts, strict=True)
        },
    }


def _connected(free: set[Place]) -> bool:
    """Whether every free square can be reached from every other one."""
    reached = {min(free)}
    while grown := {(r + dr, c + dc) for r, c in reached for dr, dc in STEPS.values()} & free - reached:
        reached |= grown
    return len(reached) == len(free)


def _plans(info: dict[str, Any]) -> dict[str, str] | None:
    """A plan for one robot after the other, each around the earlier ones; None where one finds no way."""
    plans, ways = dict[str, str](), list[list[Place]]()
    for name, robot in info["robots"].items():
        plan = _plan(info, tuple(robot["start"]), [*map(tuple, robot["stops"])], ways)
        if plan is None:
            return None
        at, way = tuple(robot["start"]), [tuple(robot["start"])]
        for step in plan:
            at = (at[0] + STEPS[step][0], at[1] + STEPS[step][1])
            way.append(at)
        plans[name] = plan
        ways.append(way)
    return plans


def _plan(info: dict[str, Any], start: Place, stops: list[Place], ways: list[list[Place]]) -> str | None:
    """Breadth-first search over (place, stops made, tick); the robot must be able to stand at its end for ever."""
    free = {(r, c) for r, row in enumerate(info["rows"]) for c, square in enumerate(row) if square != "#"}
    horizon = 5 * len(info["rows"])  # later ways are detours that no task needs
    if any(w[0] == start for w in ways):
        return None
    spots = [[w[min(t, len(w) - 1)] for w in ways] for t in range(horizon + 1)]
    busy = {(p, t) for t, places in enumerate(spots) for p in places}
    swaps = {(spots[t + 1][i], spots[t][i], t) for t in range(horizon) for i in range(len(ways))}
    until = {p: t for t, places in enumerate(spots) for p in places}
    queue, seen = deque([(start, 0, "")]), {(start, 0, 0)}
    while queue:
        at, made, plan = queue.popleft()
        tick = len(plan)
        if made == len(stops) and until.get(at, -1) < tick:
            return plan
        if tick == horizon:
            continue
        for step, (dr, dc) in STEPS.items():
            to = (at[0] + dr, at[1] + dc)
            if (to, tick + 1) in busy or (at, to, tick) in swaps or to not in free:
                continue
            done = made + (made < len(stops) and to == stops[made])
            if (to, done, tick + 1) not in seen:
                seen.add((to, done, tick + 1))
                queue.append((to, done, plan + step))
    return None
