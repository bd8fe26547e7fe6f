"""An environment with images whose samples differ for any policy; importable by the processes of a run."""

from __future__ import annotations

import zlib
from typing import Any

from environments.sight.squares import Squares
from environments.task import Message, Task
from rewards.grade import Grade


class Guess(Squares):
    """Squares are shown, and half of all replies are right: an untrained policy learns from images at once."""

    async def grade(self, task: Task, conversation: list[Message], sandbox: Any) -> Grade:
        last = conversation[-1]
        said = f"{last['content']} {last.get('reasoning_content')}".encode()
        return Grade.outcome(zlib.crc32(said) % 2 == 1)
