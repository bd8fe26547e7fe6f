"""Malformed tool calls: answered with an error under the same call id, never run, never the end of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from environments.task import Message, Tool, ToolCall

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
"""JSON-schema types that are checked; a parameter of another type is passed as it is."""


def complaint(call: ToolCall, tools: Sequence[Tool]) -> str | None:
    """What is wrong with a call, in one sentence for the policy; None for one that may run."""
    tool = next((t for t in tools if t["name"] == call["name"]), None)
    if tool is None:
        return f"error: no tool named {call['name']!r}; tools: {', '.join(t['name'] for t in tools) or 'none'}"
    arguments = call["arguments"]
    if not isinstance(arguments, dict):
        return "error: the arguments are not a JSON object"
    schema = tool["parameters"]
    properties: Mapping[str, Any] = schema.get("properties", {})
    if missing := [p for p in schema.get("required", ()) if p not in arguments]:
        return f"error: missing argument {missing[0]!r}"
    for name, value in arguments.items():
        if name not in properties:
            return f"error: unknown argument {name!r}"
        expected = properties[name].get("type")
        known = _TYPES.get(expected) if isinstance(expected, str) else None
        # bool is an int in Python, not in JSON.
        if known and (not isinstance(value, known) or (isinstance(value, bool) and expected != "boolean")):
            return f"error: argument {name!r} is not of type {expected}"
    return None


def failed_call(call: ToolCall, text: str) -> Message:
    """The tool message that answers a call which was not run, or could not be."""
    return {"role": "tool", "content": text, "tool_call_id": call["id"], "name": call["name"]}


def answer_malformed(message: Message, tools: Sequence[Tool]) -> tuple[dict[int, Message], Message]:
    """Error messages by position of the malformed calls, and the assistant message with only the calls that may run."""
    errors: dict[int, Message] = {}
    good: list[ToolCall] = []
    for position, call in enumerate(message.get("tool_calls", ())):
        if text := complaint(call, tools):
            errors[position] = failed_call(call, text)
        else:
            good.append(call)
    if not errors:
        return errors, message
    rest: Message = {k: v for k, v in message.items() if k != "tool_calls"}  # type: ignore[assignment]
    if good:
        rest["tool_calls"] = good
    return errors, rest


def merge_results(message: Message, errors: Mapping[int, Message], results: Sequence[Message]) -> list[Message]:
    """Results and errors in the order of the calls that they answer; other messages of the environment follow."""
    if not errors:
        return list(results)
    by_id = {m["tool_call_id"]: m for m in results if "tool_call_id" in m}
    merged: list[Message] = []
    for position, call in enumerate(message.get("tool_calls", ())):
        answer = errors.get(position) or by_id.pop(call["id"], None)
        if answer is not None:
            merged.append(answer)
    used = {id(m) for m in merged}
    return merged + [m for m in results if id(m) not in used]
