"""What the tests of planted faults share: a good environment of each kind, and how a law is seen to fail."""

from __future__ import annotations

from typing import Any, ClassVar

from environments.base import Draft
from environments.check import LAWS, CheckReport
from environments.question import Question
from environments.simulation import Simulation, World
from environments.tools import tool
from rewards.answers import same_value
from rewards.grade import Grade


class Sum(Question):
    """A good one."""

    id = "test/sum"

    def draw(self, rng, level):
        terms = [rng.randint(10, 10 ** (level + 1)) for _ in range(1 + level)]
        return Draft(f"{' + '.join(map(str, terms))} = ?", str(sum(terms)), {"terms": terms})

    def same(self, answer, gold):
        return same_value(answer, gold)


class Lamps(World):
    """Lamps that are on or off."""

    def __init__(self, task) -> None:
        super().__init__(task)
        self.on = set(task.info["on"])

    @tool
    def switch(self, number: int) -> str:
        """Turn a lamp on, or off if it is on."""
        self.on ^= {number}
        return "switched"


class Lights(Simulation):
    """A good one: exactly the lamps that are asked for must be on."""

    id = "test/lights"
    world: ClassVar[type[World]] = Lamps

    def draw(self, rng, level):
        on, lamps = rng.sample(range(100), level), rng.sample(range(100, 200), 2 * level)
        text = f"Lamps {on} are on. Turn on {lamps} too, and say `done`."
        return Draft(text, "done", {"on": on, "lamps": lamps})

    def solve(self, task):
        return [("switch", {"number": n}) for n in task.info["lamps"]], "done"

    def judge(self, task, world, answer):
        return Grade.outcome(world.on == {*task.info["on"], *task.info["lamps"]})


def fails(report: CheckReport, law: str) -> None:
    """The law failed, with an example, and the report says so in words."""
    finding = report.findings[law]
    assert finding.failed and finding.examples, report.to_json()
    assert law in report.reasons() and LAWS[law] in report.reasons()


def named(value: Any) -> str:
    """A test's id: the class and the law."""
    return getattr(value, "__name__", value)
