"""Switch off all lamps of a board whose switches each turn several lamps: lights out on any wiring."""

from __future__ import annotations

import random
from itertools import combinations_with_replacement
from typing import Any

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Message, Task
from environments.tools import ToolError, tool

LAMPS, SWITCHES, STATES = (6, 9, 12), (5, 8, 12), (2, 2, 3)


class Panel(Match):
    """The lamps' states and the presses that are left."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.lamps = [*task.info["lamps"]]
        self.left = task.info["presses"]

    @tool
    def press(self, switch: int) -> dict[str, Any]:
        """Press a switch once, by its number from 1; the answer is every lamp's state."""
        wiring = self.task.info["wiring"]
        if not 1 <= switch <= len(wiring):
            raise ToolError(f"switches are 1 to {len(wiring)}")
        self.left -= 1
        for lamp in wiring[switch - 1]:
            self.lamps[lamp - 1] = (self.lamps[lamp - 1] + 1) % self.task.info["states"]
        if not any(self.lamps) or not self.left:
            self.end(not any(self.lamps))
        return {"lamps": [*self.lamps], "presses_left": self.left}


class Switchboard(Game):
    """Linear equations modulo the number of states, and no press to spare: trying around does not end."""

    id = "games/switchboard"
    skills = ("algebra", "planning")
    world = Panel

    def draw(self, rng: random.Random, level: int) -> Draft:
        lamps, switches, states = LAMPS[level - 1], SWITCHES[level - 1], STATES[level - 1]
        while True:
            wiring = [sorted(rng.sample(range(1, lamps + 1), rng.randint(2, 4))) for _ in range(switches)]
            times = [rng.randrange(states) for _ in wiring]
            start = [
                -sum(n for n, w in zip(times, wiring, strict=True) if i in w) % states for i in range(1, lamps + 1)
            ]
            # One solution only: then the presses allowed are also the fewest.
            if sum(times) >= 2 + level and any(start) and _independent(wiring, lamps, states):
                break
        lines = "\n".join(f"switch {i}: lamps {', '.join(map(str, w))}" for i, w in enumerate(wiring, 1))
        cycle = "on (1) becomes off (0) and off becomes on" if states == 2 else "0 becomes 1, 1 becomes 2, 2 becomes 0"
        text = (
            f"A board has {lamps} lamps; their states are now {', '.join(map(str, start))} (lamp 1 first). Pressing a "
            f"switch changes each of its lamps: {cycle}.\n{lines}\nBring all lamps to 0 with at most {sum(times)} "
            "presses, with the tool `press`."
        )
        info = {"wiring": wiring, "lamps": start, "states": states, "presses": sum(times), "times": times}
        return Draft(text, None, info)

    def play(self, task: Task) -> Play:
        for switch, times in enumerate(task.info["times"], 1):
            for _ in range(times):
                yield "press", {"switch": switch}

    def weak(self, task: Task) -> list[Message]:
        """Looks three presses ahead."""
        return self.script(task, _three(task.info))


def _three(info: dict[str, Any]) -> Play:
    for pressed in combinations_with_replacement(info["wiring"], 3):
        lamps = [v + sum(i in w for w in pressed) for i, v in enumerate(info["lamps"], 1)]
        if not any(v % info["states"] for v in lamps):
            for wires in pressed:
                yield "press", {"switch": info["wiring"].index(wires) + 1}


def _independent(wiring: list[list[int]], lamps: int, prime: int) -> bool:
    """Whether the switches' vectors are linearly independent modulo a prime, by elimination."""
    rows = [[int(i in w) for i in range(1, lamps + 1)] for w in wiring]
    for place, row in enumerate(rows):
        pivot = next((i for i, v in enumerate(row) if v), None)
        if pivot is None:
            return False
        inverse = pow(row[pivot], -1, prime)
        for other in rows[place + 1 :]:
            factor = other[pivot] * inverse % prime
            other[:] = [(o - factor * v) % prime for o, v in zip(other, row, strict=True)]
    return True
