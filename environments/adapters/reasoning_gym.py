"""Environments over reasoning_gym's procedural datasets, graded strictly.

A row is found again from (dataset, level, row number), so a task carries no foreign object. `reasoning_gym_sources.py`
holds the datasets that a tiny policy is asked, with shortened and spaced prompts and the package's scorers behind an
exact comparison; `reasoning_gym_table.py` holds all others, asked in the package's words and graded by our own rules.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import warnings
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from environments.adapters import reasoning_gym_rules as rules
from environments.adapters.host import host
from environments.adapters.reasoning_gym_sources import Source
from environments.adapters.reasoning_gym_table import DATASETS
from environments.base import Draft, Environment, Style, thinking
from environments.task import Limits, Message, Task
from rewards.answers import MAX_CHARS, extract, last_reply, same_text
from rewards.grade import Grade, GradeStatus

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

VERSION = "0.1.25"

BLOCKED = {
    "game_of_life_halting": "its scorer gives 1.0 to any answer, and its gold is the opposite of what its rows show",
    "composite": "it is made of other datasets",
}
"""Datasets of that version that are refused, and why."""

APART = {"codeio", "isomorphic_strings", "list_functions", "polynomial_multiplication", "ransom_note"}
"""Datasets with a process of their own, whose hash seed is fixed: codeio runs programs to make a row, some of which
write files where they stand; the others draw from sets, so that a row depends on the hash seed."""

_ROWS = 1_000_000
_SEED = 20_000_000
"""Row r of a level is generated from seed _SEED + r; levels have own configurations and share it."""

_TRIES = 200
"""Rows until one has a gold answer; most datasets need one."""


@cache
def _dataset(name: str, level: int) -> Any:
    """The package's dataset of one level; building one reads word lists and is far dearer than a row."""
    import reasoning_gym  # heavy (sympy, matplotlib): paid by the process that draws or grades such a task

    source = DATASETS[name]
    return reasoning_gym.create_dataset(name, size=source.made or _ROWS, seed=_SEED, **source.configs[level - 1])


@lru_cache(maxsize=4096)
def _entry(name: str, level: int, row: int) -> dict[str, Any]:
    """One row; not to be changed."""
    if name in APART:
        source = DATASETS[name]
        served = host(sys.executable, "reasoning_gym_rows")
        config = json.dumps(source.configs[level - 1])
        return served.call("entry", name=name, size=source.made or _ROWS, seed=_SEED, config=config, row=row)
    # Some generators show their progress and compile what they made: not on our output.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _dataset(name, level)[row]


@lru_cache(maxsize=4096)
def _gold(name: str, level: int, row: int) -> str | None:
    """The gold answer of a row, or None where it has none that may be given as an answer."""
    answer = DATASETS[name].gold(_entry(name, level, row))
    return answer if answer is not None and answer.strip() and len(answer) <= MAX_CHARS else None


class ReasoningGym(Environment):
    """One dataset of reasoning_gym; raises ValueError for a blocked or unknown one."""

    id = "reasoning_gym"
    tags = ("third_party",)

    def __init__(self, name: str) -> None:
        if name not in DATASETS:
            why = f"is blocked: {BLOCKED[name]}" if name in BLOCKED else "is not in reasoning_gym_table.py"
            raise ValueError(f"reasoning_gym dataset {name!r} {why}")
        self.name = name
        source = DATASETS[name]
        # One class serves many ids: what is fixed per class elsewhere is fixed per instance here.
        levels = tuple(range(1, len(source.configs) + 1))
        vars(self).update(
            id=f"reasoning_gym/{name}",
            domain=source.domain,
            skills=source.skills,
            levels=levels,
            limits=Limits(tokens=source.tokens),
            rounded=source.right is rules.three_figures,
        )

    def draw(self, rng: random.Random, level: int) -> Draft:
        """A row with a gold answer; raises ValueError where none of many has one."""
        source = DATASETS[self.name]
        for _ in range(_TRIES):
            row = rng.randrange(source.made or _ROWS)
            answer = _gold(self.name, level, row)
            if answer is not None:
                return Draft(source.ask(_entry(self.name, level, row)), source.say(answer), {"row": row})
        raise ValueError(f"{self.id} level {level}: no row of {_TRIES} has a gold answer")

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """Right or wrong, nothing between: partial credit follows formatting.

        What a rule or scorer raises is provoked by the text it was given: wrong, with the part `scorer_exception`.
        """
        source = DATASETS[self.name]
        answer = extract(last_reply(conversation), lines=source.right is not None)
        if answer is None:
            return Grade.unparsed(expected=task.answer)
        evidence = {"read": answer, "expected": task.answer}
        try:
            return Grade.outcome(self._right(source, task, answer), **evidence)
        except Exception as error:
            evidence["error"] = repr(error)[:200]
            return Grade(0.0, GradeStatus.WRONG, {"scorer_exception": 1.0}, evidence)

    def _right(self, source: Source, task: Task, answer: str) -> bool:
        entry = _entry(self.name, task.level, task.info["row"])
        if source.right is not None:
            return source.right(answer, entry)
        equal = same_text(answer, task.answer) or source.same(answer, task.answer)
        if source.exact and not equal:
            return False
        heard = entry["answer"] if equal else source.hear(answer)
        return float(_dataset(self.name, task.level).score_answer(heard, entry)) >= 1.0

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """The gold in one assistant message, after the worked steps of the datasets that have them."""
        thought = ""
        if style != "direct":
            entry, source = _entry(self.name, task.level, task.info["row"]), DATASETS[self.name]
            check = source.check(entry) if style == "checked" and source.right is None else []
            thought = thinking(style, source.steps(entry), check, task.answer)
        return [{"role": "assistant", "content": task.answer, "reasoning_content": thought}]
