"""Whether levels are ordered by difficulty, as a solver finds them that tries the obvious and gives up."""

from __future__ import annotations

from itertools import combinations
from typing import Protocol, runtime_checkable

from environments.check.playing import Stage, message
from environments.task import Message, Task

_TASKS, _QUICK_TASKS = 16, 6
"""Of each level."""
_DEVIATIONS = 2.0
"""Standard deviations of the difference of two levels' counts, at most: a rise of more is none of chance."""


@runtime_checkable
class Weak(Protocol):
    """An environment with a weak solver: a simple rule, a search of a few steps, a habit. It never reads the answer."""

    def weak(self, task: Task) -> str | list[Message]:
        """What it says in this task: its answer, or the messages of a script."""


async def ordered(stage: Stage) -> None:
    """Its solve rate must not rise with the level; the rates are `solver` in the report, or `no solver`."""
    env, report, count = stage.env, stage.report, _QUICK_TASKS if stage.quick else _TASKS
    if not isinstance(env, Weak):
        report.solver = "no solver"
        report.skip("no solver", "order")
        return
    solved: dict[int, int] = {}
    try:
        for level in env.levels:
            tasks = [env.task("train", index, level) for index in range(count)]
            said = [env.weak(task) for task in tasks]
            scripts = [[message(s)] if isinstance(s, str) else s for s in said]
            episodes = [await stage.says(task, *script) for task, script in zip(tasks, scripts, strict=True)]
            solved[level] = sum(e.grade is not None and e.grade.solved for e in episodes)
    except Exception as error:  # of the environment's own code
        stage.findings["order"].note(False, f"its weak solver fails: {error!r}")
        return
    report.solver = {str(level): round(right / count, 3) for level, right in solved.items()}
    if len(env.levels) < 2 or set(solved.values()) in ({0}, {count}):
        report.skip(f"its weak solver solves {report.solver}: that orders nothing", "order")
        return
    for low, high in combinations(env.levels, 2):
        chance = _DEVIATIONS * (count / 2) ** 0.5
        text = f"a weak solver solves {solved[low]} of {count} at level {low}, {solved[high]} at level {high}"
        stage.findings["order"].note(solved[high] - solved[low] <= chance, text)
