"""Games that a foreign process plays: the policy's tool calls are its actions, the results are what it sees next.

An episode's state is its conversation: the process replays it, so that nothing is lost with a process, and a frozen or
forked episode needs no more than its messages. Only a won game is worth anything: progress and draws are parts.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from environments.adapters.host import ForeignError, Host
from environments.base import Draft, Environment, Step, Style
from environments.task import Message, Split, Task, Tool, ToolCall
from rewards.grade import Grade, GradeStatus

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

_ACTION_CHARS = 400
"""A longer action is none of any game's; it is cut, so that what a game echoes stays short."""
_SOLVE_S = 60.0
"""Of a search for a play that wins; it takes a second at most on an idle machine."""
_DEALS = 50
"""Deals until one can be won: of every game more than one in ten can."""
_STRIDE = 2**61 - 1
"""Between the seeds of deals for one task, so that they are no other task's."""

TOOL: Tool = {
    "name": "play",
    "description": "make your move: one action, written as the game asks for",
    "parameters": {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
}


class Played(Environment):
    """Define `host`, `options` and `game`; levels, limits and domain are set on the instance."""

    tags = ("third_party", "multi_turn", "tools")
    license = "MIT"
    game: str
    wins: float = 1.0
    sure: bool = True
    """Whether every deal can be won; else a task is the first deal for which the oracle finds a play that wins."""

    def host(self) -> Host:
        """The process that plays."""
        raise NotImplementedError(f"{type(self).__name__} must define host()")

    def options(self, level: int) -> dict[str, Any]:
        """What the driver needs to make a game of this level, as JSON."""
        raise NotImplementedError(f"{type(self).__name__} must define options(level)")

    def draw(self, rng: random.Random, level: int) -> Draft:
        seed = rng.getrandbits(31)
        return Draft(self._play(level, seed, [])["text"], None, {"seed": seed})

    def task(self, split: Split, index: int, level: int, seed: int = 0) -> Task:
        """See `Environment.task`; where some deals cannot be won, the first one that the oracle wins."""
        for deal in range(1 if self.sure else _DEALS):
            task = super().task(split, index, level, seed + deal * _STRIDE)
            if self.sure or _solution(self, level, task.info["seed"]) is not None:
                return replace(task, id=f"{self.id}/{split}/{level}/{index}/{seed}")
        raise ForeignError(f"{self.id} level {level}: none of {_DEALS} deals can be won")

    def _play(self, level: int, seed: int, actions: list[str]) -> dict[str, Any]:
        return self.host().call("play", game=self.game, options=self.options(level), seed=seed, actions=actions)

    def tools(self, task: Task) -> list[Tool]:
        """The one tool."""
        return [TOOL]

    async def _now(self, task: Task, conversation: list[Message]) -> dict[str, Any]:
        """The game after the conversation's actions, played off the event loop."""
        actions = [
            a for m in conversation[len(task.prompt) :] for c in m.get("tool_calls") or [] if (a := action_of(c))
        ]
        return await asyncio.to_thread(self._play, task.level, task.info["seed"], actions)

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        """Play on with the first call; a message without a call gives up."""
        calls = conversation[-1].get("tool_calls") or []
        if not calls:
            return Step(done=True)
        if not all(action_of(call) for call in calls):
            return Step([_result(c, "error: call play with one text, the action") for c in calls], done=False)
        try:
            now = await self._now(task, conversation)
        except ForeignError:  # the game failed on a move: it is over, and `grade` says what that is worth
            return Step([_result(c, "the game is over") for c in calls], done=True)
        return Step([_result(c, _text(now)) for c in calls], done=now["done"])

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """1 for a game that was won, else 0; the package's own reward is a part.

        A game that raises on a move of the policy is lost (part `game_exception`): the policy provoked it.
        """
        try:
            now = await self._now(task, conversation)
        except ForeignError as error:
            return Grade(0.0, GradeStatus.WRONG, {"game_exception": 1.0}, {"error": str(error)[:200]})
        won = now["done"] and now["reward"] >= self.wins
        status = GradeStatus.CORRECT if won else GradeStatus.WRONG
        return Grade(float(won), status, {"game_reward": now["reward"], "finished": float(now["done"])})

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """A play that wins, with the game's real answers."""
        messages: list[Message] = []
        for action, text in _winning(self, task.level, task.info["seed"]):
            call: ToolCall = {"id": "play:0", "name": "play", "arguments": {"action": action}}
            thought = "" if style == "direct" else f"play {action}"
            messages += [
                {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]},
                _result(call, text),
            ]
        return messages


@lru_cache(maxsize=256)
def _solution(env: Played, level: int, seed: int) -> tuple[str, ...] | None:
    """Actions that win; None where the oracle finds none."""
    options = env.options(level)
    actions = env.host().call("solve", timeout=_SOLVE_S, game=env.game, options=options, seed=seed)
    return None if actions is None else tuple(actions)


@lru_cache(maxsize=256)
def _winning(env: Played, level: int, seed: int) -> tuple[tuple[str, str], ...]:
    """Actions that win, and what the game answers to each."""
    actions = _solution(env, level, seed)
    if actions is None:
        raise ForeignError(f"{env.id} level {level} seed {seed}: no play that wins is found, its deals are not `sure`")
    rows: list[tuple[str, str]] = []
    for n, action in enumerate(actions, 1):
        now = env._play(level, seed, [*actions[:n]])
        rows.append((action, _text(now)))
        if now["done"]:
            if now["reward"] < env.wins:
                raise ForeignError(f"{env.id} level {level} seed {seed}: the play that wins earns {now['reward']}")
            return tuple(rows)
    raise ForeignError(f"{env.id} level {level} seed {seed}: the play that wins does not end the game")


def _text(now: dict[str, Any]) -> str:
    return now["text"] or ("the game is over" if now["done"] else "nothing has changed")


def _result(call: ToolCall, text: str) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": call["id"], "name": call["name"]}


def action_of(call: ToolCall) -> str | None:
    """The action of a call, cut to a length that no action has; None where the call is none of `play`."""
    arguments = call["arguments"]
    if call["name"] != "play" or not isinstance(arguments, dict) or not isinstance(arguments.get("action"), str):
        return None
    return arguments["action"].strip()[:_ACTION_CHARS].encode("utf-8", "replace").decode() or None
