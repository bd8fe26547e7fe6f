"""Take matches from heaps against an opponent who errs never once it can win."""

from __future__ import annotations

import random
from functools import reduce
from operator import xor
from typing import Any

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Message, Task
from environments.tools import ToolError, tool


def best(heaps: list[int], most: int, last_loses: bool) -> tuple[int, int] | None:
    """A winning (heap, count), or None where every move loses. `most`: largest number that one move may take.

    Theory of Bouton: a heap counts modulo most + 1, and the player to move loses where the exclusive or is 0. Where
    taking the last match loses (with no cap in force), the same, until no heap above 1 would be left.
    """
    for i, heap in enumerate(heaps):
        for count in range(1, min(heap, most) + 1):
            left = [h - count * (i == j) for j, h in enumerate(heaps)]
            if lost(left, most, last_loses):
                return i, count
    return None


def lost(heaps: list[int], most: int, last_loses: bool) -> bool:
    """Whether the player to move loses against perfect play."""
    if last_loses and max(heaps, default=0) <= 1:
        return sum(heaps) % 2 == 1
    return reduce(xor, (h % (most + 1) for h in heaps), 0) == 0


class Heaps(Match):
    """The heaps; the opponent answers each move."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.heaps = [*task.info["heaps"]]

    @tool
    def take(self, heap: int, count: int) -> dict[str, Any]:
        """Take `count` matches from a heap (heaps are numbered from 1); the answer is the opponent's reply."""
        most, last_loses = self.task.info["most"], self.task.info["last_loses"]
        if not 1 <= heap <= len(self.heaps) or not 1 <= count <= min(most, self.heaps[heap - 1]):
            raise ToolError(f"not a legal move; the heaps are {self.heaps}, and a move takes at most {most}")
        self.heaps[heap - 1] -= count
        if not any(self.heaps):
            self.end(not last_loses)
            return {"heaps": self.heaps, "over": "you took the last match"}
        i, taken = best(self.heaps, most, last_loses) or (self.heaps.index(max(self.heaps)), 1)
        self.heaps[i] -= taken
        if not any(self.heaps):
            self.end(last_loses)
        return {"opponent": {"heap": i + 1, "count": taken}, "heaps": [*self.heaps]}


class Nim(Game):
    """Level 1 the plain game, level 2 the last match loses, level 3 many heaps and a cap on each move."""

    id = "games/nim"
    skills = ("strategy", "arithmetic")
    world = Heaps

    def draw(self, rng: random.Random, level: int) -> Draft:
        number, size = (4, 5, 6)[level - 1], (12, 14, 25)[level - 1]
        most = rng.randint(3, 8) if level == 3 else size
        while True:
            heaps = [rng.randint(2, size) for _ in range(number)]
            if not lost(heaps, most, level == 2):
                break
        cap = f" A move takes at most {most} matches." if level == 3 else ""
        text = (
            f"There are {number} heaps of matches: {', '.join(map(str, heaps))}. You and an opponent move in turn, you "
            f"first: a move takes one or more matches from one heap.{cap} Whoever takes the very last match "
            f"{'loses' if level == 2 else 'wins'}. The opponent never misses a winning move. Win, with the tool `take`."
        )
        return Draft(text, None, {"heaps": heaps, "most": most, "last_loses": level == 2})

    def play(self, task: Task) -> Play:
        heaps = task.info["heaps"]
        while True:
            i, count = best(heaps, task.info["most"], task.info["last_loses"]) or (0, 1)
            told = yield "take", {"heap": i + 1, "count": count}
            heaps = told["heaps"]

    def weak(self, task: Task) -> list[Message]:
        """Plays the plain game at every level."""
        return self.script(task, _plain(task))


def _plain(task: Task) -> Play:
    """Bouton's rule, without a cap, for whoever wins by the last match."""
    heaps = task.info["heaps"]
    while True:
        i, count = best(heaps, max(heaps), False) or (heaps.index(max(heaps)), 1)
        told = yield "take", {"heap": i + 1, "count": min(count, task.info["most"])}
        heaps = told["heaps"]
