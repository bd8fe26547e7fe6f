"""Find the machine with the highest mean payout with a budget of pulls that have different prices."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Message, Task
from environments.tools import ToolError, tool
from environments.words import listed

ARMS, NOISE, GAP = (5, 7, 12), (12, 20, 30), (8, 7, 6)
ROUNDS = (6, 10, 24)
"""Pulls of each machine that the budget pays for, if spread evenly over machines of price 1.5 on average."""
AT_ONCE = 30
"""Pulls of one call."""


class Hall(Match):
    """What each machine has paid, and the coins that are left."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.left = task.info["budget"]
        self.pulls = [0] * len(task.info["means"])

    @tool
    def pull(self, machine: int, times: int) -> dict[str, Any]:
        """Pull a machine (numbered from 1) up to 30 times; each pull costs its price in coins."""
        info = self.task.info
        if not 1 <= machine <= len(self.pulls) or not 1 <= times <= AT_ONCE:
            raise ToolError(f"machines are 1 to {len(self.pulls)}, times 1 to {AT_ONCE}")
        if times * info["prices"][machine - 1] > self.left:
            raise ToolError(
                f"{self.left} coins are left, and a pull of machine {machine} costs {info['prices'][machine - 1]}"
            )
        self.left -= times * info["prices"][machine - 1]
        first = self.pulls[machine - 1]
        self.pulls[machine - 1] += times
        paid = [payout(info, machine - 1, n) for n in range(first, first + times)]
        return {"paid": paid, "coins_left": self.left}

    @tool
    def choose(self, machine: int) -> str:
        """Name the machine with the highest mean payout; this ends the game."""
        if not 1 <= machine <= len(self.pulls):
            raise ToolError(f"machines are 1 to {len(self.pulls)}")
        means = self.task.info["means"]
        self.end(means[machine - 1] == max(means))
        return "noted"


def payout(info: dict[str, Any], arm: int, number: int) -> int:
    """The number-th payout of a machine: its mean and a noise that depends on the task alone."""
    return info["means"][arm] + random.Random(f"{info['seed']}/{arm}/{number}").randint(-info["noise"], info["noise"])


class Bandit(Game):
    """Many machines, noise above their differences: poor ones must be dropped early, cheap ones tell more a coin."""

    id = "games/bandit"
    skills = ("exploration", "statistics")
    world = Hall

    def draw(self, rng: random.Random, level: int) -> Draft:
        arms, noise = ARMS[level - 1], NOISE[level - 1]
        while True:
            means = [rng.randint(50, 110) for _ in range(arms)]
            high = sorted(means)
            prices = [rng.randint(1, 2) for _ in range(arms)]
            info = {
                "means": means, "prices": prices, "noise": noise, "seed": rng.getrandbits(31),
                "budget": arms * ROUNDS[level - 1] * 3 // 2,
            }  # fmt: skip
            if high[-1] - high[-2] >= GAP[level - 1] and means[_found(info)[1]] == high[-1]:
                break
        text = (
            f"There are {arms} machines; in order, one pull of each costs {listed([*map(str, prices)])} of your "
            f"{info['budget']} coins. Each machine has a fixed mean payout; a single payout is that mean plus a "
            f"random whole number from -{noise} to {noise}, all equally likely. The best mean is at least "
            f"{GAP[level - 1]} above the second. Spend coins with `pull`, then name the machine with the highest mean "
            "with `choose`. Payouts do not add to your coins, and you have one choice."
        )
        return Draft(text, None, info)

    def play(self, task: Task) -> Play:
        pulls, best = _found(task.info)
        for arm, times in pulls:
            yield "pull", {"machine": arm + 1, "times": times}
        yield "choose", {"machine": best + 1}

    def weak(self, task: Task) -> list[Message]:
        """Pulls every machine once."""
        return self.script(task, _once(task))


def _once(task: Task) -> Play:
    paid = []
    for machine in range(1, len(task.info["means"]) + 1):
        told = yield "pull", {"machine": machine, "times": 1}
        paid += told["paid"]
    yield "choose", {"machine": paid.index(max(paid)) + 1}


def _found(info: dict[str, Any]) -> tuple[list[tuple[int, int]], int]:
    """Pulls (machine, times) by rounds over the machines that may still be the best, and the one that seems it."""
    arms = [*range(len(info["means"]))]
    paid: dict[int, list[int]] = {a: [] for a in arms}
    left, pulls, times = info["budget"], list[tuple[int, int]](), max(1, info["budget"] // len(arms) // 4)
    while len(arms) > 1 and left >= times * sum(info["prices"][a] for a in arms):
        for a in arms:
            paid[a] += [payout(info, a, len(paid[a]) + n) for n in range(times)]
            left -= times * info["prices"][a]
            pulls.append((a, times))
        average = {a: sum(paid[a]) / len(paid[a]) for a in arms}
        # Three standard deviations of a difference of averages of uniform noise.
        doubt = 3 * info["noise"] * (2 / 3 / len(paid[arms[0]])) ** 0.5
        arms = [a for a in arms if average[a] > max(average.values()) - doubt]
    return pulls, max(arms, key=lambda a: sum(paid[a]) / len(paid[a]))
