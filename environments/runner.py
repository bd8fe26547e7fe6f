"""One episode at message level, without tokens or an engine: for the check, for `jointrl env run`, and for debugging.

In: an environment, a task and a policy (a function from conversation to message). Out: the conversation, why it ended,
and the verdict, given on the agent's frozen files in a fresh sandbox. `rollout/episode.py` is its twin with tokens.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from environments.aside import BlockedError, aside
from environments.base import Environment, Step, Style
from environments.sandbox.api import LimitExceeded, Sandbox, SandboxError, SandboxFactory
from environments.task import Message, Task, Tool
from rewards.grade import Grade, GradeStatus, brief

Policy = Callable[[Task, list[Message], list[Tool]], Message | Awaitable[Message]]
"""Answers a conversation with the next assistant message."""


@dataclass
class Episode:
    """What one episode was; `stop` is the value of a rollout StopReason: done, turns, seconds or error."""

    task: Task
    conversation: list[Message] = field(default_factory=list)
    stop: str = "error"
    grade: Grade | None = None
    seconds: float = 0.0
    error: str | None = None

    @property
    def replies(self) -> list[Message]:
        """The messages after the prompt."""
        return self.conversation[len(self.task.prompt) :]

    @property
    def turns(self) -> int:
        """Assistant messages after the prompt."""
        return sum(m["role"] == "assistant" for m in self.replies)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable row."""
        return {
            "task": self.task.to_json(),
            "conversation": self.conversation,
            "stop": self.stop,
            "grade": self.grade.to_json() if self.grade else None,
            "turns": self.turns,
            "seconds": self.seconds,
            "error": self.error,
        }


def scripted(messages: Sequence[Message]) -> Policy:
    """Says the assistant messages of a script in their order, then nothing."""
    said = [m for m in messages if m["role"] == "assistant"]

    def policy(task: Task, conversation: list[Message], tools: list[Tool]) -> Message:
        turn = sum(m["role"] == "assistant" for m in conversation[len(task.prompt) :])
        return said[turn] if turn < len(said) else {"role": "assistant", "content": ""}

    return policy


def oracle(env: Environment, style: Style = "worked") -> Policy:
    """Says what the environment demonstrates."""
    return lambda task, conversation, tools: scripted(env.demonstrate(task, style))(task, conversation, tools)


def silent(task: Task, conversation: list[Message], tools: list[Tool]) -> Message:
    """Says nothing: must earn 0 everywhere."""
    return {"role": "assistant", "content": ""}


async def run_episode(env: Environment, task: Task, policy: Policy, sandboxes: SandboxFactory | None = None) -> Episode:
    """Play one episode to its end and grade it; failures become masked grades, never exceptions.

    Raises ValueError if the environment needs a sandbox and there is no factory.
    """
    if env.needs_sandbox and sandboxes is None:
        raise ValueError(f"environment {env.id} needs a sandbox: give a factory")
    episode = Episode(task, list(task.prompt))
    begin = time.monotonic()
    sandbox: Sandbox | None = None
    snapshot: str | None = None
    try:
        if env.needs_sandbox and sandboxes is not None:
            sandbox = await sandboxes.create(task.id)
            await aside(env.id, partial(env.start, task), sandbox, task.limits.seconds)
        await _turns(env, episode, policy, sandbox)
        try:
            snapshot = await sandbox.snapshot() if sandbox is not None else None
        except LimitExceeded as error:  # the agent's own doing: it cannot mask what it did
            episode.grade = Grade.outcome(False, error=str(error))
    except Exception as error:
        episode.error = brief(error)
        status = GradeStatus.BLOCKED if isinstance(error, BlockedError) else GradeStatus.INFRA_ERROR
        episode.grade = Grade.failed(status, episode.error)
    finally:
        if sandbox is not None:
            await sandbox.close()
    if episode.grade is None:
        episode.grade = await _verdict(env, episode, sandboxes if env.needs_sandbox else None, snapshot)
    episode.seconds = time.monotonic() - begin
    return episode


async def _turns(env: Environment, episode: Episode, policy: Policy, sandbox: Sandbox | None) -> None:
    """Message and answer in turn until the environment or a limit ends it; sets the stop reason."""
    task, tools = episode.task, env.tools(episode.task)
    left = task.limits.seconds
    while True:
        said = policy(task, list(episode.conversation), tools)
        message: Message = await said if inspect.isawaitable(said) else said
        episode.conversation.append(message)
        begin = time.monotonic()
        try:
            heard = list(episode.conversation)
            step = await aside(env.id, partial(env.step, task, heard), sandbox, left)
        except TimeoutError:
            episode.stop = "seconds"
            return
        except LimitExceeded as error:
            # The agent's own doing: it is told, and the episode goes on.
            calls = message.get("tool_calls", [])
            told: list[Message] = [
                {"role": "tool", "content": f"error: {error}", "tool_call_id": c["id"], "name": c["name"]}
                for c in calls
            ]
            step = Step(told, done=not calls)
        left -= time.monotonic() - begin
        episode.conversation.extend(step.messages)
        if step.done or episode.turns >= task.limits.turns:
            episode.stop = "done" if step.done else "turns"
            return


async def _verdict(env: Environment, episode: Episode, sandboxes: SandboxFactory | None, snapshot: str | None) -> Grade:
    """The grade of a finished episode, given where the agent never was."""
    place: Sandbox | None = None
    try:
        if sandboxes is not None:
            place = await sandboxes.create(episode.task.id, snapshot)
        task, said = episode.task, list(episode.conversation)
        grade = await aside(env.id, partial(env.grade, task, said), place, task.limits.seconds)
        if not isinstance(grade, Grade):
            raise TypeError(f"{type(env).__name__}.grade returned {type(grade).__name__}, not a Grade")
        return grade
    except TimeoutError:
        return Grade.failed(GradeStatus.GRADER_TIMEOUT, f"no verdict in {episode.task.limits.seconds:.0f} s")
    except BlockedError as error:
        return Grade.failed(GradeStatus.BLOCKED, str(error))
    except Exception as error:
        status = GradeStatus.INFRA_ERROR if isinstance(error, SandboxError) else GradeStatus.GRADER_ERROR
        return Grade.failed(status, brief(error))
    finally:
        if place is not None:
            await place.close()
