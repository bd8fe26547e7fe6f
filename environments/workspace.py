"""Work in a sandbox with a shell: the base of environments whose task is files, programs or repositories.

The agent's sandbox holds `files` and nothing else. The verdict is given in a fresh sandbox on its frozen files: what is
compared with (expected values, hidden inputs) stays in the grader's process, and a program that grades is written there
only then. Output of the agent's code is data to compare, never a verdict.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from environments.base import Environment, Step, Style
from environments.sandbox.api import WORKSPACE, ExecResult, LimitExceeded, Sandbox, Unsupported
from environments.task import Limits, Message, Task, Tool, prompt_key
from environments.tools import ToolError, answer_to, call_tool, calling, tool, tools_of
from rewards.answers import extract, last_reply
from rewards.grade import Grade

MAX_CALLS = 16
"""Calls of one message that are answered; the others get an error."""
_COMMAND_S = 20.0
_PROBE_S = 20.0

GUARD = "import json, sys\ncases = json.load(sys.stdin)\nout, sys.stdout = sys.stdout, sys.stderr\n"
"""Head of a probe: cases come on stdin; what the agent's code prints goes to stderr; `out` is for the one result."""


class Shell:
    """The tools: a shell and files below /workspace."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    @tool
    async def bash(self, command: str) -> str:
        """Run a shell command in /workspace; returns its exit code and output. There is no network."""
        return shown(await self.sandbox.exec(command, timeout=_COMMAND_S))

    @tool
    async def read_file(self, path: str) -> str:
        """Text of a file below /workspace."""
        return (await self._bytes(path)).decode("utf-8", "replace")

    @tool
    async def write_file(self, path: str, text: str) -> str:
        """Create or replace a file below /workspace, with its directories."""
        await self._put(path, text)
        return "written"

    @tool
    async def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace text in a file; `old` must occur exactly once."""
        text = (await self._bytes(path)).decode("utf-8", "surrogateescape")
        if text.count(old) != 1:
            raise ToolError(f"the old text occurs {text.count(old)} times in {path}, not once")
        await self._put(path, text.replace(old, new))
        return "edited"

    async def _bytes(self, path: str) -> bytes:
        try:
            return await self.sandbox.read_file(path)
        except (OSError, LimitExceeded, ValueError) as error:
            raise ToolError(f"{path}: {_why(error)}") from None

    async def _put(self, path: str, text: str) -> None:
        try:
            await self.sandbox.write_file(path, text.encode("utf-8", "surrogateescape"))
        except (OSError, LimitExceeded, ValueError) as error:
            raise ToolError(f"{path}: {_why(error)}") from None


class Workspace(Environment):
    """Define `draw`, `files`, `solve` and `judge`.

    The episode ends with a message that calls no tool.
    """

    tags: ClassVar[tuple[str, ...]] = ("multi_turn", "tools")
    limits = Limits(turns=40, tokens=32_768, seconds=120.0)
    needs_sandbox = True
    shell: ClassVar[type[Shell]] = Shell
    """A subclass adds tools."""
    result_chars: ClassVar[int] = 8000
    """Longest tool result, in characters."""

    def files(self, task: Task) -> dict[str, str | bytes]:
        """What the agent finds in /workspace, by relative path; nothing else of the task enters its sandbox."""
        return {}

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        """The oracle: (tool name, arguments) in order, and the final message."""
        raise NotImplementedError(f"{type(self).__name__} must define solve(task)")

    async def judge(self, task: Task, place: Sandbox, answer: str | None) -> Grade:
        """The verdict on the frozen files in a fresh sandbox and the final message's answer (None: not readable)."""
        raise NotImplementedError(f"{type(self).__name__} must define judge(task, place, answer)")

    def key(self, prompt: tuple[Message, ...], info: dict[str, Any]) -> int:
        """Prompt and info: the same words about other files are another task."""
        return prompt_key(prompt, info)

    def tools(self, task: Task) -> list[Tool]:
        """The shell's tools."""
        return tools_of(self.shell)

    async def start(self, task: Task, sandbox: Sandbox | None) -> None:
        """Put the task's files into /workspace."""
        for path, data in self.files(task).items():
            await there(sandbox).write_file(path, data.encode() if isinstance(data, str) else data)

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        """Answer the calls of the last message."""
        calls = conversation[-1].get("tool_calls") or []
        shell, replies = self.shell(there(sandbox)) if calls else None, []
        for number, call in enumerate(calls):
            text = f"error: at most {MAX_CALLS} calls in one message"
            if number < MAX_CALLS:
                text = await call_tool(shell, self.tools(task), call, self.result_chars)
            replies.append(answer_to(call, text))
        return Step(replies, done=not calls)

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """`judge` in the fresh sandbox; an episode without a final message is judged by its files all the same."""
        last = conversation[-1]
        spoke = last["role"] == "assistant" and not last.get("tool_calls")
        return await self.judge(task, there(sandbox), extract(last_reply(conversation)) if spoke else None)

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """The oracle's calls and its final message, without the sandbox's answers: they are not predicted."""
        calls, answer = self.solve(task)
        messages = [calling(name, number, **arguments) for number, (name, arguments) in enumerate(calls)]
        return [*messages, {"role": "assistant", "content": answer, "reasoning_content": ""}]


async def probe(place: Sandbox, code: str, cases: Any, alone: bool = False) -> Any:
    """What a Python program writes to `out` as JSON, given `cases` as JSON; None where it fails, hangs or says no JSON.

    The program is GUARD and then `code`. It loads what the agent wrote and can be lied to: compare what comes back with
    values that are not in the sandbox. One that itself loads nothing of the agent's (it looks at files, runs SQL,
    counts what another process asks for) must be `alone`: no module in /workspace or in the agent's home stands for a
    standard one, and what it says is what it saw.
    """
    argv = ["python3", *(["-I"] if alone else []), "-B", "-c", GUARD + code]
    result = await place.exec(argv, stdin=json.dumps(cases).encode(), timeout=_PROBE_S)
    if not result.ok or result.dropped[0]:
        return None
    try:
        return json.loads(result.stdout)
    except (ValueError, RecursionError):
        return None


async def read_text(place: Sandbox, path: str) -> str | None:
    """Text of a regular file of the agent, or None where there is none that can be read."""
    try:
        return (await place.read_file(path)).decode("utf-8", "replace")
    except (OSError, LimitExceeded, ValueError):
        return None


def shown(result: ExecResult) -> str:
    """A command's result as the policy reads it."""
    text = b"\n".join(part for part in (result.stdout, result.stderr) if part).decode("utf-8", "replace")
    if result.timed_out:
        return f"timed out after {_COMMAND_S:.0f} s; everything it started was ended\n{text}"
    if result.out_of_memory:
        return f"out of memory; everything it started was ended\n{text}"
    code = f"signal {result.signal}" if result.code is None else f"exit code {result.code}"
    return text if result.ok and text else f"{code}\n{text}".strip()


def there(sandbox: Sandbox | None) -> Sandbox:
    """The sandbox of an environment that needs one."""
    if sandbox is None:
        raise Unsupported(f"this environment works in {WORKSPACE} of a sandbox, and none was given")
    return sandbox


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)
