"""Open a lock of dials that only tells how many clicks the whole combination is away."""

from __future__ import annotations

import itertools
import random
from typing import Any

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Task
from environments.tools import ToolError, tool


def clicks(a: list[int], b: list[int]) -> int:
    """Clicks from one combination to another; dials of ten digits turn both ways."""
    return sum(min((x - y) % 10, (y - x) % 10) for x, y in zip(a, b, strict=True))


class Lock(Match):
    """The combination, and the tries that are left."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.left = task.info["tries"]

    @tool
    def set_dials(self, digits: list[int]) -> dict[str, Any]:
        """Set all dials (digits 0 to 9, left to right) and hear the total of clicks to the combination."""
        code = self.task.info["code"]
        if len(digits) != len(code) or any(not 0 <= d <= 9 for d in digits):
            raise ToolError(f"give {len(code)} digits from 0 to 9; this did not cost a try")
        self.left -= 1
        away = clicks(digits, code)
        if not away or not self.left:
            self.end(not away)
        return {"clicks_away": away, "tries_left": self.left}


class DialLock(Game):
    """Distances wrap around, so that a dial's distance leaves two digits: tries must test several dials at once."""

    id = "games/dial_lock"
    skills = ("deduction", "arithmetic")
    world = Lock

    def draw(self, rng: random.Random, level: int) -> Draft:
        dials = 3 + level
        tries = dials + 1 + dials // 2 + (3 - level)
        while True:
            code = [rng.randrange(10) for _ in range(dials)]
            info = {"code": code, "tries": tries}
            if sum(1 for _ in _tries(code)) <= tries:
                break
        text = (
            f"A safe has {dials} dials with the digits 0 to 9; each turns both ways, so 9 and 0 are one click apart. "
            "After you set all dials with `set_dials`, the safe tells the sum over all dials of the clicks between "
            f"the set digit and the right one (the shorter way round). Open it in at most {tries} tries; it opens when "
            "the sum is 0."
        )
        return Draft(text, None, info)

    def play(self, task: Task) -> Play:
        for digits in _tries(task.info["code"]):
            yield "set_dials", {"digits": digits}


def _tries(code: list[int]) -> Any:
    """The tries of a player who knows of the code only what `clicks` told: each dial's distance, then its side."""
    zero = [0] * len(code)
    said = [zero, *([5 if i == k else 0 for i in range(len(code))] for k in range(len(code)))]
    heard = [clicks(s, code) for s in said]
    for number, digits in enumerate(said):
        yield digits
        if not heard[number]:
            return
    # Dial k at 5 instead of 0: the sum changes by 5 - 2d, where d is its distance from 0.
    far = [(5 - (h - heard[0])) // 2 for h in heard[1:]]
    fits = [[*c] for c in itertools.product(*({d, -d % 10} for d in far))]
    fits = sorted(c for c in fits if c not in said)
    while True:
        yield fits[0]
        away = clicks(fits[0], code)
        if not away:
            return
        fits = [c for c in fits[1:] if clicks(fits[0], c) == away]
