"""K3's chat structure (XTML): messages to marks and texts, and the marks and texts of a sampled turn back to a message.

`<|open|>tag a="v"<|sep|> ... <|close|>tag<|sep|>`, `<|end_of_msg|>`: marks are special ids; tags, attributes and all
text are ordinary tokens, so text can never forge structure. Source: Kimi K3, arXiv 2607.24653, appendix.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Mark(Enum):
    """A structural token: it exists as an id only, text that spells it is ordinary."""

    END = "<|end_of_msg|>"
    OPEN = "<|open|>"
    CLOSE = "<|close|>"
    SEP = "<|sep|>"
    PAD = "<|pad|>"


class Media(Enum):
    """The marks around an image; like `Mark` ids only, but a vocabulary need not have them."""

    BEGIN = "<|media_begin|>"
    CONTENT = "<|media_content|>"
    END = "<|media_end|>"
    PAD = "<|media_pad|>"


@dataclass(frozen=True)
class Picture:
    """An image in a rendered conversation, by its ORIGINAL size in px; the tokenizer knows how many tokens it has."""

    width: int
    height: int


Part = str | Mark | Picture
"""A piece of a rendered conversation: a mark, an image, or text that is encoded on its own."""

Run = tuple[Mark | Media | None, str]
"""A piece of a sampled turn: a mark, or (None, the text between two marks)."""

TOOLS_HEAD = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n"
TOOLS_TAIL = "\n```"

_JSON_TYPE = {bool: "boolean", int: "number", float: "number", type(None): "null", dict: "object", list: "array"}
_ATTRIBUTE = re.compile(r' ([a-z]+)="([^"]*)"')
NO_JSON = object()
"""What text gives that is not JSON."""

_DEPTH = 64
"""Deepest nesting of an argument: whatever reads arguments later may recurse, and must not run out of stack."""

_CHOICES = {
    "required": "You MUST call tools in the next message.",
    "none": "You MUST NOT call any tools in the next message.",
}
"""What the one-shot option says of each tool choice but "auto", which says nothing."""

_RAW_JSON = "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."


_EFFORTS = ("low", "medium", "high", "max")


def effort_text(effort: str) -> str:
    """The body of the effort message, verbatim as K3 was trained on it. Raises ValueError for an effort it has not."""
    if effort not in _EFFORTS:
        raise ValueError(f"effort {effort!r}: it must be one of {', '.join(_EFFORTS)}, or None for no such message")
    return (
        "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
        "supported values include `low`, `medium`, `high`, and `max`.\n"
        f"Now the system is invoked with `thinking_effort={effort}`."
    )


def compact_json(value: Any) -> str:
    """JSON without spaces, as K3 writes tool declarations and arguments that are not strings.

    Raises ValueError for numbers that are not finite.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _sorted_json(value: Any) -> str:
    """Compact JSON, keys sorted at every depth."""
    return compact_json(json.loads(json.dumps(value, sort_keys=True)))


# ---- messages to parts


def _open(tag: str, **attributes: object) -> list[Part]:
    text = tag
    for key, value in attributes.items():
        text += f' {key}="{str(value).replace("&", "&amp;").replace(chr(34), "&quot;")}"'
    return [Mark.OPEN, text, Mark.SEP]


def _close(tag: str) -> list[Part]:
    return [Mark.CLOSE, tag, Mark.SEP]


def _text(text: str) -> list[Part]:
    """Content gets a leading space, which reading removes: a symbol is one token (" b") first in a text as inside."""
    return [" " + text] if text else []


def _content(content: str | Sequence[Mapping[str, Any]]) -> list[Part]:
    """A text, or parts {"type": "text", "text"} and {"type": "image", "width", "height"} in their order."""
    if isinstance(content, str):
        return _text(content)
    if not isinstance(content, list | tuple):
        raise ValueError(f"a message's content is {content!r:.40}: it must be a text, or a list of parts")
    parts: list[Part] = []
    for part in content:
        if part["type"] == "text":
            parts += _text(part["text"])
        elif part["type"] == "image":
            parts.append(Picture(part["width"], part["height"]))
        else:
            raise ValueError(f"a content part of type {part['type']!r}: it must be text or image")
    return parts


def _message(body: list[Part], **attributes: object) -> list[Part]:
    return [*_open("message", **attributes), *body, *_close("message"), Mark.END]


def generation_prefix() -> list[Part]:
    """What opens the assistant's turn: from here on the policy samples."""
    return [*_open("message", role="assistant"), *_open("think")]


JSON_OPEN, JSON_CLOSE = _open("json", type="object"), _close("json")
"""Around arguments that are no object: the policy reads such a block in its history, and is not taught to write one."""


def _call(call: Mapping[str, Any], index: int) -> list[Part]:
    parts = _open("call", tool=call["name"], index=index)
    arguments = call["arguments"]
    if isinstance(arguments, dict):
        for key, value in arguments.items():
            kind = "string" if isinstance(value, str) else _JSON_TYPE.get(type(value))
            if kind is None:
                raise ValueError(f"argument {key!r} of {call['name']} is a {type(value).__name__}: no JSON value")
            body = value if isinstance(value, str) else compact_json(value)
            parts += [*_open("argument", key=key, type=kind), *_text(body), *_close("argument")]
    else:
        parts += [*JSON_OPEN, *_text(arguments), *JSON_CLOSE]
    return [*parts, *_close("call")]


def assistant_parts(message: Mapping[str, Any]) -> list[Part]:
    """The assistant's turn after the generation prefix; its thinking is kept, even when empty. Text only."""
    if not isinstance(message["content"], str):
        raise ValueError("an assistant message holds text: the policy reads images, it writes none")
    parts = [*_text(message.get("reasoning_content", "")), *_close("think")]
    parts += [*_open("response"), *_text(message["content"]), *_close("response")]
    if calls := message.get("tool_calls"):
        parts += _open("tools")
        for index, call in enumerate(calls, start=1):
            parts += _call(call, index)
        parts += _close("tools")
    return [*parts, *_close("message"), Mark.END]


def _tool_result(message: Mapping[str, Any], index: int) -> list[Part]:
    name = message.get("name") or (message.get("tool_call_id") or "").rpartition(":")[0]
    if not name:
        raise ValueError("a tool message names no tool: give it `name`, or a `tool_call_id` of the form name:position")
    return _message(_content(message["content"]), role="tool", tool=name, index=index)


def conversation_parts(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), effort: str | None = None
) -> list[Part]:
    """A whole conversation: tool declarations, effort message, then the messages; no generation prefix at the end."""
    parts: list[Part] = []
    if tools:
        declared = [{"type": "function", "function": dict(tool)} for tool in tools]
        body = TOOLS_HEAD + _sorted_json(declared) + TOOLS_TAIL
        parts += _message([body], role="system", type="tool-declare")
    if effort is not None:
        parts += _message([effort_text(effort)], role="system", type="thinking-effort")
    results = 0
    for message in messages:
        results = results + 1 if message["role"] == "tool" else 0  # the index counts within one assistant turn
        if message["role"] == "assistant":
            parts += [*generation_prefix(), *assistant_parts(message)]
        elif message["role"] == "tool":
            parts += _tool_result(message, results)
        elif message["role"] in ("system", "user"):
            parts += _message(_content(message["content"]), role=message["role"])
        else:
            raise ValueError(f"role {message['role']!r}: it must be system, user, assistant or tool")
    return parts


def option_parts(tool_choice: str | None = None, response_format: Mapping[str, Any] | None = None) -> list[Part]:
    """System messages for the next turn alone, between the conversation and the generation prefix.

    tool_choice: None or "auto" (says nothing), "required", "none". response_format as in the OpenAI chat API: None or
    {"type": "text"} (says nothing), {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": ...}}.
    Raises ValueError for others.
    """
    parts: list[Part] = []
    if tool_choice not in (None, "auto"):
        if tool_choice not in _CHOICES:
            raise ValueError(f"tool_choice {tool_choice!r}: it must be auto, {' or '.join(_CHOICES)}")
        body = f"The system is invoked with `tool_choice={tool_choice}`.\n{_CHOICES[tool_choice]}"
        parts += _message([body], role="system", type="tool-choice")
    kind = "text" if response_format is None else response_format["type"]
    if kind != "text":
        body = f"The system is invoked with `response_format={kind}`.\n{_RAW_JSON}"
        if response_format is not None and kind == "json_schema":
            schema = _sorted_json(response_format["json_schema"]["schema"])
            body += f"\nThe JSON data must match the following schema:\n```json\n{schema}\n```"
        elif kind != "json_object":
            raise ValueError(f"response_format {kind!r}: it must be text, json_object or json_schema")
        parts += _message([body], role="system", type="response-format")
    return parts


# ---- a sampled turn to a message


class _Malformed(Exception):
    """Control flow inside the reader; `call` is one whose arguments did not parse, kept so that it can be answered."""

    def __init__(self, problem: str, call: dict | None = None) -> None:
        super().__init__(problem)
        self.call = call


@dataclass
class _Reader:
    """Walks over the runs of a turn."""

    runs: list[Run]
    at: int = 0

    def sees_open(self) -> bool:
        return self.at < len(self.runs) and self.runs[self.at][0] is Mark.OPEN

    def next(self, mark: Mark, where: str) -> None:
        if self.at >= len(self.runs):
            raise _Malformed(f"the turn ends at {where}")
        if self.runs[self.at][0] is not mark:
            raise _Malformed(f"expected {mark.value} at {where}")
        self.at += 1

    def text(self) -> str:
        if self.at < len(self.runs) and self.runs[self.at][0] is None:
            self.at += 1
            return self.runs[self.at - 1][1]
        return ""

    def content(self) -> str:
        return self.text().removeprefix(" ")

    def open(self, *tags: str) -> tuple[str, dict[str, str]]:
        where = f"the start of {tags[0]}"
        self.next(Mark.OPEN, where)
        tag, attributes = _attributes(self.text())
        self.next(Mark.SEP, where)
        if tag not in tags:
            raise _Malformed(f"expected {where}, not of {tag or 'nothing'}")
        return tag, attributes

    def close(self, tag: str) -> None:
        where = f"the end of {tag}"
        self.next(Mark.CLOSE, where)
        name = self.text()
        self.next(Mark.SEP, where)
        if name != tag:
            raise _Malformed(f"expected {where}, not of {name or 'nothing'}")


def _attributes(text: str) -> tuple[str, dict[str, str]]:
    tag, space, rest = text.partition(" ")
    found = _ATTRIBUTE.findall(space + rest)
    if "".join(f' {k}="{v}"' for k, v in found) != space + rest:
        raise _Malformed(f"unreadable attributes {rest!r}")
    if len({k for k, _ in found}) < len(found):
        raise _Malformed(f"an attribute is given twice in {rest!r}")
    return tag, {k: v.replace("&quot;", '"').replace("&amp;", "&") for k, v in found}


def read_json(text: str) -> Any:
    """The value of a sampled text, or NO_JSON where it is none that any JSON writer could write again."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return NO_JSON
    return value if _sound(value) else NO_JSON


def _sound(value: Any) -> bool:
    """Whether a value can be written again by any JSON writer: finite, of whole characters, not too deep.

    Python reads more than JSON: NaN, 1e999, half of a surrogate pair.
    """
    left = [(value, 0)]
    while left:
        v, depth = left.pop()
        if isinstance(v, str):
            if any("\ud800" <= c <= "\udfff" for c in v):
                return False
        elif isinstance(v, float):
            if not math.isfinite(v):
                return False
        elif isinstance(v, dict | list):
            if depth == _DEPTH:
                return False
            inner = [*v, *v.values()] if isinstance(v, dict) else v
            left += [(x, depth + 1) for x in inner]
    return True


def _read_call(r: _Reader, position: int) -> dict:
    name = r.open("call")[1].get("tool", "")
    if not name:
        raise _Malformed("a call names no tool")
    call: dict = {"id": f"{name}:{position}", "name": name, "arguments": {}}
    while r.sees_open():
        tag, given = r.open("argument", "json")
        body = r.content()
        r.close(tag)
        if tag == "json":  # arguments that were not an object when they were written
            if call["arguments"]:
                raise _Malformed("a json block stands beside other arguments", call | {"arguments": body})
            value = read_json(body)
            whole = isinstance(value, dict) and "" not in value
            return _closed(r, call | {"arguments": value if whole else body})
        key, kind = given.get("key", ""), given.get("type", "string")
        if not key or key in call["arguments"]:
            raise _Malformed(f"argument key {key!r} is empty or given twice", call | {"arguments": body})
        value = body if kind == "string" else read_json(body)
        if kind != "string" and _JSON_TYPE.get(type(value)) != kind:
            raise _Malformed(f"argument {key} is not of type {kind}", call | {"arguments": body})
        call["arguments"][key] = value
    return _closed(r, call)


def _closed(r: _Reader, call: dict) -> dict:
    r.close("call")
    return call


def read_reply(runs: list[Run], message: dict) -> str | None:
    """Fill `message` as far as the turn is well formed; None, or one sentence about the first fault. Never raises."""
    r = _Reader(runs)
    calls: list[dict] = []
    try:
        message["reasoning_content"] = r.content()
        r.close("think")
        r.open("response")
        message["content"] = r.content()
        r.close("response")
        if r.sees_open():
            r.open("tools")
            while r.sees_open():
                calls.append(_read_call(r, len(calls)))
            r.close("tools")
            if not calls:
                raise _Malformed("the tools channel has no call")
        r.close("message")
        r.next(Mark.END, "the end of the turn")
        problem = None
    except _Malformed as error:
        calls += [error.call] if error.call else []
        problem = str(error)
    if calls:
        message["tool_calls"] = calls
    return problem
