"""A world in memory that the policy changes by tools: simulated applications, games, corpora with a search tool.

The world after n calls is a function of the task and these calls: it is built anew and the calls are replayed, so that
an episode has no state outside its conversation. Forking, resuming and grading need nothing else, and no file of the
world is ever where the policy could read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from environments.base import Environment, Step, Style
from environments.task import Limits, Message, Task, Tool, prompt_key
from environments.tools import answer_to, call_tool, calling, tools_of
from rewards.answers import extract, last_reply
from rewards.grade import Grade

if TYPE_CHECKING:
    from environments.sandbox.api import Sandbox

MAX_CALLS = 16
"""Calls of one message that are answered; the others get an error."""


class World:
    """The state of one episode: a constructor of (task), tools (`@tool` methods), nothing random or timed."""

    over: bool = False
    """Set by a tool that ends the episode (a game that is lost, a form that was handed in)."""

    def __init__(self, task: Task) -> None:
        self.task = task


class Simulation(Environment):
    """Define `world` (a World class), `draw`, `solve` and `judge`.

    The episode ends with a message that calls no tool, or when the world is over.
    """

    tags = ("multi_turn", "tools")
    limits = Limits(turns=24, tokens=16_384, seconds=60.0)
    world: ClassVar[type[World]] = World
    result_chars: ClassVar[int] = 8000
    """Longest tool result, in characters."""

    def solve(self, task: Task) -> tuple[list[tuple[str, dict[str, Any]]], str]:
        """The oracle: (tool name, arguments) in order, and the final message (ignored where the world ends itself)."""
        raise NotImplementedError(f"{type(self).__name__} must define solve(task)")

    def judge(self, task: Task, world: Any, answer: str | None) -> Grade:
        """The verdict on the final world and the final answer (None where none can be read); must not raise."""
        raise NotImplementedError(f"{type(self).__name__} must define judge(task, world, answer)")

    def key(self, prompt: tuple[Message, ...], info: dict[str, Any]) -> int:
        """Prompt and info: the same words about other records are another task."""
        return prompt_key(prompt, info)

    def tools(self, task: Task) -> list[Tool]:
        """The world's tools."""
        return tools_of(self.world)

    async def step(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Step:
        """Answer the calls of the last message."""
        world, replies = await self._replay(task, conversation)
        return Step(replies, done=world.over or not conversation[-1].get("tool_calls"))

    async def _replay(self, task: Task, conversation: list[Message]) -> tuple[World, list[Message]]:
        """The world after all calls of the conversation, and the tool messages that answer its last message."""
        world, replies = self.world(task), list[Message]()
        for message in conversation[len(task.prompt) :]:
            if message["role"] != "assistant":
                continue
            replies = []
            for number, call in enumerate(message.get("tool_calls") or []):
                if number >= MAX_CALLS or world.over:
                    text = "error: it is over" if world.over else f"error: at most {MAX_CALLS} calls in one message"
                else:
                    text = await call_tool(world, self.tools(task), call, self.result_chars)
                replies.append(answer_to(call, text))
        return world, replies

    async def grade(self, task: Task, conversation: list[Message], sandbox: Sandbox | None) -> Grade:
        """`judge` on the replayed world and the last message's answer."""
        world, _ = await self._replay(task, conversation)
        last = conversation[-1]
        spoke = last["role"] == "assistant" and not last.get("tool_calls")
        if not world.over and not spoke:
            return Grade.unparsed(why="the episode ended without a final message")
        return self.judge(task, world, extract(last_reply(conversation)) if spoke else None)

    def demonstrate(self, task: Task, style: Style) -> list[Message]:
        """The oracle's calls with the world's real answers, and its final message."""
        calls, answer = self.solve(task)
        world, messages = self.world(task), list[Message]()
        for number, (name, arguments) in enumerate(calls):
            message = calling(name, number, "" if style == "direct" else f"{name} next", **arguments)
            text = _now(call_tool(world, self.tools(task), message["tool_calls"][0], self.result_chars))
            messages += [message, answer_to(message["tool_calls"][0], text)]
        if not world.over:
            messages.append({"role": "assistant", "content": answer, "reasoning_content": ""})
        return messages


def _now(call: Any) -> str:
    """The result of a coroutine that never waits: a world's tools are plain functions."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    call.close()
    raise TypeError("a world's tool waited for something: worlds are computed, not awaited")
