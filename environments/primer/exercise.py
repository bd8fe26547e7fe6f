"""The common half of all exercises: exact grading, and demonstrations from `steps` and `check`."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from environments.base import Environment, Style, thinking
from environments.task import Message, Task
from rewards.answers import grade_answer, same_number, same_text
from rewards.grade import Grade

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

LETTERS = "abcdefghijklmnop"
DIGITS = "0123456789"


def spaced(symbols: int | Iterable[str]) -> str:
    """Symbols (or the digits of a number) separated by single spaces: 37 is "3 7"."""
    return " ".join(str(symbols) if isinstance(symbols, int) else symbols)


def listed(items: Iterable[int | Iterable[str]]) -> str:
    """Numbers or words as a comma-separated list: [37, 5] is "3 7 , 5"."""
    return " , ".join(spaced(i) for i in items)


class Exercise(Environment):
    """A single-turn environment with one right answer: define `draw`, `steps` and `check`.

    `draw` puts into the draft's info what the oracle needs. Thinking is `steps` joined by " ; ", and for the style
    "checked" also "check", the lines of `check`, "ok so" and the answer that the check confirmed.
    """

    sizes: ClassVar[tuple[tuple[int, int], ...]] = ((3, 4), (5, 6), (7, 8))
    """Least and greatest size of the payload, by level."""
    numeric: ClassVar[bool] = False
    """Whether the answer is one number, compared by value."""

    def size(self, rng: random.Random, level: int) -> int:
        """A payload size of this level."""
        return rng.randint(*self.sizes[level - 1])

    def steps(self, info: dict[str, Any]) -> list[str]:
        """The work, one simple local operation a step."""
        raise NotImplementedError(f"{type(self).__name__} must define steps(info)")

    def check(self, info: dict[str, Any]) -> list[str]:
        """A verification from another direction than `steps`."""
        raise NotImplementedError(f"{type(self).__name__} must define check(info)")

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """One assistant message; its thinking is empty, worked, or worked and checked."""
        thought = thinking(style, self.steps(task.info), self.check(task.info), task.answer)
        return [{"role": "assistant", "content": task.answer, "reasoning_content": thought}]

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """Exact match of the last reply's content."""
        return grade_answer(conversation, task.answer, same_number if self.numeric else same_text)
