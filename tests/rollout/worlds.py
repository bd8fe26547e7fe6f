"""Environments and a scripted engine for the tests of workers and scheduler; importable by Ray workers."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from environments.base import Draft, Environment, Step
from environments.sandbox.api import Sandbox
from environments.task import Limits, Message, Task, Tool
from model.chat import ChatTokenizer
from rewards.efforts import Effort
from rewards.grade import Grade
from rollout.engine.base import EngineNotReady, FinishReason, GenerateRequest, Generation
from rollout.trajectory import GroupOrder

LOOK: Tool = {
    "name": "look",
    "description": "look at a place",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string"}, "depth": {"type": "integer"}},
        "required": ["place"],
    },
}


class Echo(Environment):
    """Single turn: say the answer."""

    id = "worlds:Echo"

    def draw(self, rng: random.Random, level: int) -> Draft:
        symbols = " ".join(rng.choice("abcdefgh") for _ in range(3 + level))
        return Draft(f"say: {symbols}", symbols)

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        return Grade.outcome(conversation[-1]["content"] == task.answer)


class Looking(Echo):
    """Multi-turn: `look` answers with a letter and is counted; a message without a call ends the episode."""

    id = "worlds:Looking"
    limits = Limits(turns=4, tokens=900, seconds=5.0)
    calls: list[Any] = []

    def tools(self, task: Task) -> list[Tool]:
        return [LOOK]

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        said = conversation[-1]
        for call in said.get("tool_calls", []):
            self.calls.append(call["arguments"])
        results: list[Message] = [
            {"role": "tool", "content": "saw a", "tool_call_id": c["id"], "name": c["name"]}
            for c in said.get("tool_calls", [])
        ]
        return Step(results, done=not results)


class Broken(Echo):
    """Fails where the task's answer says: step, grade, hang_step, hang_grade, type."""

    id = "worlds:Broken"
    limits = Limits(turns=2, tokens=100, seconds=0.2)

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        if task.answer == "step":
            raise RuntimeError("the environment broke")
        if task.answer == "hang_step":
            await asyncio.sleep(60)
        return Step(done=True)

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        if task.answer == "grade":
            raise RuntimeError("the grader broke")
        if task.answer == "hang_grade":
            await asyncio.sleep(60)
        if task.answer == "type":
            return 1.0  # type: ignore[return-value]
        return Grade.outcome(True)


class Blocking(Echo):
    """Its `step` or `grade`, as the task's answer says, spins or sleeps without ever yielding."""

    id = "worlds:Blocking"
    limits = Limits(turns=2, tokens=100, seconds=3.0)

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        if task.answer == "step":
            time.sleep(30)
        return Step(done=True)

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        while task.answer == "grade":
            pass
        return Grade.outcome(True)


class Deadly(Echo):
    """The answer is a folder: every grading leaves a mark there, and the first `info["kills"]` kill their worker."""

    id = "worlds:Deadly"

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        folder = Path(task.answer)
        marks = len(list(folder.iterdir()))
        (folder / f"{os.getpid()}.{time.monotonic_ns()}").touch()
        if marks < task.info.get("kills", 0):
            os.kill(os.getpid(), 9)
        await asyncio.sleep(task.info.get("sleep", 0.0))
        return Grade.outcome(True)


class Files(Environment):
    """Multi-turn with a sandbox: `sh` runs a command; solved if /workspace/out holds the answer."""

    id = "worlds:Files"
    needs_sandbox = True
    limits = Limits(turns=6, tokens=400, seconds=30.0)

    def draw(self, rng: random.Random, level: int) -> Draft:
        return Draft(f"write {rng.randrange(10)}", str(rng.randrange(10)))

    def tools(self, task: Task) -> list[Tool]:
        parameters = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
        return [{"name": "sh", "description": "run", "parameters": parameters}]

    async def start(self, task: Task, sandbox: Sandbox | None) -> None:
        assert sandbox is not None
        await sandbox.write_file("log", b"started\n")

    async def on_restore(self, task: Task, sandbox: Sandbox) -> None:
        if "restored" in task.info:
            with open(task.info["restored"], "ab") as file:
                file.write(await sandbox.read_file("log"))

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        assert sandbox is not None
        results: list[Message] = []
        for call in conversation[-1].get("tool_calls", []):
            assert isinstance(call["arguments"], dict)
            command = call["arguments"]["cmd"]
            die = Path(str(task.info.get("die", "/nonexistent")))
            if command == "die" and die.exists():
                die.unlink()
                os.kill(os.getpid(), 9)
            done = await sandbox.exec("true" if command == "die" else command)
            results.append(
                {"role": "tool", "content": done.stdout.decode()[:40], "tool_call_id": call["id"], "name": "sh"}
            )
        return Step(results, done=not results)

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        assert sandbox is not None
        files = (await sandbox.exec("cat log; ls; cat out")).stdout.decode()
        return Grade.outcome(files.endswith(task.answer), files=files)


def call(name: str, arguments: dict[str, Any] | str, index: int = 0) -> dict[str, Any]:
    """A tool call as the parser names it."""
    return {"id": f"{name}:{index}", "name": name, "arguments": arguments}


def say(content: str = "", *calls: dict[str, Any], thinking: str = "") -> Message:
    """An assistant message."""
    message: Message = {"role": "assistant", "content": content, "reasoning_content": thinking}
    if calls:
        message["tool_calls"] = list(calls)  # type: ignore[typeddict-item]
    return message


def order(
    env: type[Environment] = Echo, id: str = "g0", n: int = 2, answer: Any = None, index: int = 0, **more: Any
) -> GroupOrder:
    """An order of `n` samples of one task of an environment of this module."""
    env_instance = env()
    env_instance.id = f"worlds:{env.__name__}"
    task = env_instance.task("train", index, 1)
    fields = {**task.__dict__, "limits": more.pop("limits", env.limits), "info": more.pop("info", {})}
    if answer is not None:
        fields["answer"] = answer
    return GroupOrder(id, Task(**fields), Effort.HIGH, tuple(range(100, 100 + n)), **more)


class ScriptedEngine:
    """Says `script(turn, seed, answer_of_prompt)`; tokens are cut at max_tokens; log-probs are -(id mod 7) / 8.

    fault(request) may raise, sleep or return; it is called before anything is sampled.
    """

    def __init__(
        self,
        script: Callable[[int, int], Message | list[int]],
        fault: Callable[[GenerateRequest], Any] | None = None,
        delay_s: float = 0.0,
        routes: bool = False,
        version: int = 3,
        max_context: int = 8192,
    ) -> None:
        self.chat = ChatTokenizer()
        self.script, self.fault, self.delay_s, self.routes = script, fault, delay_s, routes
        self.version, self.max_context = version, max_context
        self.asked: list[GenerateRequest] = []
        self.aborted: set[str] = set()

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        self.asked.append(request)
        if self.fault is not None:
            outcome = self.fault(request)
            if asyncio.iscoroutine(outcome):
                await outcome
        end = time.monotonic() + self.delay_s
        while time.monotonic() < end and request.id not in self.aborted:
            await asyncio.sleep(0.01)
        ids, n = request.prompt_ids.tolist(), len(self.chat.prefix_ids)
        turn = sum(ids[at : at + n] == self.chat.prefix_ids for at in range(len(ids) - n + 1)) - 1
        out = []
        for s in request.sampling:
            said = self.script(turn, s.seed)
            ids = said if isinstance(said, list) else self.chat.encode_assistant(said)
            room = min(s.max_tokens, self.max_context - len(request.prompt_ids))
            cut, finish = ids[:room], FinishReason.STOP
            if len(ids) > room:
                finish = FinishReason.LENGTH if room == s.max_tokens else FinishReason.CONTEXT
            if request.id in self.aborted and s.seed % 2:
                cut, finish = cut[:1], FinishReason.ABORT
            n = len(cut)
            routes = prompt_routes = picks = prompt_picks = None
            if self.routes:
                # A token's route is its position and the turn that ran it; the last sampled token has none.
                at = (1000 * turn + np.arange(len(request.prompt_ids) + n, dtype=np.uint16))[:, None, None].repeat(2, 1)
                routes, prompt_routes = at[len(request.prompt_ids) :].copy(), at[: len(request.prompt_ids)]
                routes[-1] = 65535
                picks, prompt_picks = routes.copy(), prompt_routes.copy()  # likewise, but for the first three tokens
                prompt_picks[:3] = 65535
            out.append(
                Generation(
                    np.asarray(cut, np.int32),
                    -(np.asarray(cut, np.float32) % 7) / 8,
                    np.full(n, self.version, np.int32),
                    finish,
                    routes,
                    prompt_routes,
                    picks=picks,
                    prompt_picks=prompt_picks,
                )
            )
        return out

    async def abort(self, request_id: str) -> bool:
        self.aborted.add(request_id)
        return True

    async def stats(self) -> dict[str, float]:
        return {"version": float(self.version)}

    async def requests(self) -> list[tuple[str, int]]:
        """Id and number of continuations of all requests so far."""
        return [(r.id, len(r.sampling)) for r in self.asked]


class Handle:
    """Gives an object of this process the form of an actor handle."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.target, name)

        class _Method:
            @staticmethod
            def remote(*args: Any) -> Any:
                return asyncio.ensure_future(method(*args))

        return _Method


def not_ready(request: GenerateRequest) -> None:
    """A fault: the engine has no weights."""
    raise EngineNotReady("no weights")


def files_script(turn: int, seed: int) -> Message:
    """For `Files`: a line for the log and the answer (the seed's last digit) aside, then out with it, then the end."""
    commands = [f"echo 1 >> log; printf {seed % 10} > aside", "die", "cp aside out"]
    return say("", call("sh", {"cmd": commands[turn]})) if turn < 3 else say("done")


def right(turn: int, seed: int) -> Message:
    """Always the same words."""
    return say("a b", thinking="a b")
