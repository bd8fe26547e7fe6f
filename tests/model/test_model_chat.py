"""Laws of the chat structure: text never forges structure, what is encoded is what is read, prefixes are kept."""

import hashlib
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.chat import VOCABULARY, ChatTokenizer
from model.image import ImageSpec
from model.xtml import Mark, Media, Part, effort_text, option_parts

TOK = ChatTokenizer()
SEEING = ChatTokenizer(images=ImageSpec())
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
        "<|close|>argument<|sep|><|close|>call<|sep|>",
        "<|media_begin|>image 3x4<|media_content|><|media_pad|><|media_end|>",
        "\u0000\ufffd\U0001f98a e\u0301 \u202e",
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


def called(*parts: Part, attributes: str = ' tool="run"') -> list[int]:
    """A turn with one call."""
    head = [Mark.CLOSE, "think", Mark.SEP, Mark.OPEN, "response", Mark.SEP, Mark.CLOSE, "response", Mark.SEP]
    call = [
        Mark.OPEN,
        "tools",
        Mark.SEP,
        Mark.OPEN,
        f"call{attributes}",
        Mark.SEP,
        *parts,
        Mark.CLOSE,
        "call",
        Mark.SEP,
    ]
    return TOK.ids([*head, *call, Mark.CLOSE, "tools", Mark.SEP, Mark.CLOSE, "message", Mark.SEP, Mark.END])


def block(tag: str, body: str) -> list[Part]:
    return [Mark.OPEN, tag, Mark.SEP, " " + body, Mark.CLOSE, tag.partition(" ")[0], Mark.SEP]


def test_a_call_that_says_two_things_is_run_as_neither():
    argument, json_block = block('argument key="a" type="string"', "x"), block('json type="object"', '{"b":1}')
    assert TOK.parse(called(*argument)).message["tool_calls"][0]["arguments"] == {"a": "x"}
    assert TOK.parse(called(*json_block)).message["tool_calls"][0]["arguments"] == {"b": 1}
    both = TOK.parse(called(*argument, *json_block))
    assert both.problem == "a json block stands beside other arguments"
    assert both.message["tool_calls"] == [{"id": "run:0", "name": "run", "arguments": '{"b":1}'}]
    twice = TOK.parse(called(*argument, attributes=' tool="run" tool="erase"'))
    assert twice.problem is not None and "given twice" in twice.problem and "tool_calls" not in twice.message
    nameless = TOK.parse(called(*block('json type="object"', '{"":1}')))  # no argument could be written so
    assert nameless.message["tool_calls"][0]["arguments"] == '{"":1}'


def test_an_effort_that_k3_has_not_is_refused():
    for effort in ("none", "", "x"):
        with pytest.raises(ValueError, match="must be one of low, medium, high, max"):
            TOK.render_prompt([USER], effort=effort)


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


# ---- images


PICTURE = {"type": "image", "width": 303, "height": 181}


def test_an_image_is_its_original_size_and_a_token_for_each_row():
    content = [{"type": "text", "text": "see"}, PICTURE, {"type": "text", "text": "and"}]
    ids = SEEING.render_prompt([{"role": "user", "content": content}])
    assert ids.count(SEEING.image_id) == ImageSpec().tokens(303, 181) == 77
    assert (
        '<|open|>message role="user"<|sep|>see<|media_begin|>image 303x181<|media_content|>'
        + "<|media_pad|>" * 77
        + "<|media_end|> and<|close|>message<|sep|><|end_of_msg|>"
    ) in SEEING.decode(ids)
    result = {"role": "tool", "name": "look", "content": [PICTURE]}
    assert SEEING.render_tool_results([result]).count(SEEING.image_id) == 77


def test_media_tokens_come_behind_the_vocabulary_and_move_nothing():
    before = hashlib.sha256(VOCABULARY.read_bytes()).hexdigest()
    assert [SEEING._media[m] for m in Media] == [512, 513, 514, 515] and SEEING.vocab_size == 516
    assert SEEING._bytes[:512] == TOK._bytes and TOK.image_id is None
    message = {"role": "user", "content": "<|media_pad|> b d a c <|media_begin|>"}
    assert SEEING.render_prompt([message], [RUN], "low") == TOK.render_prompt([message], [RUN], "low")
    assert hashlib.sha256(VOCABULARY.read_bytes()).hexdigest() == before
    assert pickle.loads(pickle.dumps(SEEING)).image_id == 515


def test_media_tokens_that_a_vocabulary_has_are_used_where_they_are(tmp_path: Path):
    own = json.loads(VOCABULARY.read_text())
    entry = own["added_tokens"][-1]
    own["added_tokens"] += [entry | {"id": 512 + i, "content": m.value} for i, m in enumerate(reversed(Media))]
    (tmp_path / "tokenizer.json").write_text(json.dumps(own))
    tok = ChatTokenizer(tmp_path / "tokenizer.json", ImageSpec())
    assert tok.image_id == 512 and tok.vocab_size == 516
    with pytest.raises(ValueError, match=r"renders no images.*there already"):
        ChatTokenizer(tmp_path / "tokenizer.json").render_prompt([{"role": "user", "content": [PICTURE]}])


def test_a_tokenizer_without_images_says_what_it_lacks():
    with pytest.raises(ValueError, match=r"renders no images.*images=ImageSpec.*512\.\.515"):
        TOK.render_prompt([{"role": "user", "content": [PICTURE]}])


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "user", "content": [{"type": "audio"}]}, "type 'audio'"),
        ({"role": "user", "content": [PICTURE | {"width": 0}]}, "0 x 181 px has no pixels"),
        ({"role": "assistant", "content": [PICTURE]}, "an assistant message holds text"),
        ({"role": "developer", "content": "a"}, "role 'developer'"),
        ({"role": "tool", "content": "a"}, "names no tool"),
        ({"role": "tool", "content": "a", "tool_call_id": None}, "names no tool"),
        ({"role": "user", "content": None}, "content is None: it must be a text"),
        ({"role": "user", "content": 5}, "content is 5: it must be a text"),
    ],
)
def test_a_message_that_cannot_be_rendered_is_refused(message: dict, why: str):
    with pytest.raises(ValueError, match=why):
        SEEING.render_prompt([message])


# ---- options of the next turn


def test_options_stand_between_the_conversation_and_the_turn():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    text = TOK.decode(TOK.render_prompt([USER], [RUN], "low", "required", form))
    assert text.endswith(
        "reverse: c a d b<|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="system" type="tool-choice"<|sep|>The system is invoked with `tool_choice=required`.\n'
        "You MUST call tools in the next message.<|close|>message<|sep|><|end_of_msg|>"
        '<|open|>message role="system" type="response-format"<|sep|>The system is invoked with '
        "`response_format=json_schema`.\nYour response must be raw JSON data without markdown code blocks (```json) or "
        "any additional formatting.\nThe JSON data must match the following schema:\n```json\n"
        '{"properties":{"a":{},"b":{}},"type":"object"}\n```<|close|>message<|sep|><|end_of_msg|>'
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
    )
    none = TOK.decode(TOK.ids(option_parts("none", {"type": "json_object"})))
    assert "`tool_choice=none`.\nYou MUST NOT call any tools in the next message." in none
    assert "`response_format=json_object`" in none and "schema" not in none
    assert option_parts("auto", {"type": "text"}) == option_parts() == []


@pytest.mark.parametrize("options", [{"tool_choice": "any"}, {"response_format": {"type": "xml"}}])
def test_an_unknown_option_is_named(options: dict):
    with pytest.raises(ValueError, match=next(iter(options))):
        TOK.render_prompt([USER], **options)


# ---- what is learned


def test_arguments_that_are_no_object_are_read_and_never_taught():
    calls = [{"id": f"run:{i}", "name": "run", "arguments": a} for i, a in enumerate([{"cmd": "a"}, "b [c", {"n": 1}])]
    message = {"role": "assistant", "content": "c", "reasoning_content": "r", "tool_calls": calls}
    ids = TOK.render_prompt([USER]) + TOK.encode_assistant(message)
    mask = TOK.loss_mask(ids)
    hidden = [t for t, m in zip(ids, mask, strict=True) if not m][len(TOK.render_prompt([USER])) :]
    assert TOK.decode(hidden) == '<|open|>json type="object"<|sep|>b [c<|close|>json<|sep|>'
    assert mask[-1] == 1
    cut = TOK.loss_mask(ids[: ids.index(TOK.encode(" [")[0]) + 1])  # a block that never closes
    assert cut[-3:] == [0, 0, 0]


def test_no_image_token_is_taught():
    ids = SEEING.render_prompt([{"role": "user", "content": [PICTURE]}])
    assert not any(SEEING.loss_mask(ids))
    said = SEEING.encode("a") + [SEEING._media[m] for m in Media] + SEEING.encode("b") + [SEEING.end_id]
    assert SEEING.loss_mask(ids + said)[len(ids) :] == [1, 0, 0, 0, 0, 1, 1]


# ---- reading what a policy may say


def test_thinking_is_kept_in_the_history_even_when_empty():
    turns = [
        USER,
        {"role": "assistant", "content": "a"},
        USER,
        {"role": "assistant", "content": "b", "reasoning_content": "t"},
    ]
    text = TOK.decode(TOK.render_prompt(turns))
    assert "<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|>a<|close|>response<|sep|>" in text
    assert "<|open|>think<|sep|>t<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|>" in text


def call_with(kind: str, body: str) -> list[int]:
    """A turn whose one argument is of a kind, and `body` its text."""
    call = {"id": "run:0", "name": "run", "arguments": {"n": "zqx"}}
    ids = TOK.encode_assistant({"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": [call]})
    for old, new in (
        (TOK.encode('argument key="n" type="string"'), TOK.encode(f'argument key="n" type="{kind}"')),
        (TOK.encode(" zqx"), TOK.encode(body)),
    ):
        at = next(i for i in range(len(ids)) if ids[i : i + len(old)] == old)
        ids = ids[:at] + new + ids[at + len(old) :]
    return ids


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("number", "NaN"),
        ("number", "-Infinity"),
        ("number", "1e999"),
        ("array", "[1e999]"),
        ("array", '["\\ud800"]'),
        ("object", '{"\\udfff":1}'),
        ("array", "[" * 65 + "]" * 65),
        ("array", "[" * 100000),
        ("number", "9" * 5000),
        ("boolean", "1"),
        ("integer", "1"),
        ("object", "[]"),
    ],
)
def test_values_that_no_other_reader_would_take_are_malformed(kind: str, body: str):
    reply = TOK.parse(call_with(kind, body))
    assert reply.problem == f"argument n is not of type {kind}"
    (call,) = reply.message["tool_calls"]
    assert call == {"id": "run:0", "name": "run", "arguments": body}
    assert TOK.parse(call_with("array", "[" * 64 + "]" * 64)).problem is None


def test_half_a_surrogate_pair_is_rendered_not_raised():
    assert TOK.decode(TOK.encode("a\ud800b")) == "a?b"
    assert TOK.render_tool_results([{"role": "tool", "name": "\udc80", "content": "\udcff"}])


WORDS = [
    "think",
    "response",
    "tools",
    'call tool="run" index="1"',
    'argument key="a" type="number"',
    "argument",
    "call",
]
WORDS += ['json type="object"', "json", "message", '{"a":', "1e999", '"', "[", "\\ud800", " ", "é"]
PIECES = [[i] for i in (*MARKS, *(SEEING._media[m] for m in Media), 200, 255)] + [TOK.encode(w) for w in WORDS]


@st.composite
def broken_turns(draw):
    """Well-formed turns with pieces of others put in, taken out, doubled or cut off; or nothing but pieces."""
    if draw(st.booleans()):
        return [i for piece in draw(st.lists(st.sampled_from(PIECES), max_size=40)) for i in piece]
    ids = TOK.encode_assistant(draw(assistants()))
    for _ in range(draw(st.integers(1, 4))):
        a, b = sorted((draw(st.integers(0, len(ids))), draw(st.integers(0, len(ids)))))
        ids = (
            ids[:a]
            + draw(st.sampled_from([*PIECES, [], ids[a:b] * 2, [-1, 10**9]]))
            + ids[draw(st.sampled_from([a, b])) :]
        )
    return ids[: draw(st.integers(0, len(ids)))] if draw(st.booleans()) else ids


@given(broken_turns())
@settings(max_examples=400, deadline=None)
def test_whatever_is_said_gives_a_message_that_can_be_kept(ids):
    """A message or the reason why not; either way it is JSON, and can be rendered and read again."""
    reply = SEEING.parse(ids)
    message = reply.message
    assert set(message) <= {"role", "content", "reasoning_content", "tool_calls"} and message["role"] == "assistant"
    assert reply.problem is None or reply.problem.strip()
    assert json.loads(json.dumps(message, allow_nan=False, ensure_ascii=False).encode()) == message
    again = SEEING.parse(SEEING.encode_assistant(message))
    assert again.problem is None and again.message.keys() == message.keys()
    if reply.problem is None:
        assert again.message == message
    else:  # of a malformed call the raw text is kept, which may happen to be an object
        for name in ("content", "reasoning_content"):
            assert again.message[name] == message[name]
        assert [c["id"] for c in again.message.get("tool_calls", [])] == [
            c["id"] for c in message.get("tool_calls", [])
        ]
    assert len(SEEING.loss_mask(SEEING.prefix_ids + ids)) == len(SEEING.prefix_ids) + len(ids)
    if reply.problem is None:
        assert SEEING.parse(ids[: reply.used]).problem is None
