"""Driver of packages written for verifiers (runs in .venv-verifiers): rows, answers of the environment, and scores.

Two interfaces exist. v0: the package's `load_environment(**arguments)` gives an Environment with a data set, a
rubric and,
where it has several turns, `env_response`. v1: the package's `__all__` names a Taskset, whose tasks score a trace. Only
what verifiers itself documents is used; nothing here samples from a model.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import itertools
import json
import math
from typing import Any

_ROWS = 10_000
"""Rows of a taskset that are read at most; some go on for ever."""

Messages = list[dict[str, Any]]


def describe(module: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """{"kind": "v0" | "v1", "rows": how many, "turns": whether the environment answers}."""
    source = _load(module, json.dumps(arguments, sort_keys=True))
    return {"kind": source.kind, "rows": source.rows, "turns": source.turns}


def row(module: str, arguments: dict[str, Any], index: int) -> dict[str, Any]:
    """{"messages": the prompt, "answer": the gold as text, or None}."""
    return _load(module, json.dumps(arguments, sort_keys=True)).row(index)


def respond(module: str, arguments: dict[str, Any], index: int, messages: Messages) -> dict[str, Any]:
    """{"messages": the environment's answer to a conversation after its prompt, "done"}."""
    return asyncio.run(_load(module, json.dumps(arguments, sort_keys=True)).respond(index, messages))


def score(module: str, arguments: dict[str, Any], index: int, messages: Messages) -> dict[str, Any]:
    """{"reward", "parts"} of a conversation after its prompt."""
    reward, parts = asyncio.run(_load(module, json.dumps(arguments, sort_keys=True)).score(index, messages))
    reward = float(reward)
    if not math.isfinite(reward):
        raise ValueError(f"the reward is {reward}")
    return {"reward": reward, "parts": {k: float(v) for k, v in parts.items() if isinstance(v, int | float)}}


@functools.cache
def _load(module: str, arguments: str) -> Any:
    package, given = importlib.import_module(module), json.loads(arguments)
    for name in getattr(package, "__all__", ()):
        found = getattr(package, name)
        if inspect.isclass(found) and any(c.__name__ == "Taskset" for c in found.__mro__):
            return _V1(found, given)
    if hasattr(package, "load_environment"):
        return _V0(package.load_environment(**given))
    raise ValueError(f"{module} has no load_environment, and no Taskset in __all__")


class _V0:
    """An Environment with `get_dataset`, `rubric`, and `env_response` where it has turns."""

    kind = "v0"

    def __init__(self, environment: Any) -> None:
        self.environment, self.data = environment, environment.get_dataset()
        self.rows = len(self.data)
        mro = [c.__name__ for c in type(environment).__mro__]
        self.turns = "SingleTurnEnv" not in mro and "MultiTurnEnv" in mro

    def row(self, index: int) -> dict[str, Any]:
        data = self.data[index]
        prompt = data["prompt"]
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [_plain(m) for m in prompt]
        return {"messages": messages, "answer": str(data["answer"]) if data.get("answer") is not None else None}

    async def _state(self, index: int, messages: Messages) -> Any:
        """What verifiers keeps of a rollout, after these messages."""
        legacy = importlib.import_module("verifiers.legacy.types")
        data = self.data[index]
        prompt = self.row(index)["messages"]
        given = {k: data[k] for k in ("answer", "info", "task") if data.get(k) is not None}
        state = legacy.State(input={"prompt": prompt, "answer": "", "task": "default", "example_id": index} | given)
        state["trajectory"] = []
        state["timing"] = legacy.RolloutTiming()
        state["is_completed"], state["is_truncated"], state["error"], state["final_env_response"] = (
            False,
            False,
            None,
            None,
        )
        state = await self.environment.setup_state(state) or state if self.turns else state
        for n, message in enumerate(messages):
            if message["role"] == "assistant":
                step = {"prompt": [*prompt, *messages[:n]], "completion": [message], "response": None, "reward": None}
                state["trajectory"].append(step | {"advantage": None, "tokens": None, "extras": {}})
        state["prompt"], state["completion"] = _typed(legacy, prompt), _typed(legacy, messages)
        return state

    async def respond(self, index: int, messages: Messages) -> dict[str, Any]:
        # States of verifiers change as it answers: they are made again from the first message on.
        state = await self._state(index, [])
        prompt, answer = self.row(index)["messages"], []
        legacy = importlib.import_module("verifiers.legacy.types")
        for n, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            step = {"prompt": [*prompt, *messages[:n]], "completion": [message], "response": None, "reward": None}
            state["trajectory"].append(step | {"advantage": None, "tokens": None, "extras": {}})
            state["completion"] = _typed(legacy, messages[: n + 1])
            if await self.environment.is_completed(state):
                return {"messages": [], "done": True}
            answer = await self.environment.env_response(_typed(legacy, [*prompt, *messages[: n + 1]]), state)
            answer = answer[0] if isinstance(answer, tuple) else answer
        done = await self.environment.is_completed(state) or state.get("final_env_response") is not None
        return {"messages": [_plain(m) for m in answer], "done": bool(done)}

    async def score(self, index: int, messages: Messages) -> tuple[float, dict[str, Any]]:
        state = await self._state(index, messages)
        await self.environment.rubric.score_rollout(state)
        return state["reward"], state["metrics"] or {}


class _V1:
    """A Taskset: tasks with data and `score(trace)`."""

    kind, turns = "v1", False

    def __init__(self, taskset: Any, arguments: dict[str, Any]) -> None:
        config = importlib.import_module("verifiers.v1.configs.taskset").TasksetConfig
        generic = importlib.import_module("verifiers.v1.utils.generic")
        made = taskset((generic.concrete_type(taskset, config) or config)(**arguments))
        self.tasks = list(itertools.islice(iter(made), _ROWS))
        self.rows = len(self.tasks)
        for task in self.tasks[:1]:
            if task.NEEDS_CONTAINER or task.data.image:
                raise ValueError("its tasks need a container, which this adapter does not give")

    def row(self, index: int) -> dict[str, Any]:
        data = self.tasks[index].data
        if data.prompt is None:
            raise ValueError("its tasks have no prompt: the user opens the conversation, which is not supported")
        prompt = (
            [{"role": "user", "content": data.prompt}] if isinstance(data.prompt, str) else map(_plain, data.prompt)
        )
        system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
        answer = getattr(data, "answer", None)
        return {"messages": [*system, *prompt], "answer": None if answer is None else str(answer)}

    async def respond(self, index: int, messages: Messages) -> dict[str, Any]:
        return {"messages": [], "done": True}

    async def score(self, index: int, messages: Messages) -> tuple[float, dict[str, Any]]:
        task = self.tasks[index]
        unscored = [fn.__name__ for fn in task.hooks("reward") if _needs_runtime(fn)]
        if unscored:
            raise ValueError(f"its rewards {unscored} need a runtime, which this adapter does not give")
        trace = self._trace(task, self.row(index)["messages"], messages)
        await task.score(trace)
        if any(reward is None for reward in trace.rewards.values()):
            raise ValueError("a reward was not given")
        return trace.reward, dict(trace.metrics)

    def _trace(self, task: Any, prompt: Messages, messages: Messages) -> Any:
        """The conversation as verifiers records it: one node a message, the policy's sampled."""
        traces, graph = (importlib.import_module(f"verifiers.v1.{name}") for name in ("trace", "graph"))
        agent = importlib.import_module("verifiers.v1.configs.agent").AgentConfig()
        about = traces.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        nodes = [
            graph.MessageNode(
                parent=n - 1 if n else None, message=m, sampled=n >= len(prompt) and m["role"] == "assistant"
            )
            for n, m in enumerate([*prompt, *messages])
        ]
        trace = traces.Trace(task=about, agent=traces.AgentInfo(config=agent), nodes=nodes)
        trace.is_completed = trace.ok = True
        return trace


def _needs_runtime(function: Any) -> bool:
    wanted = inspect.signature(function).parameters.get("runtime")
    return wanted is not None and wanted.default is inspect.Parameter.empty


def _plain(message: Any) -> dict[str, Any]:
    """A message as role and text; raises ValueError for one with images or tool calls."""
    given = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
    if not isinstance(given.get("content"), str) or given.get("tool_calls"):
        raise ValueError(f"a message of role {given.get('role')!r} is not plain text, which this adapter does not give")
    return {"role": given["role"], "content": given["content"]}


def _typed(types: Any, messages: Messages) -> Any:
    """Messages in the form that rewards of v0 read: objects that also answer to ["content"]."""
    kinds = {"user": "UserMessage", "system": "SystemMessage", "assistant": "AssistantMessage"}
    return [getattr(types, kinds[m["role"]])(**m) if m["role"] in kinds else m for m in messages]
