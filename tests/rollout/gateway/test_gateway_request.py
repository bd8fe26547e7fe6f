"""Laws of the door: bodies are understood exactly or refused by the parameter's name; whatever comes is no 500."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from gateway_tools import TOOL, Running, Scripted, running
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import say

from environments.images import png
from rewards.efforts import DEFAULT_EFFORTS, Effort
from rollout.gateway.errors import ApiError
from rollout.gateway.keys import Door, Key, read_keys
from rollout.gateway.request import read

U = {"role": "user", "content": "a"}


def body(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [U]} | more).encode()


def understood(**more: Any) -> Any:
    return read(body(**more), DEFAULT_EFFORTS, Effort.MAX)


def test_defaults_are_those_of_the_api() -> None:
    ask = understood()
    assert (ask.temperature, ask.n, ask.effort, ask.max_tokens, ask.stops) == (1.0, 1, Effort.MAX, None, ())
    ask = understood(max_completion_tokens=5, max_tokens=5, temperature=0, stop="x", seed=-3, top_p=1.0, n=2)
    assert (ask.temperature, ask.max_tokens, ask.stops, ask.seed) == (0.0, 5, ("x",), -3)
    assert understood(response_format={"type": "text"}, tool_choice="none").options.given() == {}


CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
SAID = {"role": "assistant", "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"top_p": 0.9}, "top_p"),
        ({"top_p": True}, "top_p"),
        ({"logit_bias": {"3": 1}}, "logit_bias"),
        ({"presence_penalty": 0.1}, "presence_penalty"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"store": True}, "store"),
        ({"functions": [{}]}, "functions"),
        ({"tempurature": 1}, "tempurature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": list("abcde")}, "stop"),
        ({"seed": 2**63}, "seed"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": [TOOL]}, "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{**TOOL, "function": {**TOOL["function"], "strict": True}}]}, "tools.0.function.strict"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"reasoning_effort": "medium"}, "reasoning_effort"),
        ({"messages": []}, "messages"),
        ({"messages": [U, {"role": "assistant", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{**U, "name": "joe"}]}, "messages.0.name"),
        ({"messages": [{**U, "reasoning_content": "x"}]}, "messages.0.reasoning_content"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, "messages.0.tool_call_id"),
        ({"messages": [U, {**SAID, "refusal": "no"}, U]}, "messages.1.refusal"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(more: dict, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        understood(**more)
    assert refused.value.status == 400 and refused.value.param == param and len(str(refused.value)) > 12


def test_a_named_tool_that_is_the_only_one_is_a_required_one() -> None:
    named = {"type": "function", "function": {"name": "look"}}
    assert understood(tools=[TOOL], tool_choice=named).options.tool_choice == "required"
    other = {**TOOL, "function": {**TOOL["function"], "name": "other"}}
    with pytest.raises(ApiError, match="not which"):
        understood(tools=[TOOL, other], tool_choice=named)


def test_messages_are_ours_afterwards() -> None:
    arguments = ['{"place": "x"}', "[1]", '{"a"']
    calls = [{**CALL, "id": f"c{i}", "function": {"name": "look", "arguments": a}} for i, a in enumerate(arguments)]
    said = {"role": "assistant", "content": None, "reasoning_content": "t", "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "r"}]}]
    ask = understood(messages=[{"role": "developer", "content": "d"}, U, said, *results], tools=[TOOL])
    assert [m["role"] for m in ask.messages] == ["system", "user", "assistant", "tool"]
    assert [c["arguments"] for c in ask.messages[2]["tool_calls"]] == [{"place": "x"}, "[1]", '{"a"']
    assert ask.messages[3] == {"role": "tool", "content": "r", "name": "look", "tool_call_id": "c1"}


def test_images_are_read_whatever_their_format_and_nothing_is_fetched() -> None:
    from PIL import Image

    pixels = np.zeros((6, 4, 3), np.uint8)
    out = BytesIO()
    Image.fromarray(pixels).save(out, "JPEG")
    for kind, file in (("png", png(pixels)), ("jpeg", out.getvalue())):
        url = f"data:image/{kind};base64,{b64encode(file).decode()}"
        content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]
        part = understood(messages=[{"role": "user", "content": content}]).messages[0]["content"][1]
        assert (part["width"], part["height"]) == (4, 6)
    for url in ("https://x.example/a.png", "data:image/png;base64,AAAA", "data:image/png;base64,?", "data:text/html,x"):
        content = [{"type": "image_url", "image_url": {"url": url}}]
        with pytest.raises(ApiError):
            understood(messages=[{"role": "user", "content": content}])


# ---- whatever comes


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(lambda: Scripted(lambda turn, seed: say("a", thinking="b"))) as it:
        yield it


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_GOOD: dict[str, Any] = {
    "model": "policy",
    "messages": [U, {**SAID, "content": None}, {"role": "tool", "tool_call_id": "c", "content": "r"}],
    "tools": [TOOL],
    "tool_choice": "required",
    "reasoning_effort": "low",
    "max_tokens": 3,
    "temperature": 1.0,
    "stop": ["x"],
    "seed": 1,
    "n": 2,
    "logprobs": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
}


def places(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """Paths to everything in a JSON value."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, x in inner:
        yield from places(x, (*at, key))


def put(value: Any, path: tuple, new: Any) -> Any:
    """A copy with one place changed."""
    if not path:
        return new
    out: Any = dict(value) if isinstance(value, dict) else list(value)
    out[path[0]] = put(value[path[0]], path[1:], new)
    return out


_PATHS = sorted(places(_GOOD), key=repr)


@given(st.sampled_from(_PATHS), _JSON)
@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_body_with_anything_anywhere_is_no_500(server: Running, path: tuple, new: Any) -> None:
    send(server, json.dumps(put(_GOOD, path, new)).encode())


def send(server: Running, content: bytes) -> httpx.Response:
    global _CLIENT
    answer = _CLIENT.post(
        f"{server.url}/v1/chat/completions", content=content, headers={"content-type": "application/json"}
    )
    assert answer.status_code in (200, 400, 404, 413), answer.text
    if answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
    elif answer.status_code != 200:
        assert answer.json()["error"]["message"]
    return answer


_CLIENT = httpx.Client(timeout=20)

_DEEP = '{"a":' * 5000 + "1" + "}" * 5000


def called(arguments: str) -> bytes:
    """A body whose history has a call with these arguments."""
    call = {**CALL, "function": {"name": "look", "arguments": arguments}}
    said = {"role": "assistant", "content": "x", "tool_calls": [call]}
    return json.dumps({"model": "policy", "messages": [U, said, U]}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"model": "\\ud800"}',
        b'{"model": "policy", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "policy", "messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
        b'{"model": "policy", "messages": [{"role": "user", "content": "a"}], "seed": 1' + b"0" * 5000 + b"}",
        _DEEP.encode(),
        called(_DEEP),
        *(called('{"a": ' + "[" * n + "]" * n + "}") for n in (600, 900, 920, 940, 960, 980)),
        called('{"a": NaN, "b": 1e999, "c": "\\ud800"}'),
    ],
    ids=range(17),
)  # fmt: skip
def test_malformed_bodies_are_no_500(server: Running, content: bytes) -> None:
    send(server, content)


@given(st.binary(max_size=64))
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_are_no_500(server: Running, content: bytes) -> None:
    assert send(server, content).status_code == 400


# ---- keys


def test_keys_are_read_and_faults_named(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"

    def write(rows: Any, mode: int = 0o600) -> Path:
        file.write_text(rows if isinstance(rows, str) else json.dumps(rows))
        os.chmod(file, mode)
        return file

    good = {"name": "a", "key": "k" * 16, "max_requests": 2, "tokens_per_minute": 100}
    (key,) = read_keys(write([good]))
    assert (key.name, key.max_requests, key.tokens_per_minute) == ("a", 2, 100) and "k" * 16 not in repr(key)
    other = {"name": "b", "key": "l" * 16}
    for rows, word in (
        ("{", "JSON"),
        ([], "no keys"),
        ([{**good, "key": "short"}], "16"),
        ([{**good, "max_request": 1}], "max_request"),
        ([{**good, "max_requests": 0}], "max_requests"),
        ([good, {**other, "name": "a"}], "name"),
        ([good, {**other, "key": "k" * 16}], "key"),
    ):
        with pytest.raises(ValueError, match=word):
            read_keys(write(rows))
    with pytest.raises(ValueError, match="chmod"):
        read_keys(write([good], 0o644))
    with pytest.raises(ValueError, match="read"):
        read_keys(tmp_path / "none")


def test_tokens_a_minute_are_a_bound_that_refills() -> None:
    now = [0.0]
    key = Key("a", "k" * 16, tokens_per_minute=600)
    door = Door([key], 10, lambda: now[0])
    assert door.reserve(key, 500) == 500
    with pytest.raises(ApiError) as late:
        door.reserve(key, 200)
    assert late.value.status == 429 and late.value.headers["retry-after"] == "10"
    door.settle(key, 500, 50)  # 450 come back: 550 are left
    assert door.reserve(key, 550) == 550
    now[0] = 30.0
    with pytest.raises(ApiError):
        door.reserve(key, 301)
    assert door.reserve(key, 300) == 300
    now[0] = 1000.0
    assert door.reserve(key, 10**9) == 600, "what is larger than the bound waits for all of it"


def test_a_wrong_key_is_told_from_a_right_one_by_nothing_but_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared: list[int] = []
    real = hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        compared.append(len(a))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    keys = [Key(n, n * 16) for n in "abc"]
    door = Door(keys, 1)
    assert door.who("Bearer " + "a" * 16) is keys[0] and door.who("bearer " + "c" * 16) is keys[2]
    for wrong in (None, "", "Bearer", "Bearer x", "Basic " + "a" * 16, "Bearer é"):
        with pytest.raises(ApiError) as refused:
            door.who(wrong)
        assert refused.value.status == 401
    assert compared == [32] * 3 * 8, "every key is compared every time, by digests of one length"


def test_the_server_s_bound_holds_for_all_keys_together() -> None:
    keys = [Key(n, n * 16) for n in "abc"]
    door = Door(keys, 2)
    with door.admit(keys[0]), door.admit(keys[1]):
        with pytest.raises(ApiError) as full, door.admit(keys[2]):
            pass
        assert full.value.status == 429
    with door.admit(keys[2]):
        assert door.running == 1
