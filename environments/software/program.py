"""What the programs of this family share: they are run on hidden sessions, and what they print is compared here."""

from __future__ import annotations

from typing import Any

from environments.sandbox.api import Sandbox
from environments.task import Limits, Task
from environments.workspace import Workspace
from rewards.grade import Grade, GradeStatus

_SESSION_S = 10.0


class Program(Workspace):
    """Define `draw` (with `info["sessions"]`), `command`, and `solve`.

    A session is a list of [input, expected output]: runs of the program one after another in one folder, so that what
    it keeps on disk counts. Every session begins in an empty folder. Reward 1 for all of them, else their share.
    """

    domain = "software"
    tags = (*Workspace.tags, "long_horizon")
    limits = Limits(turns=80, tokens=65_536, seconds=240.0)

    def command(self, task: Task, given: Any) -> tuple[list[str], bytes]:
        """(arguments, standard input) of one run."""
        raise NotImplementedError(f"{type(self).__name__} must define command(task, given)")

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        right = 0
        wrong: list[str] = []
        sessions = task.info["sessions"]
        for number, session in enumerate(sessions):
            folder = f"/tmp/session{number}"
            await place.exec(["mkdir", folder])
            for given, wanted in session:
                argv, stdin = self.command(task, given)
                result = await place.exec(argv, cwd=folder, stdin=stdin, timeout=_SESSION_S)
                printed = result.stdout.decode("utf-8", "replace")
                if printed.split("\n") != wanted.split("\n"):
                    wrong.append(f"session {number}: {given!r:.200} printed {printed[:200]!r}, not {wanted[:200]!r}")
                    break
            else:
                right += 1
        share = right / len(sessions)
        status = GradeStatus.CORRECT if share == 1 else GradeStatus.PARTIAL if share else GradeStatus.WRONG
        return Grade(share, status, {"sessions": share}, {"wrong": wrong[:3]})
