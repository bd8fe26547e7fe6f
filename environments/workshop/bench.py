"""The common half of the workshop: tools, the verdict on files and answer, and demonstrations from an oracle's acts."""

from __future__ import annotations

import random
import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from environments.base import Environment, Step, Style
from environments.sandbox.api import ExecResult, LimitExceeded, Sandbox, Unsupported
from environments.task import Limits, Message, Task, Tool, ToolCall
from rewards.answers import grade_answer, same_number, same_text
from rewards.grade import Grade, GradeStatus

NAMES = string.ascii_lowercase
SYMBOLS = "abcdefghijklmnop"

_COMMAND_S = 10.0
_MAX_CALLS = 4  # in one message
_MAX_FILE = 4096  # bytes; no right file is longer
_MAX_CHARS = 120  # of a tool result; all predicted ones are shorter


def _tool(name: str, description: str, *parameters: str) -> Tool:
    properties = {p: {"type": "string"} for p in parameters}
    schema = {"type": "object", "properties": properties, "required": [*parameters]}
    return {"name": name, "description": description, "parameters": schema}


TOOLS: dict[str, Tool] = {
    "run": _tool("run", "run a command", "cmd"),
    "read": _tool("read", "read words", "path"),
    "write": _tool("write", "write words", "path", "text"),
}
"""Results are words joined by single spaces: `ok` where there are none, `error ...` where it failed."""


@dataclass(frozen=True)
class Act:
    """One tool call of the oracle, the result that it will get, and the thought before it."""

    tool: str
    arguments: dict[str, str]
    result: str
    thought: str


def run(cmd: str, result: str, thought: str) -> Act:
    """An act of the tool `run`."""
    return Act("run", {"cmd": cmd}, result, thought)


def words(text: str | bytes) -> str:
    """White space collapsed; bytes that are not UTF-8 become U+FFFD."""
    return " ".join((text.decode("utf-8", "replace") if isinstance(text, bytes) else text).split())


def lines(symbols: Iterable[str]) -> str:
    """File text with one symbol on each line."""
    return "".join(f"{symbol}\n" for symbol in symbols)


class Bench(Environment):
    """A multi-turn environment: define `draw`, `files`, `expected`, `acts`, `look` and `closing`.

    `draw` puts into the draft's info what these need; nothing but `files` ever enters the agent's sandbox.
    """

    domain = "workshop"
    tags = ("multi_turn", "tools")
    levels = (1, 2)
    limits = Limits(turns=4, tokens=288, seconds=60.0)
    needs_sandbox = True
    tool_names: ClassVar[tuple[str, ...]] = ("run",)
    sizes: ClassVar[tuple[int, int]] = (3, 5)
    """Symbols in the task's files, by level."""
    numeric: ClassVar[bool] = False
    """Whether the answer is one number, compared by value."""

    def files(self, info: dict[str, Any]) -> dict[str, str]:
        """Text of the files that the agent finds, by name."""
        return {}

    def expected(self, info: dict[str, Any]) -> dict[str, str | None]:
        """Words of each file when the task is done, by name; None where there must be no such file."""
        raise NotImplementedError(f"{type(self).__name__} must define expected(info)")

    def acts(self, info: dict[str, Any]) -> list[Act]:
        """The shortest tool path."""
        raise NotImplementedError(f"{type(self).__name__} must define acts(info)")

    def look(self, info: dict[str, Any]) -> Act:
        """Reading back, after `acts`, what the task is about."""
        raise NotImplementedError(f"{type(self).__name__} must define look(info)")

    def closing(self, info: dict[str, Any]) -> str:
        """The thought before the answer."""
        raise NotImplementedError(f"{type(self).__name__} must define closing(info)")

    def tools(self, task: Task) -> list[Tool]:
        """The environment's tools."""
        return [TOOLS[name] for name in self.tool_names]

    async def start(self, task: Task, sandbox: Sandbox | None) -> None:
        """Put the task's files into /workspace."""
        for name, text in self.files(task.info).items():
            await _there(sandbox).write_file(name, text.encode())

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        """Answer each tool call with one message; a message without calls is the answer and ends the episode."""
        calls = conversation[-1].get("tool_calls") or []
        results: list[Message] = []
        for number, call in enumerate(calls):
            text = "error: too many calls" if number >= _MAX_CALLS else await self._call(call, _there(sandbox))
            results.append({"role": "tool", "content": text, "tool_call_id": call["id"], "name": call["name"]})
        return Step(results, done=not calls)

    async def _call(self, call: ToolCall, sandbox: Sandbox) -> str:
        """The result of one call; whatever is wrong with it is the result, never an exception."""
        if call["name"] not in self.tool_names:
            return f"error: no tool {call['name']}"
        arguments = call["arguments"]
        wanted = TOOLS[call["name"]]["parameters"]["required"]
        if not isinstance(arguments, dict) or sorted(arguments) != sorted(wanted):
            return f"error: arguments are {' '.join(wanted)}"
        if not all(isinstance(value, str) for value in arguments.values()):
            return "error: arguments are strings"
        try:
            if call["name"] == "run":
                return _view(await sandbox.exec(arguments["cmd"], timeout=_COMMAND_S))
            if call["name"] == "read":
                return _short(words(await sandbox.read_file(arguments["path"])) or "ok")
            text = lines(arguments["text"].split()).encode("utf-8", "replace")
            await sandbox.write_file(arguments["path"], text)
            return "ok"
        except LimitExceeded as error:
            return _short(f"error: {error.kind} limit")
        except OSError as error:
            return _short(f"error: {error.strerror}")

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """1 if the answer is right and the frozen files are as they must be, else 0."""
        if conversation[-1]["role"] != "assistant" or conversation[-1].get("tool_calls"):
            return Grade.unparsed(expected=task.answer)
        verdict = grade_answer(conversation, task.answer, same_number if self.numeric else same_text)
        if verdict.status is GradeStatus.UNPARSED:
            return verdict
        wrong = await self.inspect(task, _there(sandbox))
        right = verdict.solved and not wrong
        parts = {"answer": verdict.reward or 0.0, "files": float(not wrong)}
        status = GradeStatus.CORRECT if right else GradeStatus.WRONG
        return Grade(float(right), status, parts, verdict.evidence | {"wrong": wrong})

    async def inspect(self, task: Task, sandbox: Sandbox) -> list[str]:
        """What is wrong with the files, seen from a fresh sandbox; nothing of the agent's is executed."""
        wrong = []
        for name, wanted in self.expected(task.info).items():
            found: str | None
            try:
                data = await sandbox.read_file(name)
                found = words(data) if len(data) <= _MAX_FILE else f"{len(data)} bytes"
            except FileNotFoundError:
                found = None
            except (OSError, LimitExceeded) as error:
                found = f"unreadable: {error}"
            if found != wanted:
                wrong.append(f"{name} is {found!r}, not {wanted!r}")
        return wrong

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """direct: the shortest tool path, no thoughts; worked: with thoughts; checked: reads back before it answers."""
        acts = self.acts(task.info)
        closing = "" if style == "direct" else self.closing(task.info)
        if style == "checked":
            acts, closing = [*acts, self.look(task.info)], closing + " ok"
        messages: list[Message] = []
        for act in acts:
            call: ToolCall = {"id": f"{act.tool}:0", "name": act.tool, "arguments": dict(act.arguments)}
            thought = "" if style == "direct" else act.thought
            messages += [
                {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]},
                {"role": "tool", "content": act.result, "tool_call_id": call["id"], "name": act.tool},
            ]
        return [*messages, {"role": "assistant", "content": task.answer, "reasoning_content": closing}]

    def pick(self, rng: random.Random, level: int) -> list[str]:
        """Different symbols, as many as the level says."""
        return rng.sample(SYMBOLS, self.sizes[level - 1])


def _there(sandbox: Sandbox | None) -> Sandbox:
    if sandbox is None:
        raise Unsupported("workshop environments need a sandbox")
    return sandbox


def _view(result: ExecResult) -> str:
    if result.timed_out or result.out_of_memory:
        return "error: timeout" if result.timed_out else "error: out of memory"
    text = words(result.stdout + b" " + result.stderr)
    if not result.ok:
        code = f"signal {result.signal}" if result.code is None else result.code
        return _short(f"error {code}: {text}")
    return _short(text or "ok")


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + " ..."
