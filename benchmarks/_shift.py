"""A long day's work: every turn of the policy adds to a file of the sandbox, and brings a log made from that file."""

from __future__ import annotations

import json
import random
import zlib
from typing import Any

from environments.base import Draft, Environment, Step
from environments.sandbox.api import Sandbox
from environments.task import Message, Task, Tool
from environments.workshop.bench import TOOLS
from rewards.grade import Grade

_LOG = (
    "echo {said} >> state; seed=$(cksum < state | cut -d' ' -f1); awk -v n={symbols} -v x=$seed "
    "'BEGIN {{ x = x % 2147483647; for (i = 0; i < n; i++) {{ x = (x * 16807) % 2147483647; "
    'printf "%c ", 97 + int(x / 1000) % 16 }} }}\''
)
"""A line for the file, then letters that depend on all its lines: a lost or doubled turn changes all that follow."""


class Shift(Environment):
    """Of `info["turns"]` turns with `info["symbols"]` letters of log each, whatever the policy says; solved if the file
    has the lines of its turns, in their order (a malformed call is none)."""

    id = "benchmarks._shift:Shift"
    needs_sandbox = True

    def draw(self, rng: random.Random, level: int) -> Draft:
        return Draft(f"save w last: {' '.join(rng.choice('abcdefghijklmnop') for _ in range(3))}", "")

    def tools(self, task: Task) -> list[Tool]:
        return [TOOLS["write"], TOOLS["read"]]

    async def start(self, task: Task, sandbox: Sandbox | None) -> None:
        assert sandbox is not None
        await sandbox.write_file("state", b"")

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        assert sandbox is not None
        said = conversation[-1]
        done = await sandbox.exec(_LOG.format(said=_mark(said), symbols=task.info["symbols"]))
        log = done.stdout.decode().strip()
        calls = said.get("tool_calls") or []
        results: list[Message] = [
            {"role": "tool", "content": "ok", "tool_call_id": c["id"], "name": c["name"]} for c in calls
        ]
        results.append({"role": "user", "content": f"{log}\nsave {log[0]} last: {log[2:7]}"})
        turns = sum(m["role"] == "assistant" for m in conversation)
        return Step(results, done=turns >= task.info["turns"])

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        assert sandbox is not None
        lines = (await sandbox.read_file("state")).decode().split()
        said = iter([str(_mark(m)) for m in conversation if m["role"] == "assistant"])
        return Grade.outcome(bool(lines) and all(line in said for line in lines), lines=len(lines))


def _mark(message: Any) -> int:
    """What tells one message of the policy from another."""
    return zlib.crc32(json.dumps([message["content"], message.get("reasoning_content")]).encode())
