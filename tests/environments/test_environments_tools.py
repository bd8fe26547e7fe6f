"""Tools as typed methods: schemas say what the signature says, and no call of a policy raises."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.task import ToolCall
from environments.tools import ToolError, call_tool, calling, tool, tools_of, wrong_arguments


class Shop:
    """Two tools and one method that is none."""

    @tool
    def sell(self, item: str, count: int, at: float = 1.0, how: Literal["cash", "card"] = "cash") -> dict[str, Any]:
        """Sell some items."""
        if count < 1:
            raise ToolError("count must be at least 1")
        return {"item": item, "total": count * at, "how": how}

    @tool
    async def tag(self, names: list[str], extra: dict | None = None, loud: bool = False) -> str:
        """Tag names."""
        return ("!" if loud else ".").join(names)

    def secret(self) -> str:
        return "not a tool"


SCHEMAS = tools_of(Shop)


def test_schema_says_what_the_signature_says() -> None:
    sell, tag = SCHEMAS
    assert (sell["name"], sell["description"]) == ("sell", "Sell some items.")
    assert sell["parameters"] == {
        "type": "object",
        "properties": {
            "item": {"type": "string"},
            "count": {"type": "integer"},
            "at": {"type": "number"},
            "how": {"type": "string", "enum": ["cash", "card"]},
        },
        "required": ["item", "count"],
    }
    assert tag["parameters"]["properties"]["names"] == {"type": "array", "items": {"type": "string"}}
    assert tag["parameters"]["properties"]["extra"] == {"type": "object"}


def say(name: str, arguments: Any, cap: int = 1000) -> str:
    call: ToolCall = {"id": "x", "name": name, "arguments": arguments}
    return asyncio.run(call_tool(Shop(), SCHEMAS, call, cap))


def test_results() -> None:
    assert say("sell", {"item": "a", "count": 2}) == '{"item": "a", "total": 2.0, "how": "cash"}'
    assert say("tag", {"names": ["a", "b"], "loud": True}) == "a!b"
    assert say("sell", {"item": "a", "count": 0}) == "error: count must be at least 1"
    assert say("tag", {"names": ["x" * 50]}, cap=20) == "x" * 20 + "\n[30 more characters are not shown]"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("secret", {}, "no tool 'secret'; there are sell, tag"),
        ("sell", {"item": "a"}, "missing argument 'count'"),
        ("sell", {"item": "a", "count": 1, "colour": "red"}, "unknown argument 'colour'"),
        ("sell", {"item": "a", "count": True}, "argument 'count' must be integer"),
        ("sell", {"item": "a", "count": 1, "at": float("nan")}, "argument 'at' must be number"),
        ("sell", {"item": "a", "count": 1, "how": "gold"}, "argument 'how' must be one of cash, card"),
        ("sell", "{broken", "no JSON object; sell takes {item: string, count: integer, at: number (optional)"),
        ("tag", {"names": ["a", 1]}, "argument 'names' must be array"),
    ],
)
def test_wrong_calls_are_explained(name: str, arguments: Any, said: str) -> None:
    assert said in say(name, arguments)


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["item", "count", "at", "how"]), inner),
    max_leaves=5,
)


@given(_ANY)
def test_no_arguments_raise(arguments: Any) -> None:
    text = say("sell", arguments)
    assert text.startswith("error: ") == (wrong_arguments(SCHEMAS[0], arguments) is not None or arguments["count"] < 1)


def test_a_tool_without_words_or_types_is_refused() -> None:
    class Mute:
        @tool
        def hush(self) -> str:
            return ""

    class Vague:
        @tool
        def do(self, it) -> str:  # type: ignore[no-untyped-def]
            """Do it."""
            return ""

    with pytest.raises(TypeError, match="docstring"):
        tools_of(Mute)
    with pytest.raises(TypeError, match="parameter 'it' of tool do needs a type"):
        tools_of(Vague)


def test_calling_is_a_message_that_calls() -> None:
    assert calling("tag", 3, names=["a"])["tool_calls"] == [
        {"id": "tag:3", "name": "tag", "arguments": {"names": ["a"]}}
    ]
