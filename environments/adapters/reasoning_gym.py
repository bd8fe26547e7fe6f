"""Environments over reasoning_gym's procedural datasets, scored by the package's own scorers, strictly.

A row is found again from (dataset, level, row number), so a task carries no foreign object. The prompt is the question,
shortened and spaced as `reasoning_gym_sources.py` says for the datasets that it lists; any other dataset of the package
can be named too, and is asked as it is.
"""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING, Any

from environments.adapters.reasoning_gym_sources import SOURCES, Source
from environments.base import Draft, Environment, Style
from environments.task import Message, Task
from rewards.answers import extract, last_reply, same_text
from rewards.grade import Grade, GradeStatus

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

BLOCKED = {
    "game_of_life_halting": "its scorer gives 1.0 to any answer",
    "composite": "it is made of other datasets",
    **dict.fromkeys(
        ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"),
        "it has no gold answer, so it cannot be checked",
    ),
}
"""Datasets of version 0.1.25 that are refused, and why."""

_ROWS = 1_000_000
_SEED = 20_000_000
"""Row r of a level is generated from seed _SEED + r; levels have own configurations and share it."""


@cache
def _dataset(name: str, level: int) -> Any:
    """The package's dataset of one level; building one reads word lists and is far dearer than a row."""
    import reasoning_gym  # heavy (sympy, matplotlib): paid by the process that draws or grades such a task

    return reasoning_gym.create_dataset(name, size=_ROWS, seed=_SEED, **_source(name).configs[level - 1])


def _source(name: str) -> Source:
    return SOURCES.get(name, Source(exact=False))


class ReasoningGym(Environment):
    """One dataset of reasoning_gym; raises ValueError for a blocked one."""

    id = "reasoning_gym"
    tags = ("third_party",)

    def __init__(self, name: str) -> None:
        if name in BLOCKED:
            raise ValueError(f"reasoning_gym dataset {name!r} is blocked: {BLOCKED[name]}")
        self.name = name
        source = _source(name)
        # One class serves many ids: what is fixed per class elsewhere is fixed per instance here.
        levels = tuple(range(1, len(source.configs) + 1))
        vars(self).update(id=f"reasoning_gym/{name}", domain=source.domain, levels=levels)

    def draw(self, rng: random.Random, level: int) -> Draft:
        row = rng.randrange(_ROWS)
        entry, source = _dataset(self.name, level)[row], _source(self.name)
        return Draft(source.ask(entry), source.say(entry["answer"]), {"row": row})

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """The scorer's verdict on the answer; anything but a full score is wrong (partial credit follows formatting).

        An exception of the scorer is provoked by the text it was given: wrong, with the part `scorer_exception`.
        """
        answer = extract(last_reply(conversation))
        if answer is None:
            return Grade.unparsed(expected=task.answer)
        source = _source(self.name)
        evidence = {"read": answer, "expected": task.answer}
        equal = same_text(answer, task.answer) or source.same(answer, task.answer)
        if source.exact and not equal:
            return Grade.outcome(False, **evidence)
        dataset = _dataset(self.name, task.level)
        entry = dataset[task.info["row"]]
        try:
            score = float(dataset.score_answer(entry["answer"] if equal else source.hear(answer), entry))
        except Exception as error:
            evidence["error"] = repr(error)[:200]
            return Grade(0.0, GradeStatus.WRONG, {"scorer_exception": 1.0}, evidence)
        return Grade.outcome(score >= 1.0, **evidence)

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """One assistant message in the format of the primer's exercises."""
        lines: list[str] = []
        if style != "direct":
            entry, source = _dataset(self.name, task.level)[task.info["row"]], _source(self.name)
            lines = source.steps(entry)
            if style == "checked":
                lines = [*lines, "check " + " ; ".join(source.check(entry)) + " ok"]
        return [{"role": "assistant", "content": task.answer, "reasoning_content": " ; ".join(lines)}]
