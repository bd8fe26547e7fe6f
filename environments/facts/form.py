"""Answers in the form `field: value`, one claim a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from environments.base import Style
from environments.question import Question
from environments.task import Limits, Message, Task
from rewards.claims import grade_claims, same_claim
from rewards.grade import Grade

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

FORM = "Answer with one line for each, `number: value`, and nothing else."
"""How a question asks for numbered claims."""


def lines_of(claims: dict[str, str]) -> str:
    """The reply that makes these claims."""
    return "\n".join(f"{field}: {value}" for field, value in claims.items())


def numbered(texts: list[str]) -> str:
    """`1. ...`, a line each."""
    return "\n".join(f"{i}. {text}" for i, text in enumerate(texts, start=1))


class Claims(Question):
    """Define `draw`; its answer is a dict of claims."""

    domain = "facts"
    limits = Limits(turns=1, tokens=12_288, seconds=60.0)

    def same(self, answer: str, gold: str) -> bool:
        return same_claim(answer, gold)

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        return [{"role": "assistant", "content": lines_of(task.answer), "reasoning_content": ""}]

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        return grade_claims(conversation, task.answer, self.same)
