"""The bases of tasks that are answered with a program: in a message, or by a tool that hands it in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from environments.cad.model import LIMITS, judged
from environments.question import Question
from environments.simulation import World
from environments.task import Message, Task
from environments.tools import tool
from rewards.answers import extract, last_reply
from rewards.grade import Grade

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox


class Desk(World):
    """Where a program is handed in."""

    handed: str | None = None

    @tool
    def submit(self, program: str) -> str:
        """Hand in the program; this ends the task."""
        self.handed, self.over = program, True
        return "submitted"


class Modelling(Question):
    """The answer is a program of the target; `info` may hold `start` (a program given) and `most` (primitives)."""

    domain = "cad"
    limits = LIMITS

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """Compare the program's voxels with the target's."""
        answer, info = extract(last_reply(conversation)), task.info
        return judged(answer, task.answer, info.get("start"), info.get("most"))
