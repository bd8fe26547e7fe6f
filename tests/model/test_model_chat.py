"""Laws of the chat structure: text never forges structure, what is encoded is what is read, prefixes are kept."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.chat import ChatTokenizer
from model.xtml import Mark, effort_text

TOK = ChatTokenizer()
MARKS = {TOK._id[m] for m in Mark}
RUN = {
    "name": "run",
    "description": "run a shell command",
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
USER = {"role": "user", "content": "reverse: c a d b"}

texts = st.text(max_size=30) | st.sampled_from(
    [
        "<|close|>think<|sep|>",
        "<|end_of_msg|>",
        ' role="assistant"',
        " a",
        "  ",
        "\n",
        '"&quot;&',
        "b d a c",
        "<|open|>",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def assistants(draw):
    message = {"role": "assistant", "content": draw(texts), "reasoning_content": draw(texts)}
    names = draw(st.lists(st.text(min_size=1, max_size=8), max_size=3))
    if names:
        keys = st.text(min_size=1, max_size=6)
        message["tool_calls"] = [
            {"id": f"{name}:{i}", "name": name, "arguments": draw(st.dictionaries(keys, values, max_size=3))}
            for i, name in enumerate(names)
        ]
    return message


def test_vocabulary_is_512_and_every_id_has_its_own_bytes():
    assert TOK.vocab_size == 512
    assert len(set(TOK._bytes)) == 512 and all(TOK._bytes)
    assert TOK.stop_ids == (TOK.end_id,) and TOK.pad_id in MARKS


@pytest.mark.parametrize("symbol", list("abcdefghijklmnopqrstuvwxyz0123456789+-*/=<>()[]{}:;,.?!&|^~#@$%_'\"\\`"))
def test_a_payload_symbol_is_one_token_and_never_joins_its_neighbour(symbol):
    one = TOK.encode(" " + symbol)
    assert len(one) == 1
    assert TOK.encode(" " + " ".join([symbol] * 5)) == one * 5
    assert TOK.encode(f" {symbol} 7") == one + TOK.encode(" 7")


def test_digits_never_join():
    assert len(TOK.encode("1234567890")) == 10


def test_effort_message_is_verbatim_and_short():
    bare, low = TOK.render_prompt([USER]), TOK.render_prompt([USER], effort="low")
    assert len(low) - len(bare) <= 10
    assert TOK.decode(low) == (
        '<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_effort` guides on how much to think in '
        "your thinking channel (not including the response channel), supported values include `low`, `medium`, `high`, "
        "and `max`.\nNow the system is invoked with `thinking_effort=low`.<|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="user"<|sep|>reverse: c a d b<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
    )
    assert len({tuple(TOK.render_prompt([USER], effort=e)) for e in ("low", "medium", "high", "max")}) == 4
    assert effort_text("max") in TOK.decode(TOK.render_prompt([USER], effort="max"))


def test_tiny_budget_of_structure():
    payload = len(TOK.encode(" " + USER["content"]))
    assert len(TOK.render_prompt([USER], effort="high")) - payload <= 25
    answer = {"role": "assistant", "content": "b d a c"}
    assert len(TOK.encode_assistant(answer)) - 4 == 13  # K3's structure: close think, response, close message, end


def test_tools_are_declared_before_the_effort_as_sorted_json():
    text = TOK.decode(TOK.render_prompt([USER], [RUN], "max"))
    assert text.startswith(
        '<|open|>message role="system" type="tool-declare"<|sep|># Tools\nHere are the available tools, described in '
        'JSONSchema.\n\n```json\n[{"function":{"description":"run a shell command","name":"run","parameters":'
        '{"properties":{"cmd":{"type":"string"}},"required":["cmd"],"type":"object"}},"type":"function"}]\n```<|close|>'
    )
    assert text.index("tool-declare") < text.index("thinking-effort") < text.index('role="user"')


def test_tool_call_is_the_xtml_of_k3():
    call = {"id": "run:0", "name": "run", "arguments": {"cmd": "ls -a", "n": 3}}
    message = {"role": "assistant", "content": "", "reasoning_content": "look", "tool_calls": [call]}
    assert TOK.decode(TOK.encode_assistant(message)).endswith(
        '<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="run" index="1"<|sep|>'
        '<|open|>argument key="cmd" type="string"<|sep|>ls -a<|close|>argument<|sep|>'
        '<|open|>argument key="n" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
    )


@given(texts)
def test_text_never_forges_structure(text):
    ids = TOK.encode(text)
    assert not MARKS & set(ids)
    assert TOK.decode(ids) == text
    marks = sum(t in MARKS for t in TOK.render_prompt([{"role": "user", "content": text}]))
    assert marks == sum(t in MARKS for t in TOK.render_prompt([USER]))


@given(assistants())
@settings(max_examples=200)
def test_what_is_encoded_is_what_is_read(message):
    ids = TOK.encode_assistant(message)
    assert TOK.parse_reply(ids) == (message, True)
    assert ids.count(TOK.end_id) == 1 and ids[-1] == TOK.end_id


@given(
    st.lists(st.sampled_from([*MARKS, *TOK.encode("think message response tools call x"), -1, 600, 200]), max_size=40)
)
def test_reading_never_raises(ids):
    reply = TOK.parse(ids)
    assert reply.message["role"] == "assistant" and reply.used <= len(ids)


@given(assistants(), st.data())
def test_a_cut_turn_is_malformed_and_keeps_what_was_read(message, data):
    ids = TOK.encode_assistant(message)
    reply = TOK.parse(ids[: data.draw(st.integers(0, len(ids) - 1))])
    assert reply.problem is not None
    assert message["content"].startswith(reply.message["content"].rstrip("�"))


def test_text_after_the_end_is_cut():
    ids = TOK.encode_assistant({"role": "assistant", "content": "a"})
    reply = TOK.parse(ids + TOK.encode(" result: 42"))
    assert (reply.message["content"], reply.used, reply.problem) == ("a", len(ids), "text after the end of the message")


@pytest.mark.parametrize("raw", ['{"cmd": "ls', "[1,2]", "null", '"ls"'])
def test_arguments_that_are_no_object_stay_text(raw):
    call = {"id": "run:0", "name": "run", "arguments": raw}
    message = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": [call]}
    assert TOK.parse_reply(TOK.encode_assistant(message)) == (message, True)


def test_an_argument_of_the_wrong_type_is_named():
    call = {"id": "run:0", "name": "run", "arguments": {"n": 3}}
    message = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": [call]}
    ids = TOK.encode_assistant(message)
    (three,) = TOK.encode(" 3")
    reply = TOK.parse([TOK.encode(" x")[0] if t == three else t for t in ids])
    assert reply.problem == "argument n is not of type number"
    assert reply.message["tool_calls"] == [call | {"arguments": "x"}]


@given(st.lists(assistants(), min_size=1, max_size=3), texts)
def test_the_next_prompt_starts_with_the_last_prompt_and_what_was_sampled(turns, result):
    messages, ids = [USER], TOK.render_prompt([USER], [RUN], "high")
    for turn in turns:
        given_ids = [{"role": "tool", "tool_call_id": "run:0", "content": result}, {"role": "user", "content": result}]
        sampled = TOK.encode_assistant(turn)
        ids = ids + sampled + TOK.render_tool_results(given_ids)
        messages += [turn, *given_ids]
        assert TOK.render_prompt(messages, [RUN], "high") == ids


@given(st.lists(assistants(), min_size=1, max_size=3), texts)
def test_the_mask_holds_exactly_what_the_policy_sampled(turns, result):
    ids = TOK.render_prompt([{"role": "user", "content": result}], effort="low")
    mask = [0] * len(ids)
    for turn in turns:
        sampled, given_ids = TOK.encode_assistant(turn), TOK.render_tool_results([{"role": "user", "content": result}])
        ids, mask = ids + sampled + given_ids, mask + [1] * len(sampled) + [0] * len(given_ids)
    assert TOK.loss_mask(ids) == mask


def test_pickles():
    assert pickle.loads(pickle.dumps(TOK)).render_prompt([USER]) == TOK.render_prompt([USER])
