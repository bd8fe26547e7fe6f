"""What was sampled as OpenAI's messages: read from ids, whole or piece by piece."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from environments.task import Message
from rollout.engine.base import FinishReason, Generation
from rollout.gateway.request import Ask
from rollout.gateway.session import Chat, cut

_UNKNOWN = "�"
"""What bytes become that are no whole character yet: at the end of an unfinished text it may still become one."""


@dataclass(frozen=True)
class Heard:
    """One continuation as far as it goes."""

    message: Message
    problem: str | None
    """What is not well formed in it."""
    tokens: int
    """Tokens up to the end of the first stop text; all of them where there is none."""
    stopped: bool
    """Whether a stop text was met."""


def hear(chat: Chat, ids: np.ndarray, stops: tuple[str, ...]) -> Heard:
    """Read sampled ids; the reply's content ends before the first of the stop texts."""

    def content(n: int) -> str:
        return str(chat.parse(ids[:n]).message["content"])

    if not any(s in content(len(ids)) for s in stops):
        said = chat.parse(ids)
        return Heard(said.message, said.problem, len(ids), False)
    tokens = _first(len(ids), lambda n: any(s in content(n) for s in stops))
    message: Message = chat.parse(ids[:tokens]).message
    text = str(message["content"])
    ends = [at for s in stops if (at := text.find(s)) >= 0]
    message.pop("tool_calls", None)
    return Heard({**message, "content": text[: min(ends)]}, None, tokens, True)  # type: ignore[misc]


def end(chat: Chat, generation: Generation, stops: tuple[str, ...]) -> tuple[Heard, Generation]:
    """A finished continuation, and what of it belongs to the reply."""
    heard = hear(chat, generation.token_ids, stops)
    return heard, cut(generation, heard.tokens) if heard.stopped else generation


def thinking_tokens(chat: Chat, ids: np.ndarray) -> int:
    """Tokens of the thinking in a reply."""
    whole = chat.parse(ids).message.get("reasoning_content", "")
    if not whole:
        return 0
    return _first(len(ids), lambda n: chat.parse(ids[:n]).message.get("reasoning_content", "") == whole)


def _first(most: int, holds: Callable[[int], bool]) -> int:
    """The smallest n <= most from which on `holds(n)`; it holds at most."""
    low = 0
    while low < most:
        middle = (low + most) // 2
        low, most = (low, middle) if holds(middle) else (middle + 1, most)
    return most


def openai_calls(message: Message, tag: str) -> list[dict[str, Any]]:
    """A message's calls; `tag` makes their ids differ from those of every other reply."""
    out = []
    for i, call in enumerate(message.get("tool_calls", ())):
        given = call["arguments"]
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, separators=(",", ":"))
        function = {"name": call["name"], "arguments": text}
        out.append({"id": f"call_{tag}_{i}", "type": "function", "function": function})
    return out


def openai_message(message: Message, tag: str) -> dict[str, Any]:
    """A whole reply."""
    calls = openai_calls(message, tag)
    out: dict[str, Any] = {
        "role": "assistant",
        "content": message["content"] or (None if calls else ""),
        "reasoning_content": message.get("reasoning_content", ""),
        "refusal": None,
    }
    return out | ({"tool_calls": calls} if calls else {})


def finish_of(heard: Heard, generation: Generation) -> str:
    """OpenAI's finish reason."""
    if generation.finish is FinishReason.STOP:
        return "tool_calls" if heard.message.get("tool_calls") else "stop"
    return "length"


def openai_logprobs(chat: Chat, ids: np.ndarray, logprobs: np.ndarray) -> dict[str, Any]:
    """All sampled tokens, those of thinking and structure too, as what they spell."""
    rows = []
    for token, logprob in zip(ids.tolist(), logprobs.tolist(), strict=True):
        text = chat.decode([token])
        spelled = None if _UNKNOWN in text else list(text.encode())
        rows.append({"token": text, "bytes": spelled, "logprob": logprob, "top_logprobs": []})
    return {"content": rows, "refusal": None}


def warnings(ask: Ask, heard: Heard) -> list[str]:
    """What the policy was told to do and did not: it is told, its decoding is not constrained."""
    out, calls = [], bool(heard.message.get("tool_calls"))
    if ask.options.tool_choice == "required" and not calls:
        out.append("tool_choice=required was not followed: the policy made no call")
    if ask.options.tool_choice == "none" and calls:
        out.append("tool_choice=none was not followed: the policy made calls")
    if ask.options.response_format is not None and not calls:
        try:
            json.loads(str(heard.message["content"]))
        except (ValueError, RecursionError):
            out.append("response_format was not followed: the content is not JSON")
    return out


@dataclass
class Pieces:
    """What of one continuation was sent already; the pieces join to the whole reply."""

    tag: str
    held: int
    """Characters at the end of an unfinished text that are not sent yet: they may turn out to be something else."""
    _sent: dict[str, int] = field(default_factory=lambda: {"reasoning_content": 0, "content": 0})
    _calls: int = 0

    def new(self, heard: Heard, final: bool) -> Iterator[dict[str, Any]]:
        """Deltas of what is new in a reply that has become longer."""
        message = heard.message
        calls = openai_calls(message, self.tag)
        ended = {"reasoning_content": bool(message["content"] or calls), "content": bool(calls)}
        for name, done in ended.items():
            text = str(message.get(name, ""))
            if not (final or done):
                text = text[: max(0, len(text) - self.held)].rstrip(_UNKNOWN)
            if len(text) > self._sent[name]:
                yield {name: text[self._sent[name] :]}
                self._sent[name] = len(text)
        for i in range(self._calls, len(calls)):
            yield {"tool_calls": [{"index": i, **calls[i]}]}
        self._calls = max(self._calls, len(calls))
