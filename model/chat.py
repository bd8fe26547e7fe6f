"""The chat structure of K3 (XTML) on token ids: messages in, ids out, and sampled ids back into a message.

Structure (`<|open|>tag a="v"<|sep|> ... <|close|>tag<|sep|>`, `<|end_of_msg|>`) uses special ids; tags, attributes and all
text are ordinary tokens, so text can never forge structure. Source: spec/k3_architecture section 13.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

VOCABULARY = Path(__file__).parent / "data" / "tokenizer.json"
"""The committed vocabulary of 512 entries, made by `model/train_tokenizer.py`."""


class Mark(Enum):
    """A structural token: it exists as an id only, text that spells it is ordinary."""

    END = "<|end_of_msg|>"
    OPEN = "<|open|>"
    CLOSE = "<|close|>"
    SEP = "<|sep|>"
    PAD = "<|pad|>"


Part = str | Mark
"""A piece of a rendered conversation: a mark, or text that is encoded on its own."""

TOOLS_HEAD = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n"
TOOLS_TAIL = "\n```"

_JSON_TYPE = {bool: "boolean", int: "number", float: "number", type(None): "null", dict: "object", list: "array"}
_ATTRIBUTE = re.compile(r' ([a-z]+)="([^"]*)"')


def effort_text(effort: str) -> str:
    """The body of the effort message, verbatim as K3 was trained on it."""
    return (
        "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
        "supported values include `low`, `medium`, `high`, and `max`.\n"
        f"Now the system is invoked with `thinking_effort={effort}`."
    )


def compact_json(value: Any) -> str:
    """JSON without spaces, as K3 writes tool declarations and arguments that are not strings."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ----------------------------------------------------------------------------------------------------- messages -> parts


def _open(tag: str, **attributes: object) -> list[Part]:
    text = tag
    for key, value in attributes.items():
        text += f' {key}="{str(value).replace("&", "&amp;").replace(chr(34), "&quot;")}"'
    return [Mark.OPEN, text, Mark.SEP]


def _close(tag: str) -> list[Part]:
    return [Mark.CLOSE, tag, Mark.SEP]


def _text(text: str) -> list[Part]:
    """Content of a channel. It gets one leading space, which parsing removes, so that a symbol is the same token at the
    start of a text as inside it (" b")."""
    return [" " + text] if text else []


def _message(body: list[Part], **attributes: object) -> list[Part]:
    return [*_open("message", **attributes), *body, *_close("message"), Mark.END]


def _prefix() -> list[Part]:
    """What opens the assistant's turn: from here on the policy samples."""
    return [*_open("message", role="assistant"), *_open("think")]


def _call(call: dict, index: int) -> list[Part]:
    parts = _open("call", tool=call["name"], index=index)
    arguments = call["arguments"]
    if isinstance(arguments, dict):
        for key, value in arguments.items():
            kind = "string" if isinstance(value, str) else _JSON_TYPE[type(value)]
            body = value if isinstance(value, str) else compact_json(value)
            parts += [*_open("argument", key=key, type=kind), *_text(body), *_close("argument")]
    else:
        parts += [*_open("json", type="object"), *_text(arguments), *_close("json")]
    return [*parts, *_close("call")]


def assistant_parts(message: dict) -> list[Part]:
    """The assistant's turn after the generation prefix, thinking kept even when empty."""
    parts = [*_text(message.get("reasoning_content", "")), *_close("think")]
    parts += [*_open("response"), *_text(message["content"]), *_close("response")]
    if calls := message.get("tool_calls"):
        parts += _open("tools")
        for index, call in enumerate(calls, start=1):
            parts += _call(call, index)
        parts += _close("tools")
    return [*parts, *_close("message"), Mark.END]


def tool_parts(messages: Sequence[dict]) -> list[Part]:
    """Tool results in the order of their calls; the index counts within one assistant turn."""
    parts: list[Part] = []
    for index, message in enumerate(messages, start=1):
        name = message.get("name") or message.get("tool_call_id", "").rpartition(":")[0]
        parts += _message(_text(message["content"]), role="tool", tool=name, index=index)
    return parts


def conversation_parts(messages: Sequence[dict], tools: Sequence[dict] = (), effort: str | None = None) -> list[Part]:
    """A whole conversation: tool declarations, effort message, then the messages; no generation prefix at the end."""
    parts: list[Part] = []
    if tools:
        declared = [{"type": "function", "function": dict(tool)} for tool in tools]
        body = TOOLS_HEAD + compact_json(json.loads(json.dumps(declared, sort_keys=True))) + TOOLS_TAIL
        parts += _message([body], role="system", type="tool-declare")
    if effort is not None:
        parts += _message([effort_text(effort)], role="system", type="thinking-effort")
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message["role"] == "assistant":
            parts += [*_prefix(), *assistant_parts(message)]
        elif message["role"] == "tool":
            stop = at
            while stop < len(messages) and messages[stop]["role"] == "tool":
                stop += 1
            parts += tool_parts(messages[at - 1 : stop])
            at = stop
        else:
            parts += _message(_text(message["content"]), role=message["role"])
    return parts


# ---------------------------------------------------------------------------------------------------------------- parsing


@dataclass(frozen=True)
class Reply:
    """What one sampled turn says. `problem` is None for a well-formed turn, else one sentence about the first fault;
    `used` ids belong to the message, what follows a finished message is not part of it."""

    message: dict
    problem: str | None
    used: int


class _Malformed(Exception):
    """Control flow inside the parser; never leaves it. `call` is one whose arguments did not parse, so that its error can
    be answered."""

    def __init__(self, problem: str, call: dict | None = None) -> None:
        super().__init__(problem)
        self.call = call


class _Reader:
    """Walks over marks and runs of text."""

    def __init__(self, items: list[tuple[Mark | None, str]]) -> None:
        self.items = items
        self.at = 0

    def peek(self) -> Mark | None:
        return self.items[self.at][0] if self.at < len(self.items) else Mark.PAD

    def next(self, mark: Mark, where: str) -> None:
        if self.at >= len(self.items):
            raise _Malformed(f"the turn ends inside {where}")
        if self.items[self.at][0] is not mark:
            raise _Malformed(f"expected {mark.value} in {where}")
        self.at += 1

    def text(self) -> str:
        if self.at < len(self.items) and self.items[self.at][0] is None:
            self.at += 1
            return self.items[self.at - 1][1]
        return ""

    def content(self) -> str:
        return self.text().removeprefix(" ")

    def open(self, tag: str) -> dict[str, str]:
        self.next(Mark.OPEN, f"the start of {tag}")
        name, attributes = _attributes(self.text())
        self.next(Mark.SEP, f"the start of {tag}")
        if name != tag:
            raise _Malformed(f"expected the start of {tag}, not of {name or 'nothing'}")
        return attributes

    def close(self, tag: str) -> None:
        self.next(Mark.CLOSE, tag)
        name = self.text()
        self.next(Mark.SEP, f"the end of {tag}")
        if name != tag:
            raise _Malformed(f"expected the end of {tag}, not of {name or 'nothing'}")


def _attributes(text: str) -> tuple[str, dict[str, str]]:
    name, space, rest = text.partition(" ")
    rest = space + rest
    found = _ATTRIBUTE.findall(rest)
    if "".join(f' {k}="{v}"' for k, v in found) != rest:
        raise _Malformed(f"unreadable attributes {rest!r}")
    return name, {k: v.replace("&quot;", '"').replace("&amp;", "&") for k, v in found}


def _read_call(r: _Reader, position: int) -> dict:
    attributes = r.open("call")
    name = attributes.get("tool", "")
    if not name:
        raise _Malformed("a call names no tool")
    call: dict = {"id": f"{name}:{position}", "name": name, "arguments": {}}
    raw: str | None = None
    while r.peek() is Mark.OPEN:
        tag, given = _attributes(r.items[r.at + 1][1] if r.at + 1 < len(r.items) else "")
        if tag == "json":
            r.open("json")
            raw = r.content()
            r.close("json")
            continue
        r.open("argument")
        body = r.content()
        r.close("argument")
        key, kind = given.get("key", ""), given.get("type", "string")
        if not key or key in call["arguments"]:
            raise _Malformed(f"argument key {key!r} is empty or given twice")
        value = body if kind == "string" else _loads(body)
        if kind != "string" and _JSON_TYPE.get(type(value)) != kind:
            raise _Malformed(f"argument {key} is not of type {kind}", call | {"arguments": body})
        call["arguments"][key] = value
    r.close("call")
    if raw is not None:
        value = _loads(raw)
        call["arguments"] = value if isinstance(value, dict) else raw
    return call


_BAD = object()
"""What text gives that is not JSON."""


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _BAD


def _read_reply(r: _Reader, message: dict) -> None:
    """Fill the message as far as the turn is well formed; raises _Malformed at the first fault."""
    message["reasoning_content"] = r.content()
    r.close("think")
    r.open("response")
    message["content"] = r.content()
    r.close("response")
    if r.peek() is Mark.OPEN:
        r.open("tools")
        calls = message["tool_calls"] = []
        while r.peek() is Mark.OPEN:
            try:
                calls.append(_read_call(r, len(calls)))
            except _Malformed as error:
                if error.call:
                    calls.append(error.call)
                if not calls:
                    del message["tool_calls"]
                raise
        r.close("tools")
        if not calls:
            del message["tool_calls"]
            raise _Malformed("the tools channel has no call")
    r.close("message")
    r.next(Mark.END, "the end of the message")


# -------------------------------------------------------------------------------------------------------------- tokenizer


class ChatTokenizer:
    """Renders conversations to ids and reads sampled ids; built from a `tokenizer.json` with the five marks."""

    def __init__(self, path: str | Path = VOCABULARY) -> None:
        self.path = str(path)
        self._tokenizer = Tokenizer.from_file(self.path)
        self._tokenizer.encode_special_tokens = True  # text that spells a mark stays text
        self._structure = lru_cache(maxsize=4096)(self.encode)
        self._id = {mark: self._tokenizer.token_to_id(mark.value) for mark in Mark}
        self._mark = {i: mark for mark, i in self._id.items()}
        self._bytes = _byte_table(self._tokenizer)
        self.vocab_size: int = len(self._bytes)
        self.pad_id: int = self._id[Mark.PAD]
        self.end_id: int = self._id[Mark.END]
        self.stop_ids: tuple[int, ...] = (self.end_id,)
        self.prefix_ids: list[int] = self.ids(_prefix())

    def __reduce__(self) -> tuple:
        return ChatTokenizer, (self.path,)

    def encode(self, text: str) -> list[int]:
        """Ordinary text to ids; never a mark's id."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Ids to text, marks spelled out; byte sequences that are not UTF-8 become U+FFFD."""
        text = ""
        for mark, run in self._runs(ids):
            text += mark.value if mark else run.removeprefix(" ") if text.endswith(Mark.SEP.value) else run
        return text

    def ids(self, parts: Iterable[Part]) -> list[int]:
        """Parts to ids."""
        out: list[int] = []
        for part in parts:
            if isinstance(part, Mark):
                out.append(self._id[part])
            else:
                out += self.encode(part) if part.startswith(" ") else self._structure(part)
        return out

    def render_prompt(
        self, messages: Sequence[dict], tools: Sequence[dict] = (), effort: str | None = None
    ) -> list[int]:
        """The generation prompt: tool declarations, effort message, messages, and the opened think channel."""
        return self.ids([*conversation_parts(messages, tools, effort), *_prefix()])

    def render_tool_results(self, messages: Sequence[dict]) -> list[int]:
        """What follows an assistant turn that ended with `end_id`: messages for it, then the next generation prefix."""
        return self.ids([*conversation_parts(messages), *_prefix()])

    def encode_assistant(self, message: dict) -> list[int]:
        """The ids that the policy should sample for this message: from after the generation prefix to `end_id`."""
        return self.ids(assistant_parts(message))

    def loss_mask(self, ids: Sequence[int]) -> list[int]:
        """1 where the policy speaks: after each generation prefix, up to and including `end_id`; from ids alone."""
        mask, n, speaking = [], len(self.prefix_ids), False
        for at, token in enumerate(ids):
            if not speaking and at >= n and list(ids[at - n : at]) == self.prefix_ids:
                speaking = True
            mask.append(int(speaking))
            speaking = speaking and token != self.end_id
        return mask

    def parse(self, ids: Sequence[int]) -> Reply:
        """Read one sampled turn (the ids after the generation prefix). Never raises; `Reply.problem` names what is wrong."""
        ids = [int(i) for i in ids]
        used = ids.index(self.end_id) + 1 if self.end_id in ids else len(ids)
        message: dict = {"role": "assistant", "content": "", "reasoning_content": ""}
        try:
            _read_reply(_Reader(list(self._runs(ids[:used]))), message)
            problem = "text after the end of the message" if used < len(ids) else None
        except _Malformed as error:
            problem = str(error)
        return Reply(message, problem, used)

    def parse_reply(self, ids: Sequence[int]) -> tuple[dict, bool]:
        """The message, and whether the turn was well formed and complete."""
        reply = self.parse(ids)
        return reply.message, reply.problem is None

    def _runs(self, ids: Iterable[int]) -> Iterable[tuple[Mark | None, str]]:
        """Marks, and the text between them."""
        run: list[bytes] = []
        for token in ids:
            mark = self._mark.get(token)
            if mark is None:
                run.append(self._bytes[token] if 0 <= token < self.vocab_size else "�".encode())
                continue
            if run:
                yield None, b"".join(run).decode("utf-8", "replace")
                run = []
            yield mark, ""
        if run:
            yield None, b"".join(run).decode("utf-8", "replace")


def byte_symbols() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in shown}
    table.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in shown)})
    return table


def _byte_table(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes of every id; entries added as whole phrases are stored as plain text."""
    symbols = byte_symbols()
    added = tokenizer.get_added_tokens_decoder()
    table = [b""] * tokenizer.get_vocab_size()
    for token, i in tokenizer.get_vocab().items():
        table[i] = added[i].content.encode() if i in added else bytes(symbols[c] for c in token)
    return table
