"""Laws of replies: pieces join to the whole at any cut, a stop text ends what is said and what is captured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gateway_tools import CHAT, TOOL, Scripted, running, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import call, say

from rollout.engine.base import FinishReason
from rollout.gateway.reply import Pieces, end, hear, openai_message, thinking_tokens


def pieces_of(ids: np.ndarray, cuts: list[int], held: int = 0) -> dict[str, Any]:
    """A reply as its stream says it, looked at after so many tokens."""
    out: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    pieces = Pieces("t", held)
    for at in [*sorted(cuts), len(ids)]:
        for delta in pieces.new(hear(CHAT, ids[:at], ()), at == len(ids)):
            for name, value in delta.items():
                out[name] += value
    return out


_SAID = st.builds(
    lambda c, t, calls: say(c, *calls, thinking=t),
    st.text(max_size=12),
    st.text(max_size=12),
    st.lists(
        st.builds(call, st.just("look"), st.dictionaries(st.text("ab", min_size=1), st.text(max_size=4), max_size=2)),
        max_size=2,
    ),
)


@given(_SAID, st.lists(st.integers(0, 60), max_size=5), st.integers(0, 5))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_pieces_join_to_the_reply_wherever_it_is_cut(said: Any, cuts: list[int], held: int) -> None:
    ids = np.asarray(CHAT.encode_assistant(said), np.int32)
    out = pieces_of(ids, cuts, held)
    want = openai_message(hear(CHAT, ids, ()).message, "t")
    assert (out["content"] or None) == (want["content"] or None)
    assert out["reasoning_content"] == want["reasoning_content"]
    assert [{k: v for k, v in c.items() if k != "index"} for c in out["tool_calls"]] == want.get("tool_calls", [])
    assert [c["index"] for c in out["tool_calls"]] == list(range(len(out["tool_calls"])))


@given(st.lists(st.integers(0, 511), min_size=1, max_size=40), st.lists(st.integers(0, 40), max_size=5))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_pieces_of_nonsense_join_too(tokens: list[int], cuts: list[int]) -> None:
    ids = np.asarray([*CHAT.encode(" é"), *tokens], np.int32)
    out, said = pieces_of(ids, cuts), hear(CHAT, ids, ()).message
    assert (out["content"], out["reasoning_content"]) == (said["content"], said["reasoning_content"])


@pytest.mark.parametrize("thinking", ["", "a", "é b", "a b c"])
def test_thinking_is_counted_in_tokens(thinking: str) -> None:
    ids = CHAT.encode_assistant(say("x", thinking=thinking))
    assert thinking_tokens(CHAT, np.asarray(ids)) == ids.index(CHAT.close_id)


def test_a_stop_text_ends_the_content_and_what_is_captured() -> None:
    ids = CHAT.encode_assistant(say("a b STOP c d", thinking="STOP"))
    heard, g = end(
        CHAT, sampled(1, ids, FinishReason.ABORT, routes=np.zeros((len(ids), 2, 1), np.uint16)), ("STOP", "d")
    )
    assert heard.message["content"] == "a b " and heard.message["reasoning_content"] == "STOP" and heard.stopped
    assert g.finish is FinishReason.STOP and 0 < len(g.token_ids) < len(ids) and len(g.routes) == len(g.token_ids)
    assert CHAT.parse(g.token_ids).message["content"].endswith("STOP")
    assert not CHAT.parse(g.token_ids[:-1]).message["content"].endswith("STOP"), "the first ids that hold it"


def script(turn: int, seed: int) -> Any:
    """Calls with whole and broken arguments, then words."""
    if turn == 0 and seed != 5:
        return say("", call("look", {"place": "x"}), call("look", "[1"), thinking="hm")
    return say("a b STOP c", thinking="done")


def test_calls_and_stops_over_the_wire_plain_and_streamed() -> None:
    asked: Any = {"model": "policy", "messages": [{"role": "user", "content": "a"}], "reasoning_effort": "low"}
    with running(lambda: Scripted(script)) as server:
        client = server.client()
        first = client.chat.completions.create(**asked, tools=[TOOL], seed=1)
        choice = first.choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        calls = choice.message.tool_calls
        assert [c.function.arguments for c in calls] == ['{"place":"x"}', "[1"] and len({c.id for c in calls}) == 2
        stream = list(client.chat.completions.create(**asked, tools=[TOOL], seed=1, stream=True))
        pieces = [t for c in stream for x in c.choices for t in x.delta.tool_calls or ()]
        assert [(t.index, t.function.arguments) for t in pieces] == [(0, '{"place":"x"}'), (1, "[1")]
        results = [{"role": "tool", "tool_call_id": c.id, "content": "r"} for c in calls]
        asked["messages"] = [*asked["messages"], choice.message, *results]
        second = client.chat.completions.create(**asked, tools=[TOOL])
        assert second.model_extra["jointrl"]["begun"] == "continued"
        assert second.choices[0].message.content == "a b STOP c"
        stopped = client.chat.completions.create(**asked, tools=[TOOL], stop=["STOP"])
        assert stopped.choices[0].message.content == "a b " and stopped.choices[0].finish_reason == "stop"
        cut = server.session(stopped).turns[-1]
        assert not cut.whole and len(cut.node) == stopped.usage.completion_tokens < second.usage.completion_tokens
        stream = list(client.chat.completions.create(**asked, tools=[TOOL], stop="STOP", stream=True))
        text = "".join(x.delta.content or "" for c in stream for x in c.choices)
        assert text == "a b "


def test_what_the_policy_was_told_and_did_not_do_is_said() -> None:
    asked: Any = {"model": "policy", "messages": [{"role": "user", "content": "a"}]}
    with running(lambda: Scripted(script)) as server:
        create = server.client().chat.completions.create
        notes = []
        for more in (
            {"tools": [TOOL], "tool_choice": "required", "seed": 5},
            {"tools": [TOOL], "tool_choice": "none", "seed": 1},
            {"response_format": {"type": "json_object"}, "seed": 5},
            {"tools": [TOOL], "tool_choice": "required", "seed": 1},
        ):
            reply = create(**asked, **more)
            notes.append((reply.choices[0].model_extra.get("jointrl") or {}).get("warnings", []))
        assert [bool(n) for n in notes] == [True, True, True, False] and "made no call" in notes[0][0]
