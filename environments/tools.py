"""Tools of an environment as typed methods: their JSON schemas, and calls of them that never raise on model text."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from environments.task import Message, Tool, ToolCall

F = TypeVar("F", bound=Callable[..., Any])

_JSON = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


class ToolError(Exception):
    """A call that the world refuses; its message is the tool's result and helps the policy to do better."""


def tool(method: F) -> F:
    """Mark a method as a tool: its docstring is the description, its annotated parameters are the arguments."""
    method.__is_tool__ = True  # type: ignore[attr-defined]
    return method


_KNOWN: dict[type, list[Tool]] = {}
"""What `tools_of` found: schemas are asked for in every turn."""


def tools_of(owner: type) -> list[Tool]:
    """The tools of a class in the order of their definition, parents first.

    Raises TypeError for a tool without a docstring or with a parameter that has no JSON type.
    """
    if owner in _KNOWN:
        return _KNOWN[owner]
    found: dict[str, Tool] = {}
    for cls in reversed(owner.__mro__):
        for name, method in vars(cls).items():
            if getattr(method, "__is_tool__", False):
                found[name] = _schema(name, method)
    return _KNOWN.setdefault(owner, list(found.values()))


def _schema(name: str, method: Callable[..., Any]) -> Tool:
    if not method.__doc__:
        raise TypeError(f"tool {name} needs a docstring: it is the description that the policy reads")
    hints = typing.get_type_hints(method)
    properties, required = {}, []
    for key, parameter in list(inspect.signature(method).parameters.items())[1:]:
        if key not in hints:
            raise TypeError(f"parameter {key!r} of tool {name} needs a type: str, int, float, bool, list[...] or dict")
        properties[key] = _json_type(hints[key], f"parameter {key!r} of tool {name}")
        if parameter.default is inspect.Parameter.empty:
            required.append(key)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": inspect.cleandoc(method.__doc__), "parameters": parameters}


def _json_type(hint: Any, where: str) -> dict[str, Any]:
    """The JSON schema of a type hint."""
    origin = typing.get_origin(hint) or hint
    if origin is typing.Literal:
        return {"type": "string", "enum": [*typing.get_args(hint)]}
    if origin in (types.UnionType, typing.Union):
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        if len(inner) == 1:
            return _json_type(inner[0], where)
    if origin not in _JSON:
        raise TypeError(
            f"{where} has type {hint}, which has no JSON form: use str, int, float, bool, list[...] or dict"
        )
    out: dict[str, Any] = {"type": _JSON[origin]}
    if origin is list and typing.get_args(hint):
        out["items"] = _json_type(typing.get_args(hint)[0], where)
    return out


def wrong_arguments(schema: Tool, arguments: Any) -> str | None:
    """What is wrong with the arguments of a call, in words that a policy can act on; None if nothing is."""
    properties, required = schema["parameters"]["properties"], schema["parameters"]["required"]
    shape = ", ".join(f"{k}: {v['type']}" + ("" if k in required else " (optional)") for k, v in properties.items())
    if not isinstance(arguments, dict):
        return f"the arguments are no JSON object; {schema['name']} takes {{{shape}}}"
    if missing := [k for k in required if k not in arguments]:
        return f"missing argument {missing[0]!r}; {schema['name']} takes {{{shape}}}"
    if unknown := [k for k in arguments if k not in properties]:
        return f"unknown argument {unknown[0]!r}; {schema['name']} takes {{{shape}}}"
    for key, value in arguments.items():
        if not _fits(properties[key], value):
            choices = properties[key].get("enum")
            wanted = f"one of {', '.join(choices)}" if choices else properties[key]["type"]
            return f"argument {key!r} must be {wanted}"
    return None


def _fits(schema: dict[str, Any], value: Any) -> bool:
    kind = schema["type"]
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "array":
        return isinstance(value, list) and all("items" not in schema or _fits(schema["items"], v) for v in value)
    python = {"string": str, "boolean": bool, "object": dict}[kind]
    return isinstance(value, python) and value in schema.get("enum", [value])


async def call_tool(owner: Any, schemas: Sequence[Tool], call: ToolCall, cap: int) -> str:
    """The result of one call of a tool method of `owner`, at most `cap` characters (what is cut is counted in it).

    A wrong name, wrong arguments and ToolError become the result `error: ...`; anything else that a tool raises is a
    fault of the environment, and propagates.
    """
    schema = next((s for s in schemas if s["name"] == call["name"]), None)
    if schema is None:
        return f"error: no tool {call['name'][:80]!r}; there are {', '.join(s['name'] for s in schemas)}"
    if wrong := wrong_arguments(schema, call["arguments"]):
        return f"error: {wrong}"
    arguments: Any = call["arguments"]
    try:
        result = getattr(owner, call["name"])(**arguments)
        if isinstance(result, Awaitable):
            result = await result
    except ToolError as error:
        result = f"error: {error}"
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return text if len(text) <= cap else f"{text[:cap]}\n[{len(text) - cap} more characters are not shown]"


def answer_to(call: ToolCall, text: str) -> Message:
    """The tool message that answers a call."""
    return {"role": "tool", "content": text, "tool_call_id": call["id"], "name": call["name"]}


def calling(name: str, number: int = 0, thought: str = "", /, **arguments: Any) -> Message:
    """An assistant message that calls one tool; `number` counts the calls of an episode."""
    call: ToolCall = {"id": f"{name}:{number}", "name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]}
