"""`openenv:ws://host:port`: an OpenEnv server, by its wire protocol; the package itself is not needed.

Over one WebSocket an episode is: reset {seed}, then step {the action's fields}; each answer is an observation with a
reward and whether it is done. The action's fields are the tool's parameters, as the server's /schema says. The
reward of an episode is the sum of its steps' rewards; one outside [0, 1] is a failed grader, not a clipped success.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import urllib.request
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

from environments.adapters.host import PeerLost
from environments.adapters.replay import Sessions
from environments.base import Draft, Environment, Step
from environments.task import Limits, Message, Task, Tool
from rewards.grade import Grade, GradeStatus

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

_WAIT_S = 30.0
"""For one answer of the server."""


class OpenEnv(Environment):
    """One server. Raises PeerLost where it does not answer, ImportError where `websockets` is not installed."""

    id = "openenv"
    tags = ("third_party", "multi_turn", "tools")
    levels = (1,)
    limits = Limits(turns=50, tokens=32_768, seconds=300.0)

    def __init__(self, address: str, domain: str = "misc") -> None:
        import websockets.sync.client  # noqa: F401  (says at once what is missing)

        self.address = address.rstrip("/")
        vars(self).update(id=f"openenv:{address}", domain=domain)

    def draw(self, rng: random.Random, level: int) -> Draft:
        seed = rng.getrandbits(31)
        (first,) = self._play(seed, [])
        return Draft(_text(first), None, {"seed": seed})

    def _play(self, seed: int, actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The observations of reset and of every action."""
        steps = [{"type": "reset", "data": {"seed": seed}}, *({"type": "step", "data": a} for a in actions)]
        return _sessions().answers((self.address, seed), steps, lambda: _Connection(self.address))

    def tools(self, task: Task) -> list[Tool]:
        """One tool: its parameters are the action's fields."""
        schema = _action_schema(self.address)
        return [{"name": "step", "description": "act in the environment", "parameters": schema}]

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        """Act with the first call of the last message; a message without a call gives up."""
        calls = conversation[-1].get("tool_calls") or []
        if not calls:
            return Step(done=True)
        if not isinstance(calls[0]["arguments"], dict):
            now: dict[str, Any] = {"observation": "error: the arguments are no JSON object", "done": False}
        else:
            now = (await asyncio.to_thread(self._play, task.info["seed"], _actions(task, conversation)))[-1]
        results: list[Message] = [
            {"role": "tool", "content": _text(now), "tool_call_id": c["id"], "name": c["name"]} for c in calls
        ]
        return Step(results, done=bool(now.get("done")))

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """The sum of the rewards of all steps that the server took."""
        seen = await asyncio.to_thread(self._play, task.info["seed"], _actions(task, conversation))
        total = math.fsum(_reward(row) for row in seen[1:])
        if not 0.0 <= total <= 1.0 + 1e-9:
            raise ValueError(f"{self.id}: an episode earned {total}: its rewards must add up to something in [0, 1]")
        reward = min(total, 1.0)
        status = GradeStatus.CORRECT if reward == 1.0 else GradeStatus.PARTIAL if reward > 0.0 else GradeStatus.WRONG
        return Grade(reward, status, {"done": float(bool(seen[-1].get("done")))})


def _actions(task: Task, conversation: list[Message]) -> list[dict[str, Any]]:
    """The first call of every message, as the server is asked."""
    calls = [m["tool_calls"][0] for m in conversation[len(task.prompt) :] if m.get("tool_calls")]
    return [c["arguments"] for c in calls if isinstance(c["arguments"], dict)]


def _reward(row: dict[str, Any]) -> float:
    """A step's reward; none is 0. Raises ValueError for one that is no finite number."""
    value = row.get("reward")
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a step's reward is {value!r}, not a finite number")
    return float(value)


def _text(row: dict[str, Any]) -> str:
    seen = row.get("observation")
    return seen if isinstance(seen, str) else json.dumps(seen, ensure_ascii=False)


@cache
def _sessions() -> Sessions:
    return Sessions()


@cache
def _action_schema(address: str) -> dict[str, Any]:
    """The JSON schema of an action, without what every action has (metadata); any object where the server has none."""
    web = address.replace("ws", "http", 1)
    try:
        with urllib.request.urlopen(f"{web}/schema", timeout=_WAIT_S) as answer:
            action = json.load(answer)["action"]
        fields = {name: kind for name, kind in action["properties"].items() if name != "metadata"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PeerLost(f"OpenEnv server {web}/schema: {error!r}") from error
    return {"type": "object", "properties": fields, "required": [f for f in action.get("required", []) if f in fields]}


class _Connection:
    """One episode's WebSocket."""

    def __init__(self, address: str) -> None:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self.address, self._errors = address, (OSError, TimeoutError, EOFError, WebSocketException)
        try:
            self._stack = ExitStack()
            self._socket = self._stack.enter_context(connect(f"{address}/ws", open_timeout=_WAIT_S, close_timeout=5))
        except self._errors as error:
            raise PeerLost(f"OpenEnv server {address}: no connection within {_WAIT_S:g} s ({error!r})") from error

    def act(self, action: dict[str, Any]) -> dict[str, Any]:
        """Send one message; the data of the observation. An action that the server refuses is answered with why."""
        try:
            self._socket.send(json.dumps(action))
            answer = json.loads(self._socket.recv(timeout=_WAIT_S))
        except (*self._errors, ValueError) as error:
            raise PeerLost(f"OpenEnv server {self.address} at {action['type']!r}: {error!r}") from error
        if answer.get("type") == "error":
            why = answer.get("data", {}).get("message", answer)
            if action["type"] == "reset":
                raise PeerLost(f"OpenEnv server {self.address} at 'reset': {why}")
            return {"observation": f"error: {why}", "done": False}
        if answer.get("type") != "observation" or not isinstance(answer.get("data"), dict):
            raise PeerLost(f"OpenEnv server {self.address} at {action['type']!r}: answered {str(answer)[:200]}")
        return answer["data"]

    def close(self) -> None:
        """Tell the server, and hang up: a connection left half open keeps its environment."""
        try:
            self._socket.send(json.dumps({"type": "close"}))
            self._stack.close()
        except self._errors:
            pass
