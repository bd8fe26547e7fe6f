"""Laws of a session: sampled ids are never made again, each is trained once, and what breaks a prefix is seen."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gateway_tools import CHAT, ROOT, TOOL, sampled
from worlds import call, say

from rewards.efforts import DEFAULT_EFFORTS, Effort
from rewards.grade import Grade
from rollout.engine.base import FinishReason
from rollout.gateway.book import Book
from rollout.gateway.errors import ApiError
from rollout.gateway.reply import Pieces, hear
from rollout.gateway.request import Ask, read
from rollout.gateway.session import Begun, Session
from rollout.trajectory import NO_ROUTE, Sampling, StopReason

U = {"role": "user", "content": "say: a b"}


def asked(*messages: Any, **more: Any) -> Ask:
    body = {"model": "m", "messages": list(messages), "reasoning_effort": "low"} | more
    return read(json.dumps(body).encode(), DEFAULT_EFFORTS, Effort.MAX)


def told(session: Session, ask: Ask, reply: Any, finish: FinishReason = FinishReason.STOP, **more: Any) -> Begun:
    """A call, and what the engine sampled for it."""
    path = session.lay(ask, CHAT)
    begun = session.begun(path)
    columns = more.pop("columns", {})
    g = sampled(more.pop("version", 1), reply, finish, **columns)
    said = CHAT.parse(g.token_ids).message
    sampling = Sampling(more.pop("temperature", 1.0), 9, 0, CHAT.stop_ids)
    session.heard(path, said, g, sampling, finish is FinishReason.STOP)
    return begun


def session() -> Session:
    return Session("s", "me", Effort.LOW)


def second_spelling() -> list[int]:
    """The reply "a b c" in other ids than its text encodes to."""
    text, letters = CHAT.encode(" a b c"), [i for c in " a b c" for i in CHAT.encode(c)]
    assert CHAT.decode(letters) == CHAT.decode(text) and letters != text
    whole = CHAT.encode_assistant(say("a b c"))
    at = next(i for i in range(len(whole)) if whole[i : i + len(text)] == text)
    return whole[:at] + letters + whole[at + len(text) :]


def test_ids_of_a_second_spelling_are_kept_though_text_encodes_to_others() -> None:
    """Two spellings of one text (F017): the ids that were sampled are those that the next prompt holds."""
    odd, s = second_spelling(), session()
    told(s, asked(U), odd)
    reply = {"role": "assistant", "content": "a b c"}
    path = s.lay(asked(U, reply, {"role": "user", "content": "d"}), CHAT)
    assert [t.sampled for t in path] == [False, True, False]
    assert path[1].node.token_ids.tolist() == odd
    ids = np.concatenate([t.node.token_ids for t in path]).tolist()
    assert ids == CHAT.render_prompt([U], (), "low") + odd + CHAT.render_tool_results(
        [{"role": "user", "content": "d"}]
    )


def test_ids_stay_as_sampled_where_their_reply_is_context_of_another_branch() -> None:
    odd, s = second_spelling(), session()
    told(s, asked(U, tools=[TOOL], tool_choice="none"), odd)
    path = s.lay(asked(U, {"role": "assistant", "content": "a b c"}, U, tools=[TOOL]), CHAT)
    assert path[1].node.token_ids.tolist() == odd and not path[1].sampled and s.begun(path) is Begun.BRANCHED


def test_a_fresh_conversation_is_laid_as_it_is_rendered() -> None:
    said = {"role": "assistant", "content": "x", "reasoning_content": "y"}
    more = asked(U, said, U, said, {"role": "system", "content": "now"}, U, tools=[TOOL])
    ids = np.concatenate([t.node.token_ids for t in session().lay(more, CHAT)]).tolist()
    assert ids == CHAT.render_prompt(more.messages, more.tools, "low")


def test_tool_calls_come_back_as_they_were_said() -> None:
    s = session()
    assert (
        told(s, asked(U, tools=[TOOL]), say("", call("look", {"place": "x"}), call("look", {"place": "y"})))
        is Begun.BEGAN
    )
    turn = s.turns[0]
    calls = [
        {"id": f"call_9_{i}", "type": "function", "function": {"name": "look", "arguments": json.dumps(c["arguments"])}}
        for i, c in enumerate(turn.messages[0]["tool_calls"])
    ]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": f"r{i}"} for i, c in enumerate(calls)]
    ask = asked(U, {"role": "assistant", "content": None, "tool_calls": calls}, *results, tools=[TOOL])
    assert told(s, ask, say("done")) is Begun.CONTINUED
    t = s.trajectory()
    assert [n.role for n in t.nodes] == ["prompt", "assistant", "tool", "assistant"] and t.segments == [0]
    plain = [{"role": "tool", "name": "look", "content": f"r{i}"} for i in range(2)]
    assert t.nodes[2].token_ids.tolist() == CHAT.render_tool_results(plain)


def test_shared_replies_are_trained_in_one_branch_and_context_in_the_others() -> None:
    s = session()
    told(s, asked(U), say("one", thinking="t"))
    one = {"role": "assistant", "content": "one"}
    for word in ("x", "y"):
        how = told(s, asked(U, one, {"role": "user", "content": word}), say(word))
        assert how is (Begun.CONTINUED if word == "x" else Begun.BRANCHED)
    assert told(s, asked(U), say("two")) is Begun.BRANCHED
    s.close(Grade.outcome(True))
    t = s.trajectory()
    assert t.segments == [0, 4, 8] and t.stop is StopReason.DONE
    assert [int(n.loss_mask.any()) for n in t.nodes] == [0, 1, 0, 1, 0, 0, 0, 1, 0, 1]
    assert t.nodes[5].token_ids.tolist() == t.nodes[1].token_ids.tolist(), "context is the sampled ids"
    assert t.output_tokens == sum(len(x.node) for x in s.turns) and (t.nodes[5].versions == -1).all()


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.CONTEXT])
def test_a_reply_that_was_cut_off_is_trained_and_not_gone_on_from(finish: FinishReason) -> None:
    s = session()
    whole = CHAT.encode_assistant(say("a b c d", thinking="e"))
    cut = whole[: whole.index(CHAT.close_id) + 8]
    told(s, asked(U), cut, finish)
    content = s.turns[0].messages[0]["content"]
    assert told(s, asked(U, {"role": "assistant", "content": content or ""}, U), say("z")) is Begun.BRANCHED
    assert len(s.leaves()) == 2
    s2 = session()
    told(s2, asked(U), cut, finish)
    s2.close(Grade.outcome(False))
    assert s2.trajectory().stop.truncated and s2.trajectory().output_tokens == len(cut)


def test_what_was_broken_off_or_greedy_trains_nothing_and_is_counted() -> None:
    s = session()
    told(s, asked(U), CHAT.encode_assistant(say("a"))[:3], FinishReason.ABORT)
    assert told(s, asked(U), say("a"), temperature=0.0) is Begun.BEGAN, "a broken call is none"
    t = s.trajectory()
    assert len(t.nodes) == 2 and t.output_tokens == 0
    assert s.summary()["greedy"] == 1 and s.summary()["counts"]["finish/abort"] == 1


def test_an_option_of_one_turn_branches_and_its_reply_stays_as_sampled() -> None:
    s = session()
    told(s, asked(U, tools=[TOOL], tool_choice="required"), say("", call("look", {"place": "x"})))
    assert "tool_choice=required" in CHAT.decode(s.turns[0].line()[1].node.token_ids)
    made = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"place": "x"}'}}
    back = [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]
    assert told(s, asked(U, *back, tools=[TOOL]), say("k")) is Begun.BRANCHED
    t = s.trajectory()
    assert t.segments == [0, 2] and "tool_choice" not in CHAT.decode(t.nodes[2].token_ids)
    assert t.nodes[3].token_ids.tolist() == t.nodes[1].token_ids.tolist() and not t.nodes[3].loss_mask.any()


@pytest.mark.parametrize(("thought", "how"), [("t", Begun.CONTINUED), ("", Begun.BRANCHED), ("u", Begun.BRANCHED)])
def test_thinking_that_was_changed_is_another_reply(thought: str, how: Begun) -> None:
    s = session()
    told(s, asked(U), say("a", thinking="t"))
    reply = {"role": "assistant", "content": "a", "reasoning_content": thought}
    ask = asked(U, reply, U)
    assert s.lay(ask, CHAT)[1].node.token_ids.tolist() == CHAT.encode_assistant(say("a", thinking=thought))
    assert told(s, ask, say("b")) is how


def test_routes_are_those_that_were_sampled_with_and_gaps_are_filled() -> None:
    s = session()
    first = asked(U)
    n, m = len(CHAT.render_prompt([U], (), "low")), len(CHAT.encode_assistant(say("a")))
    grid = np.arange(n + m, dtype=np.uint16)[:, None, None].repeat(2, 1)
    own = grid[n:].copy()
    own[-1] = NO_ROUTE
    told(s, first, say("a"), columns={"routes": own, "prompt_routes": grid[:n]})
    second = asked(U, {"role": "assistant", "content": "a"}, U)
    length = n + m + len(CHAT.render_tool_results([U]))
    again = np.full((length, 2, 1), 7000, np.uint16)
    again[:n] = NO_ROUTE  # served from a cache: no engine ran them
    told(s, second, say("b"), columns={"routes": own[:m], "prompt_routes": again})
    t = s.trajectory()
    np.testing.assert_array_equal(t.nodes[0].routes, grid[:n])
    np.testing.assert_array_equal(t.nodes[1].routes[:-1], own[:-1])
    assert (t.nodes[1].routes[-1] == 7000).all() and (t.nodes[2].routes == 7000).all()


def test_calls_side_by_side_share_their_prompt() -> None:
    s = session()
    ask = asked(U)
    a, b = s.lay(ask, CHAT), s.lay(ask, CHAT)
    for path, word in ((a, "x"), (b, "y")):
        g = sampled(1, say(word))
        s.heard(path, CHAT.parse(g.token_ids).message, g, Sampling(), True)
    assert len(s.root.children) == 1 and len(s.root.children[0].children) == 2


def test_a_template_of_hugging_face_goes_on_from_sampled_ids_and_streams_what_it_says() -> None:
    from model.hf_chat import HFChatTokenizer

    chat, s = HFChatTokenizer(ROOT / "assets" / "hf_tiny"), session()
    path = s.lay(asked(U), chat)
    text = '<think>hm é</think>a b<tool_call>{"name": "look", "arguments": {"place": "x"}}</tool_call>'
    ids = [*chat.encode(text), chat.end_id]
    g = sampled(1, ids)
    heard = hear(chat, g.token_ids, ())
    s.heard(path, heard.message, g, Sampling(), True)
    made = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"place": "x"}'}}
    back = [
        {"role": "assistant", "content": "a b", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]
    more = s.lay(asked(U, *back), chat)
    assert more[1].node.token_ids.tolist() == ids and s.begun(more) is Begun.CONTINUED
    pieces, out = Pieces("t", chat.unsure_tail), {"content": "", "reasoning_content": "", "tool_calls": []}
    for at in range(1, len(ids) + 1):
        for delta in pieces.new(hear(chat, g.token_ids[:at], ()), at == len(ids)):
            for name, value in delta.items():
                out[name] += value
    assert (out["content"], out["reasoning_content"]) == ("a b", "hm é") and len(out["tool_calls"]) == 1


# ---- which session


def book(most: int = 3, idle_s: float = 100.0) -> tuple[Book, list[Session], list[float]]:
    left: list[Session] = []
    now = [0.0]
    return Book(most, idle_s, left.append, lambda: now[0]), left, now


def begin(b: Book, ask: Ask, reply: Any, owner: str = "me") -> Session:
    s = b.recognised(owner, ask)
    told(s, ask, reply)
    b.heard(s, s.turns[-1:])
    return s


def test_a_conversation_is_recognised_by_the_longest_of_its_replies_that_were_captured() -> None:
    b, _, _ = book(9)
    one = begin(b, asked(U), say("one"))
    assert begin(b, asked(U), say("two")) is not one, "the same question is another episode"
    reply = {"role": "assistant", "content": "one"}
    assert begin(b, asked(U, reply, U), say("three")) is one
    assert begin(b, asked(U, reply, U, {"role": "assistant", "content": "three"}, U), say("four")) is one
    assert b.recognised("you", asked(U, reply, U)) is not one, "an owner does not reach another's sessions"
    assert b.recognised("me", asked(U, reply, U, tools=[TOOL])) is not one, "other tools are another beginning"
    high = read(json.dumps({"model": "m", "messages": [U, reply, U]}).encode(), DEFAULT_EFFORTS, Effort.MAX)
    assert b.recognised("me", high) is not one, "a trajectory has one effort"
    b.close(one, Grade.outcome(True))
    assert b.recognised("me", asked(U, reply, U)) is not one, "a closed session takes no calls"


def test_of_two_alike_each_goes_on_once() -> None:
    b, _, _ = book(9)
    a, c = begin(b, asked(U), say("one")), begin(b, asked(U), say("one"))
    more = asked(U, {"role": "assistant", "content": "one"}, U)
    assert begin(b, more, say("x")) is c and begin(b, more, say("y")) is a


def test_a_named_session_has_one_effort_and_one_task() -> None:
    b, _, _ = book()
    s = b.named("me", "n", Effort.LOW, "t")
    assert b.named("me", "n", Effort.LOW) is s
    for effort, task in ((Effort.HIGH, None), (Effort.LOW, "u")):
        with pytest.raises(ApiError):
            b.named("me", "n", effort, task)
    with pytest.raises(ApiError, match="no reply"):
        b.close(s, Grade.outcome(True))


def test_sessions_are_given_up_and_handed_on_once() -> None:
    b, left, now = book(most=2, idle_s=10.0)
    first = begin(b, asked(U), say("a"))
    for word in ("b", "c", "d"):
        begin(b, asked(U), say(word))
    assert left and left[0] is first and len(b) <= 3
    running = begin(b, asked(U), say("e"))
    running.running = 1
    now[0] = 11.0
    b.sweep()
    assert running not in left and len(b) == 1, "one with a call in flight stays"
    running.running = 0
    b.close(running, Grade.outcome(True))
    b.leave_all()
    assert left.count(running) == 1 and len(left) == len(set(map(id, left))) == 5 and not b._replies
