"""Chat through a Hugging Face folder's own tokenizer and chat template, without ever rendering a sampled turn again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from model.chat import Reply
from model.hf_folder import NO_TOKENIZER, read_stop_ids
from model.xtml import read_json

Messages = Sequence[Mapping[str, Any]]
"""A conversation, with the fields of `environments.task.Message`."""

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_OPEN_THINK, _CLOSE_THINK, _OPEN_CALL = "<think>", "</think>", "<tool_call>"
_DATE = datetime(2024, 7, 26)
"""What templates that write the date are told (Llama 3's own default): a run resumed tomorrow asks the same prompts."""
_SENTINEL = "zqxj"
"""Stands for an assistant's text where only the template's own text is looked for."""


class HFChatTokenizer:
    """`model.chat.ChatTokenizer` for any folder with a tokenizer.json and a chat template.

    A prompt is rendered once. After it ids are only appended: what was sampled, then the template's text between the
    end of an assistant turn and the next generation prompt. That text is found by rendering two short conversations,
    one the beginning of the other; a template that rewrites earlier text instead is refused with its reason.
    The effort is a sentence in the system message, or, where the template refuses or drops that, system text and
    effort begin the first user message. A template that writes the date gets the same one every day. Tool calls are
    read in the `<tool_call>{json}</tool_call>` form.
    Text that spells a special token is broken by a zero-width space: it cannot forge structure.
    """

    takes_options = False
    """See `ChatTokenizer.takes_options`: templates have no words for them."""
    unsure_tail = len("</tool_call>")
    """See `ChatTokenizer.unsure_tail`: the longest mark that is spelled as text."""

    def __init__(self, path: str | Path) -> None:
        from transformers import PreTrainedTokenizerFast

        self.path = str(path)
        if not (Path(path) / "tokenizer.json").is_file():
            raise FileNotFoundError(NO_TOKENIZER.format(path=path))
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(self.path, local_files_only=True)
        if not self._tokenizer.chat_template:
            raise ValueError(f"{path} has no chat template: add chat_template.jinja to it")
        self._marks = sorted(self._tokenizer.get_added_vocab(), key=len, reverse=True)
        self.vocab_size: int = len(self._tokenizer)
        self.end_text, self.end_id = self._find_end()
        eos = self._tokenizer.eos_token_id
        # A model may end a text by other tokens than a turn, and names them in its generation configuration alone.
        ends = (self.end_id, *(() if eos is None else (eos,)), *read_stop_ids(path))
        self.image_id: int | None = None
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(ends))
        user = {"role": "user", "content": "a"}
        self._thinking_open = self._render([user], prompt=True).rstrip().endswith(_OPEN_THINK)
        try:
            self._system = _SENTINEL in self._render([{"role": "system", "content": _SENTINEL}, user], prompt=True)
        except ValueError:
            self._system = False

    def __reduce__(self) -> tuple:
        return HFChatTokenizer, (self.path,)

    def encode(self, text: str) -> list[int]:
        """Text to ids; special tokens that it spells become their ids."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Iterable[int]) -> str:
        """Ids to text, special tokens spelled out."""
        return self._tokenizer.decode(
            [int(i) for i in ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def render_prompt(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]] = (), effort: str | None = None
    ) -> list[int]:
        """The generation prompt: the template on system message with effort, tools and messages."""
        messages = _with_effort(messages, effort)
        return self.encode(self._render(messages if self._system else _joined(messages), tools, prompt=True))

    def render_tool_results(self, messages: Messages) -> list[int]:
        """What follows an assistant turn that ended with `end_id`: the messages, then the next generation prompt.

        Raises ValueError if the template does not append.
        """
        calls = [
            {"id": m.get("tool_call_id", f"call:{i}"), "name": m.get("name", "call"), "arguments": {}}
            for i, m in enumerate(messages)
            if m["role"] == "tool"
        ]
        turn: dict[str, Any] = {"role": "assistant", "content": _SENTINEL}
        before = [{"role": "user", "content": _SENTINEL}, turn | ({"tool_calls": calls} if calls else {})]
        added = self._suffix(self._render(before), self._render([*before, *messages], prompt=True))
        tail = self._render(before).rpartition(self.end_text)[2]
        return self.encode(tail + added)

    def encode_assistant(self, message: Mapping[str, Any]) -> list[int]:
        """The ids that the policy should sample for this message: from after the generation prompt to `end_id`."""
        before = [{"role": "user", "content": _SENTINEL}]
        turn = self._suffix(self._render(before, prompt=True), self._render([*before, message]))
        return self.encode(turn.rpartition(self.end_text)[0] + self.end_text)

    def parse(self, ids: Sequence[int]) -> Reply:
        """Read one sampled turn (the ids after the generation prompt). Never raises; `problem` names what is wrong."""
        ids = [int(i) for i in ids]
        at = next((n for n, i in enumerate(ids) if i in self.stop_ids), None)
        used = len(ids) if at is None else at + 1
        message, problem = self._read(self.decode(ids[:at]))
        if at is None:
            problem = problem or "the turn ends without an end token"
        elif used < len(ids):
            problem = problem or "text after the end of the message"
        return Reply(message, problem, used)

    def parse_reply(self, ids: Sequence[int]) -> tuple[dict, bool]:
        """The message, and whether the turn was well formed and complete."""
        reply = self.parse(ids)
        return reply.message, reply.problem is None

    def _read(self, text: str) -> tuple[dict, str | None]:
        message: dict = {"role": "assistant", "content": "", "reasoning_content": ""}
        problem = None
        opened = text.lstrip().startswith(_OPEN_THINK)
        if opened or self._thinking_open:
            thinking, closed, text = text.partition(_CLOSE_THINK)
            message["reasoning_content"] = thinking.replace(_OPEN_THINK, "", int(opened)).strip()
            if not closed:
                problem = "the think channel is not closed"
        content, _, _ = text.partition(_OPEN_CALL)
        message["content"] = content.strip()
        calls = []
        for position, match in enumerate(_CALL.finditer(text)):
            call, fault = _read_call(match.group(1), position)
            calls += [call] if call else []
            problem = problem or fault
        if _CALL.sub("", text[len(content) :]).strip():
            problem = problem or "text after the first tool call"
        if calls:
            message["tool_calls"] = calls
        return message, problem

    def _render(self, messages: Messages, tools: Sequence[Mapping[str, Any]] = (), prompt: bool = False) -> str:
        foreign = [self._foreign(m) for m in messages]
        try:
            return self._tokenizer.apply_chat_template(
                foreign,
                tools=[{"type": "function", "function": self._inert(dict(t))} for t in tools] or None,
                add_generation_prompt=prompt,
                tokenize=False,
                strftime_now=_DATE.strftime,
            )
        except Exception as e:  # a template raises whatever its author chose
            raise ValueError(f"the chat template of {self.path} refuses {[m['role'] for m in messages]}: {e}") from e

    def _foreign(self, message: Mapping[str, Any]) -> dict:
        """Our message as templates expect it. Raises ValueError for one with images."""
        if not isinstance(message["content"], str):
            raise ValueError(
                f"a {message['role']} message holds images, a Hugging Face policy reads text: use model.kind=k3 with "
                "model.vision, or leave environments with images out (envs.exclude)"
            )
        out = {k: v if k == "role" else self._inert(v) for k, v in message.items()}
        if calls := out.get("tool_calls"):
            out["tool_calls"] = [
                {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                for c in calls
            ]
        return out

    def _inert(self, value: Any) -> Any:
        """The same with every text in it, keys too, broken where it spells a special token."""
        if isinstance(value, Mapping):
            return {self._inert(k): self._inert(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._inert(v) for v in value]
        if isinstance(value, str):
            for mark in self._marks:
                value = value.replace(mark, f"{mark[0]}\u200b{mark[1:]}")
        return value

    def _suffix(self, before: str, after: str) -> str:
        if not after.startswith(before):
            raise ValueError(
                f"the chat template of {self.path} rewrites earlier text when a message is added, so a conversation "
                "cannot be continued token by token: use a template that only appends"
            )
        return after[len(before) :]

    def _find_end(self) -> tuple[str, int]:
        """The first special token after an assistant's text."""
        turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _SENTINEL}]
        rest = self._render(turn).rpartition(_SENTINEL)[2]
        added = self._tokenizer.get_added_vocab()
        for token in self.encode(rest):
            text = self._tokenizer.convert_ids_to_tokens(token)
            if text in added:
                return text, token
        raise ValueError(f"the chat template of {self.path} ends an assistant turn without a special token")


def effort_text(effort: str) -> str:
    """The sentence that asks for an effort; short, since small vocabularies spend many tokens on it."""
    return f"Thinking effort: {effort}."


def _with_effort(messages: Messages, effort: str | None) -> list[Mapping[str, Any]]:
    """The effort joins a system message that is there already: many templates allow one, and only as the first."""
    if effort is None:
        return list(messages)
    if messages and messages[0]["role"] == "system" and isinstance(messages[0]["content"], str):
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{effort_text(effort)}"}, *messages[1:]]
    return [{"role": "system", "content": effort_text(effort)}, *messages]


def _joined(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The system message's text at the beginning of the user message that follows it."""
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    system, *rest = messages
    if not rest or rest[0]["role"] != "user":
        return [{**system, "role": "user"}, *rest]
    return [{**rest[0], "content": f"{system['content']}\n\n{rest[0]['content']}"}, *rest[1:]]


def _read_call(text: str, position: int) -> tuple[dict | None, str | None]:
    """A call and its fault: what is not {"name": str, "arguments": object} keeps its text as arguments."""
    value = read_json(text)
    if isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("arguments"), dict):
        name = value["name"]
        return {"id": f"{name}:{position}", "name": name, "arguments": value["arguments"]}, None
    found = _NAME.search(text)
    if found is None:
        return None, "a tool call without a name"
    name = found.group(1)
    return {"id": f"{name}:{position}", "name": name, "arguments": text.strip()}, "the arguments are not an object"
