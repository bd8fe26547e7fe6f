"""The tokenizer of the K3 family: conversations to ids, sampled ids back into a message (structure: model/xtml.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from model.image import ImageSpec
from model.xtml import (
    JSON_CLOSE,
    JSON_OPEN,
    Mark,
    Media,
    Part,
    Picture,
    Run,
    assistant_parts,
    conversation_parts,
    generation_prefix,
    option_parts,
    read_reply,
)

VOCABULARY = Path(__file__).parent / "data" / "tokenizer.json"
"""The committed vocabulary of 512 entries, made by `model/train_tokenizer.py`."""

Messages = Sequence[Mapping[str, Any]]
"""Chat messages, as in `environments.task.Message`."""


@dataclass(frozen=True)
class Reply:
    """What one sampled turn says.

    `problem` is None for a well-formed turn, else one sentence about the first fault; `used` ids belong to the message:
    what follows a finished message is not part of it.
    """

    message: dict
    problem: str | None
    used: int


class ChatTokenizer:
    """Renders conversations to ids and reads sampled ids; built from a `tokenizer.json` that has the five marks.

    Messages may hold images if it is given how images are cut. A vocabulary without the four media tokens then gets
    them behind its last entry: no id moves, no file changes, and the model needs so many more rows of embeddings.
    """

    takes_options = True
    """Whether a prompt may say how the next turn is to be (`tool_choice`, `response_format`)."""
    unsure_tail = 0
    """Characters at the end of an unfinished text that may turn out to be structure: none, marks are ids."""

    def __init__(self, path: str | Path = VOCABULARY, images: ImageSpec | None = None) -> None:
        self.path, self.images = str(path), images
        self._tokenizer = Tokenizer.from_file(self.path)
        if images is not None:
            # Those that the vocabulary has keep their ids.
            self._tokenizer.add_special_tokens([AddedToken(m.value, special=True, normalized=False) for m in Media])
        self._tokenizer.encode_special_tokens = True  # text that spells a mark stays text
        self._structure = lru_cache(maxsize=4096)(self.encode)
        vocabulary = self._tokenizer.get_vocab()
        self._id = {mark: vocabulary[mark.value] for mark in Mark}
        self._media = {mark: vocabulary[mark.value] for mark in Media if mark.value in vocabulary}
        self.media_ids: tuple[int, ...] = tuple(self._media[m] for m in Media if m in self._media)
        """Begin, content, end, placeholder; as `K3Config.media_tokens`."""
        self._mark: dict[int, Mark | Media] = {i: mark for mark, i in (self._id | self._media).items()}
        self._bytes = _byte_table(self._tokenizer)
        self.vocab_size: int = len(self._bytes)
        self.pad_id: int = self._id[Mark.PAD]
        self.end_id: int = self._id[Mark.END]
        self.close_id: int = self._id[Mark.CLOSE]
        self.image_id: int | None = self._media.get(Media.PAD)
        """The token in whose place the rows of an image stand; None where the vocabulary has none."""
        self.stop_ids: tuple[int, ...] = (self.end_id,)
        self.prefix_ids: list[int] = self.ids(generation_prefix())
        self._json_open, self._json_close = self.ids(JSON_OPEN), self.ids(JSON_CLOSE)

    def __reduce__(self) -> tuple:
        return ChatTokenizer, (self.path, self.images)

    def encode(self, text: str) -> list[int]:
        """Ordinary text to ids; never a mark's id. Halves of surrogate pairs, which are no text, become "?"."""
        try:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        except TypeError:  # what the library says of a str that is not UTF-8
            return self._tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Ids to text, marks spelled out; byte sequences that are not UTF-8 become U+FFFD."""
        text, last = "", None
        for mark, run in self._runs(ids):
            text += mark.value if mark else run.removeprefix(" ") if last is Mark.SEP else run
            last = mark
        return text

    def ids(self, parts: Iterable[Part]) -> list[int]:
        """Parts to ids. Raises ValueError for an image that this tokenizer cannot render, or whose size is absurd."""
        out: list[int] = []
        for part in parts:
            if isinstance(part, Mark):
                out.append(self._id[part])
            elif isinstance(part, Picture):
                out += self._image(part)
            else:
                out += self.encode(part) if part.startswith(" ") else self._structure(part)
        return out

    def _image(self, picture: Picture) -> list[int]:
        """An image's place: its original size, and a token for each row that will stand there."""
        if self.images is None:
            n = self.vocab_size
            there = f"{n}..{n + len(Media) - 1}, behind its {n} entries" if self.image_id is None else "there already"
            raise ValueError(
                f"this tokenizer renders no images: give ChatTokenizer({self.path!r}, images=ImageSpec.of(vision)) the "
                f"spec that cuts them (the media tokens of this vocabulary: {there})"
            )
        count = self.images.tokens(picture.width, picture.height)
        return [
            self._media[Media.BEGIN],
            *self._structure(f"image {picture.width}x{picture.height}"),
            self._media[Media.CONTENT],
            *[self._media[Media.PAD]] * count,
            self._media[Media.END],
        ]

    def render_prompt(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] = (),
        effort: str | None = None,
        tool_choice: str | None = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The generation prompt: tool declarations, effort message, messages, options of the next turn
        (`model.xtml.option_parts`), and the opened think channel.
        """
        options = option_parts(tool_choice, response_format)
        return self.ids([*conversation_parts(messages, tools, effort), *options, *generation_prefix()])

    def render_tool_results(
        self,
        messages: Messages,
        tool_choice: str | None = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """What follows an assistant turn that ended with `end_id`: messages for it, options of the next turn, and the
        next generation prefix.
        """
        options = option_parts(tool_choice, response_format)
        return self.ids([*conversation_parts(messages), *options, *generation_prefix()])

    def encode_assistant(self, message: Mapping[str, Any]) -> list[int]:
        """The ids that the policy should sample for this message: from after the generation prefix to `end_id`."""
        return self.ids(assistant_parts(message))

    def loss_mask(self, ids: Sequence[int]) -> list[int]:
        """1 where the policy speaks: after each generation prefix, up to and including `end_id`; from ids alone.

        0 inside that too where there is nothing to learn: arguments that are no object, tokens of images.
        """
        ids, n = list(ids), len(self.prefix_ids)
        mask, speaking, given = [], False, False
        for at, token in enumerate(ids):
            if not speaking and at >= n and ids[at - n : at] == self.prefix_ids:
                speaking = True
            if token == self._id[Mark.OPEN] and ids[at : at + len(self._json_open)] == self._json_open:
                given = True
            mask.append(int(speaking and not given and token not in self._media.values()))
            if given and ids[max(at + 1 - len(self._json_close), 0) : at + 1] == self._json_close:
                given = False
            if token == self.end_id:
                speaking = given = False
        return mask

    def parse(self, ids: Sequence[int]) -> Reply:
        """Read one sampled turn (the ids after the generation prefix). Never raises; `problem` names what is wrong."""
        ids = [int(i) for i in ids]
        used = ids.index(self.end_id) + 1 if self.end_id in ids else len(ids)
        message: dict = {"role": "assistant", "content": "", "reasoning_content": ""}
        problem = read_reply(list(self._runs(ids[:used])), message)
        if problem is None and used < len(ids):
            problem = "text after the end of the message"
        return Reply(message, problem, used)

    def parse_reply(self, ids: Sequence[int]) -> tuple[dict, bool]:
        """The message, and whether the turn was well formed and complete."""
        reply = self.parse(ids)
        return reply.message, reply.problem is None

    def _runs(self, ids: Iterable[int]) -> Iterator[Run]:
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
