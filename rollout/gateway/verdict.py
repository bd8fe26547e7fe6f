"""How a session gets its reward: the harness says it, or one of our environments grades what was said."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from environments.aside import BlockedError, aside
from environments.base import Environment
from environments.task import Message, Task, Tool
from rewards.efforts import Effort
from rewards.grade import Grade, GradeStatus, brief
from rollout.engine.base import FinishReason
from rollout.gateway.errors import ApiError
from rollout.gateway.session import Session

if TYPE_CHECKING:
    from rollout.gateway.keys import Key
    from rollout.gateway.service import Gateway


def rewarded(given: dict[str, Any]) -> Grade:
    """The grade of {"reward": number in [0, 1], "parts": {name: number}}, or, where something failed, of {"reward":
    null, "error": text}: then the session is masked, never 0. Raises ApiError 400 for anything else.
    """
    if unknown := given.keys() - {"reward", "parts", "error"}:
        raise ApiError(f"unknown parameter {sorted(unknown)[0]!r}: there are reward, parts, error")
    if "reward" not in given:
        raise ApiError("reward is missing: a number in [0, 1], or null with an error", param="reward")
    reward, parts, error = given["reward"], given.get("parts", {}), given.get("error")
    if reward is None:
        if not isinstance(error, str) or not error:
            raise ApiError("a reward of null needs an error: what failed", param="error")
        return Grade.failed(GradeStatus.INFRA_ERROR, error[:2000])
    if error is not None:
        raise ApiError("an error belongs to a reward of null: what failed has no reward", param="error")
    if not _number(reward) or not 0 <= reward <= 1:
        raise ApiError("reward must be a number in [0, 1]: scale it", param="reward")
    if not isinstance(parts, dict) or not all(_number(x) for x in parts.values()):
        raise ApiError("parts must be numbers by name", param="parts")
    status = GradeStatus.CORRECT if reward == 1 else GradeStatus.WRONG if reward == 0 else GradeStatus.PARTIAL
    return Grade(float(reward), status, {k: float(v) for k, v in parts.items()})


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < 1e300


async def opened(gateway: Gateway, key: Key, given: dict[str, Any]) -> dict[str, Any]:
    """Open a session on a task of the catalogue: {"environment", "index", and optionally "level", "split", "seed",
    "reasoning_effort"}; returns what to send, and in which session. Raises ApiError 400 for what cannot be graded here.
    """
    known = ("environment", "index", "level", "split", "seed", "reasoning_effort")
    if unknown := given.keys() - set(known):
        raise ApiError(f"unknown parameter {sorted(unknown)[0]!r}: there are {', '.join(known)}")
    effort = given.get("reasoning_effort", str(gateway.settings.effort))
    if effort not in gateway.settings.efforts:
        raise ApiError(f"reasoning_effort {effort!r}: it must be {', '.join(gateway.settings.efforts)}")
    task = await asyncio.to_thread(_task, given)
    session = gateway.book.open(key.name, Effort(effort))
    session.given = task
    return {
        "id": session.id,
        "task": task.id,
        "reasoning_effort": effort,
        "messages": [_openai(m) for m in task.prompt],
        "limits": {"tokens": task.limits.tokens},
    }


def _task(given: dict[str, Any]) -> Task:
    from environments.catalogue import resolve

    name, split = given.get("environment"), given.get("split", "train")
    if not isinstance(name, str) or ":" in name:  # an import path would run code that a client names
        raise ApiError("environment must be an id of the catalogue (`jointrl env list`)", param="environment")
    if split not in ("train", "test"):
        raise ApiError("split must be train or test", param="split")
    try:
        env = resolve(name)
    except (ValueError, ImportError) as error:
        raise ApiError(str(error), param="environment") from None
    numbers = {"index": given.get("index"), "level": given.get("level", env.levels[0]), "seed": given.get("seed", 0)}
    for what, value in numbers.items():
        if type(value) is not int or not 0 <= value < 2**63:
            raise ApiError(f"{what} must be a whole number from 0 on", param=what)
    if env.needs_sandbox:
        raise ApiError(f"{name} happens in a sandbox, which a harness has no part in", param="environment")
    try:
        task = env.task(split, numbers["index"], numbers["level"], numbers["seed"])
        tools: list[Tool] = env.tools(task)
    except ValueError as error:
        raise ApiError(str(error), param="environment") from None
    if tools:
        raise ApiError(f"{name} answers calls of its own tools, which a harness has no part in", param="environment")
    return task


def _openai(message: Message) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return {"role": message["role"], "content": content}
    parts: list[dict[str, Any]] = []
    for part in content:
        if part["type"] == "text":
            parts.append({"type": "text", "text": part["text"]})
        else:
            parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{part['data']}"}})
    return {"role": message["role"], "content": parts}


async def grade(gateway: Gateway, session: Session) -> None:
    """Have the session's environment grade it, and close it. Raises ApiError 409 where there is nothing to grade."""
    from environments.catalogue import resolve

    task = session.given
    if task is None:
        raise ApiError(f"session {session.id!r} was not opened on a task: give its reward", 409)
    if session.grade is not None:
        raise ApiError(f"session {session.id!r} has its reward already", 409, code="session_closed")
    said, leaves = session.conversation(), session.leaves()
    if not leaves or session.running:
        raise ApiError(f"session {session.id!r} has no reply to grade, or one is on its way", 409)
    if [(m["role"], m["content"]) for m in said[: len(task.prompt)]] != [
        (m["role"], m["content"]) for m in task.prompt
    ]:
        raise ApiError(f"session {session.id!r} does not begin with the messages of its task", 409)
    if leaves[-1].finish in (FinishReason.LENGTH, FinishReason.CONTEXT):  # as an episode: cut off is failed
        verdict = Grade.outcome(False, truncated=str(leaves[-1].finish))
    else:
        verdict = await _graded(resolve(task.environment), task, said)
    if session.leaves() != leaves:
        raise ApiError(f"session {session.id!r} has gone on while it was graded: ask again", 409)
    gateway.book.close(session, verdict)


async def _graded(env: Environment, task: Task, said: list[Message]) -> Grade:
    limit = task.limits.seconds
    try:
        return await aside(env.id, partial(env.grade, task, said), None, limit)
    except TimeoutError:
        return Grade.failed(GradeStatus.GRADER_TIMEOUT, f"no verdict in {limit:.0f} s")
    except BlockedError as error:
        return Grade.failed(GradeStatus.BLOCKED, str(error))
    except Exception as error:
        return Grade.failed(GradeStatus.GRADER_ERROR, brief(error))
