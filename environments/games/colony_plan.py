"""A small economy: feed workers, gather, train and build, and reach a goal by a given day."""

from __future__ import annotations

import random
from typing import Any, Literal

from environments.base import Draft
from environments.games.game import Game, Match, Play
from environments.task import Task
from environments.tools import ToolError, tool

Order = Literal["farm", "chop", "train", "build"]
ORDERS: tuple[Order, ...] = ("farm", "chop", "train", "build")
State = tuple[int, int, int, int]
"""Food, wood, workers, houses."""
SLACK = (2, 1, 0)
HOUSES = (2, 3, 5)


def after(state: State, order: str, rules: dict[str, int]) -> State | None:
    """The state after a day, or None where the order cannot be paid or food runs short."""
    food, wood, workers, houses = state
    if order == "farm":
        food += rules["farm"] * workers
    elif order == "chop":
        wood += rules["chop"] * workers
    elif order == "train":
        food, workers = food - rules["train"], workers + 1
    else:
        wood, houses = wood - rules["build"], houses + 1
    if food < 0 or wood < 0 or workers > rules["most"]:
        return None
    food -= workers
    return None if food < 0 else (min(food, rules["store"]), min(wood, rules["store"]), workers, houses)


class Colony(Match):
    """The colony, day by day."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.state: State = tuple(task.info["start"])
        self.day = 0

    @tool
    def order(self, what: Order) -> dict[str, Any]:
        """Give the order of the day: farm, chop, train or build. The answer is the colony at the end of the day."""
        rules = self.task.info["rules"]
        left = after(self.state, what, rules)
        if left is None:
            raise ToolError("refused, and no day has passed: it cannot be paid, or leaves less food than is eaten")
        self.state, self.day = left, self.day + 1
        if left[3] >= rules["goal"] or self.day == rules["days"]:
            self.end(left[3] >= rules["goal"])
        return dict(zip(("food", "wood", "workers", "houses"), left, strict=True)) | {
            "days_left": rules["days"] - self.day
        }


class ColonyPlan(Game):
    """The days allow little waste: when to stop growing and start building must be computed, not felt."""

    id = "games/colony_plan"
    skills = ("planning", "optimisation")
    world = Colony

    def draw(self, rng: random.Random, level: int) -> Draft:
        while True:
            rules = {
                "farm": rng.randint(2, 4), "chop": rng.randint(1, 3), "train": rng.randint(2, 6),
                "build": rng.randint(4, 10), "most": rng.randint(3, 5), "store": rng.randint(14, 24),
                "goal": HOUSES[level - 1],
            }  # fmt: skip
            start: State = (rng.randint(3, 8), rng.randint(0, 4), rng.randint(1, 2), 0)
            plan = _plan(start, rules)
            if plan is not None and len({*plan}) == len(ORDERS):  # a plan that needs all orders
                break
        rules["days"] = len(plan) + SLACK[level - 1]
        text = (
            "You run a colony. Each day you give one order, which all workers follow:\n"
            f"- farm: +{rules['farm']} food for each worker\n- chop: +{rules['chop']} wood for each worker\n"
            f"- train: costs {rules['train']} food, +1 worker (at most {rules['most']} workers)\n"
            f"- build: costs {rules['build']} wood, +1 house\n"
            "After the order each worker (a new one too) eats 1 food; an order that cannot be paid or fed is refused. "
            f"Then at most {rules['store']} food and {rules['store']} wood are kept in store.\n"
            f"You start with {start[0]} food, {start[1]} wood, {start[2]} worker{'s' if start[2] > 1 else ''} and no "
            f"house. Build {rules['goal']} houses within {rules['days']} days, with the tool `order`."
        )
        return Draft(text, None, {"rules": rules, "start": list(start), "plan": plan})

    def play(self, task: Task) -> Play:
        for order in task.info["plan"]:
            yield "order", {"what": order}


def _plan(start: State, rules: dict[str, int]) -> list[str] | None:
    """A shortest plan by breadth-first search, or None where there is none within 24 days."""
    layer: dict[State, tuple[str, ...]] = {start: ()}
    seen = {start}
    for _ in range(24):
        fresh: dict[State, tuple[str, ...]] = {}
        for state, done in layer.items():
            for order in ORDERS:
                left = after(state, order, rules)
                if left is None or left in seen:
                    continue
                seen.add(left)
                fresh[left] = (*done, order)
                if left[3] >= rules["goal"]:
                    return [*fresh[left]]
        layer = fresh
    return None
