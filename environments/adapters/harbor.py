"""`harbor:/path`: task folders of Harbor and terminal-bench 1, in our sandboxes, judged where the agent never was.

The agent gets a shell in /app, which is /workspace/app. The verdict comes from a fresh sandbox on the frozen files:
only there the tests are laid to /tests, and only what they write to /logs/verifier counts. No reward, or one that is no
finite number in [0, 1], is a failed verifier (masked), never 0.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.adapters.harbor_folder import Folder, UnsupportedTask, find, read
from environments.base import TEST_SHARE, Environment, Step, Style
from environments.sandbox.api import ExecResult, LimitExceeded, SandboxError, SandboxLost
from environments.task import Limits, Message, Split, Task, Tool, ToolCall, prompt_key
from rewards.grade import Grade, GradeStatus

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

_COMMAND_S = 60.0
_MAX_CALLS = 8  # in one message
_MAX_CHARS = 8000  # of a tool result
_TURNS = 50
_STAGE = ".verifier-files"
"""Below /workspace, where files can be laid; moved out before anything runs."""
_HOME = "/root"
"""Leads to /tmp/root, which no snapshot holds: the tests get an empty one."""
_REWARDS = ("reward.json", "reward.txt")
_NOT_PLAIN = 3
_READ = f"""[ -e "$1" ] || [ -L "$1" ] || exit 1
[ -f "$1" ] && [ ! -L "$1" ] && [ -w "$1" ] && [ -w "${{1%/*}}" ] && [ "$(stat -c %h "$1")" = 1 ] || exit {_NOT_PLAIN}
exec head -c 65536 "$1" """
"""A program of the agent's that the tests run could have put something there that they cannot overwrite."""
_PASSED = re.compile(r"^=+ (?P<counts>.*\b\d+ (?:passed|failed|error|errors)\b.*) in [\d.]+s", re.MULTILINE)

TOOL: Tool = {
    "name": "bash",
    "description": "run a command in the task's directory and see what it prints",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


class VerifierFailed(SandboxError):
    """The verifier gave no usable reward: infrastructure."""


class Harbor(Environment):
    """All supported tasks below a folder, dealt to the splits by the hash of their instruction.

    `unsupported` maps a folder to why it is left out. Raises ValueError where no task is left.
    """

    id = "harbor"
    tags = ("third_party", "multi_turn", "tools")
    needs_sandbox = True

    def __init__(self, path: str) -> None:
        self.folders: list[Folder] = []
        self.unsupported: dict[str, str] = {}
        for place in find(Path(path)):
            try:
                self.folders.append(read(place))
            except UnsupportedTask as error:
                self.unsupported[str(place)] = str(error)
        if not self.folders:
            reasons = "; ".join(self.unsupported.values()) or "there is no task.toml or task.yaml"
            raise ValueError(f"harbor:{path} has no task that can run here: {reasons}")
        levels = tuple(sorted({f.level for f in self.folders}))
        domains = {f.domain for f in self.folders}
        seconds = max(max(f.agent_s, f.verifier_s + 30.0) for f in self.folders)
        vars(self).update(
            id=f"harbor:{path}",
            levels=levels,
            domain=domains.pop() if len(domains) == 1 else "terminal",
            limits=Limits(turns=_TURNS, tokens=32_768, seconds=seconds),
        )

    def task(self, split: Split, index: int, level: int, seed: int = 0) -> Task:
        """The index-th folder of a level and split, again and again; raises ValueError where the split has none."""
        dealt = [f for f in self.folders if f.level == level and self._is_test(f) == (split == "test")]
        if not dealt:
            raise ValueError(f"{self.id} level {level} has no task in split {split} (of {len(self.folders)})")
        folder = dealt[index % len(dealt)]
        return Task(
            id=f"{self.id}/{split}/{level}/{index}/{seed}",
            environment=self.id,
            prompt=_prompt(folder),
            domain=self.domain,
            tags=self.tags,
            efforts=self.efforts,
            level=level,
            limits=self.limits,
            seed=seed,
            info={"folder": str(folder.path)},
        )

    @staticmethod
    def _is_test(folder: Folder) -> bool:
        return prompt_key(_prompt(folder)) % TEST_SHARE == 0

    def _folder(self, task: Task) -> Folder:
        return next(f for f in self.folders if str(f.path) == task.info["folder"])

    def tools(self, task: Task) -> list[Tool]:
        """A shell."""
        return [TOOL]

    async def start(self, task: Task, sandbox: Sandbox | None) -> None:
        """The files and commands of the task's Dockerfile; raises SandboxError where one of them fails."""
        folder, place = self._folder(task), _there(sandbox)
        await _must(place, f"mkdir -p /tmp/root {shlex.quote('/workspace' + folder.workdir)}")
        for target, source in folder.files.items():
            await place.write_file(f"/workspace{target}", source.read_bytes(), stat.S_IMODE(source.stat().st_mode))
        for command in folder.runs:
            await _must(place, _inside(folder, command))

    async def on_restore(self, task: Task, sandbox: Sandbox) -> None:
        """An empty home: only /app persists."""
        await _must(sandbox, "mkdir -p /tmp/root")

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        """Answer each call of the shell; a message without a call hands the work in."""
        folder, calls = self._folder(task), conversation[-1].get("tool_calls") or []
        results: list[Message] = []
        for number, call in enumerate(calls):
            text = "error: too many calls" if number >= _MAX_CALLS else await _run(folder, call, _there(sandbox))
            results.append({"role": "tool", "content": text, "tool_call_id": call["id"], "name": call["name"]})
        return Step(results, done=not calls)

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """What the task's tests say about the frozen files, in [0, 1]."""
        folder, place = self._folder(task), _there(sandbox)
        result = await _verify(folder, place)
        if result.timed_out:
            return Grade.failed(GradeStatus.GRADER_TIMEOUT, f"{folder.name}: no verdict in {folder.verifier_s:g} s")
        parts = await _rewards(folder, place, result)
        reward = parts.get("reward", sum(parts.values()) / len(parts))
        status = GradeStatus.CORRECT if reward >= 1.0 else GradeStatus.PARTIAL if reward > 0.0 else GradeStatus.WRONG
        return Grade(reward, status, parts, {"code": result.code, "said": _text(result)[-500:]})

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """The task's own solution in one command."""
        folder = self._folder(task)
        if not folder.oracle.is_file():
            raise NotImplementedError(f"{folder.path} has no {folder.oracle.relative_to(folder.path)}")
        command = f"( {_here_document(folder.oracle.read_text())} ) > /dev/null 2>&1 && echo solved || echo failed"
        call: ToolCall = {"id": "bash:0", "name": "bash", "arguments": {"command": command}}
        thought = "" if style == "direct" else "the known solution"
        return [
            {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]},
            {"role": "tool", "content": "solved", "tool_call_id": call["id"], "name": "bash"},
            {"role": "assistant", "content": "done", "reasoning_content": ""},
        ]


def _prompt(folder: Folder) -> tuple[Message, ...]:
    return ({"role": "user", "content": folder.instruction},)


def _here_document(script: str) -> str:
    return f"bash <<'END_OF_SOLUTION'\n{script.rstrip()}\nEND_OF_SOLUTION\n"


def _there(sandbox: Sandbox | None) -> Sandbox:
    if sandbox is None:
        raise SandboxLost("harbor tasks need a sandbox")
    return sandbox


def _inside(folder: Folder, command: str, extra: dict[str, str] | None = None) -> str:
    """A command in the task's directory, with its variables."""
    variables = {"HOME": _HOME, **folder.environment, **(extra or {})}
    exports = "".join(f"export {key}={shlex.quote(value)}; " for key, value in variables.items())
    return f"{exports}cd {shlex.quote(folder.workdir)} && {{ {command}\n}}"


async def _must(sandbox: Sandbox, command: str) -> None:
    result = await sandbox.exec(command, timeout=_COMMAND_S)
    if not result.ok:
        raise VerifierFailed(f"preparing the task failed: {command!r}: {_text(result)[-300:]}")


async def _run(folder: Folder, call: ToolCall, sandbox: Sandbox) -> str:
    arguments = call["arguments"]
    if call["name"] != "bash" or not isinstance(arguments, dict) or not isinstance(arguments.get("command"), str):
        return "error: call bash with one text, the command"
    try:
        result = await sandbox.exec(_inside(folder, arguments["command"]), timeout=_COMMAND_S)
    except LimitExceeded as error:
        return f"error: {error.kind} limit"
    text = _text(result)
    shown = text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS // 2]}\n...\n{text[-_MAX_CHARS // 2 :]}"
    if result.timed_out:
        return f"{shown}\nerror: no end within {_COMMAND_S:g} s".strip()
    return shown if result.ok else f"{shown}\nexit code {result.code}".strip()


def _text(result: ExecResult) -> str:
    return (result.stdout + result.stderr).decode(errors="replace").strip()


async def _verify(folder: Folder, sandbox: Sandbox) -> ExecResult:
    """Lay the tests to /tests (nothing of the agent's is there), and run them."""
    await _must(sandbox, f"rm -rf {_STAGE} && test ! -e {_STAGE}")
    for source in sorted(p for p in (folder.path / "tests").rglob("*") if p.is_file()):
        target = posixpath.join(_STAGE, str(source.relative_to(folder.path / "tests")))
        await sandbox.write_file(target, source.read_bytes(), stat.S_IMODE(source.stat().st_mode))
    if folder.layout == "terminal-bench":
        await sandbox.write_file(f"{_STAGE}/run-tests.sh", folder.verifier.read_bytes(), 0o755)
    # These are links into /tmp, which no snapshot holds; what lies there is still removed, not trusted.
    await _must(sandbox, "rm -rf /tmp/tests /tmp/logs /tmp/root")
    await _must(sandbox, f"mkdir -p /tmp/logs/verifier /tmp/logs/agent /tmp/root && mv {_STAGE} /tmp/tests")
    script = "/tests/test.sh" if folder.layout == "harbor" else "/tests/run-tests.sh"
    return await sandbox.exec(_inside(folder, f"bash {script}", folder.verifier_env), timeout=folder.verifier_s)


def _reward_files(folder: Folder) -> list[str]:
    """The reward files that the task's own tests name, else both: what else lies there, the agent's program wrote."""
    said = b"".join(p.read_bytes() for p in (folder.path / "tests").rglob("*") if p.is_file())
    return [name for name in _REWARDS if name.encode() in said] or list(_REWARDS)


async def _rewards(folder: Folder, sandbox: Sandbox, result: ExecResult) -> dict[str, float]:
    """Named rewards, all finite in [0, 1]; raises VerifierFailed."""
    said: Any = None
    if folder.layout == "terminal-bench":
        counts = [m["counts"] for m in _PASSED.finditer(_text(result))]
        if not counts:
            raise VerifierFailed(f"{folder.name}: its tests printed no pytest summary: {_text(result)[-300:]}")
        said = float(result.ok and "passed" in counts[-1] and not re.search("failed|error", counts[-1]))
    else:
        for name in _reward_files(folder):
            read_back = await sandbox.exec(["bash", "-c", _READ, "read", f"/logs/verifier/{name}"], timeout=_COMMAND_S)
            if read_back.code == _NOT_PLAIN:
                raise VerifierFailed(f"{folder.name}: {name} is no file that its tests could have written")
            if read_back.ok:
                text = read_back.stdout.decode(errors="replace").strip()
                try:
                    said = json.loads(text) if name == "reward.json" else float(text)
                except ValueError:
                    raise VerifierFailed(f"{folder.name}: {name} is {text[:100]!r}") from None
                break
        else:
            raise VerifierFailed(f"{folder.name}: its tests wrote no reward: {_text(result)[-300:]}")
    parts = said if isinstance(said, dict) else {"reward": said}
    for name, value in parts.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or not 0 <= value <= 1
        ):
            raise VerifierFailed(f"{folder.name}: reward {name!r} is {value!r}, not a finite number in [0, 1]")
    if not parts:
        raise VerifierFailed(f"{folder.name}: reward.json is empty")
    return {str(name): float(value) for name, value in parts.items()}
