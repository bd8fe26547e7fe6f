"""The base of single-turn tasks that are answered with a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from environments.cad.model import LIMITS, judged
from environments.question import Question
from environments.task import Message, Task
from rewards.answers import extract, last_reply
from rewards.grade import Grade

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox


class Modelling(Question):
    """The answer is a program of the target; `info` may hold `start` (a program given) and `most` (primitives)."""

    domain = "cad"
    limits = LIMITS

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """Compare the program's voxels with the target's."""
        answer, info = extract(last_reply(conversation)), task.info
        return judged(answer, task.answer, info.get("start"), info.get("most"))
