"""A question with one right answer: the base of single-turn environments in natural language."""

from __future__ import annotations

from typing import TYPE_CHECKING

from environments.base import Environment, Style
from environments.task import Limits, Message, Task
from rewards.answers import grade_answer, same_text
from rewards.grade import Grade

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox


class Question(Environment):
    """Define `draw`; its answer is text. `info["steps"]`, if there, is the worked solution, line by line."""

    limits = Limits(turns=1, tokens=4096, seconds=60.0)

    def same(self, answer: str, gold: str) -> bool:
        """Whether the answer that was read is the gold; it must not raise."""
        return same_text(answer, gold)

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """The answer, after the worked solution where the style has one."""
        thought = "" if style == "direct" else "\n".join(task.info.get("steps", []))
        return [{"role": "assistant", "content": task.answer, "reasoning_content": thought}]

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """Compare the last reply's answer with the gold."""
        return grade_answer(conversation, task.answer, self.same)
