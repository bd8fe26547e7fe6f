"""The nouns that flow between environments and rollout: messages in, messages out, never tokens."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

from rewards.efforts import DEFAULT_EFFORTS, Effort

Split = Literal["train", "test"]
Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(TypedDict):
    """One call of the assistant; `arguments` is the parsed object, or the raw text where it did not parse."""

    id: str
    name: str
    arguments: dict[str, Any] | str


class TextPart(TypedDict):
    """A piece of text beside images."""

    type: Literal["text"]
    text: str


class ImagePart(TypedDict):
    """An image in a message: made by `environments.images.image_part`."""

    type: Literal["image"]
    image: str
    """Content hash of the file."""
    width: int
    height: int
    """In px."""
    data: str
    """The PNG file in base64, so that a message is JSON; logs hold `image` in its place."""


Part = TextPart | ImagePart


class Message(TypedDict):
    """One chat message, with the field names of the OpenAI chat API."""

    role: Role
    content: str | list[Part]
    """Text, or text and images in their order; an assistant's is text."""
    reasoning_content: NotRequired[str]
    """Assistant only: the text of the think channel, kept in the history (preserved thinking)."""
    tool_calls: NotRequired[list[ToolCall]]
    """Assistant only."""
    tool_call_id: NotRequired[str]
    """Tool only: the call that this message answers."""
    name: NotRequired[str]
    """Tool only: the tool's name."""


class Tool(TypedDict):
    """A tool that the policy may call: `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """What one episode may use; reaching a limit ends the episode with the StopReason of the same name."""

    turns: int = 1
    """Assistant messages."""
    tokens: int = 128
    """Output tokens over the whole episode (tool results not counted)."""
    seconds: float = 60.0
    """Wall time of environment steps and grading, in seconds; waiting for the engine is not counted."""


@dataclass(frozen=True)
class Task:
    """One frozen, serialisable row; no code inside.

    `answer` and `info` are for the environment and the grader only: they never reach prompt or sandbox of the agent.
    """

    id: str
    """Unique: `<environment>/<split>/<level>/<index>/<seed>`."""
    environment: str
    """Catalogue id of the environment."""
    prompt: tuple[Message, ...]
    answer: Any = None
    domain: str = "misc"
    tags: tuple[str, ...] = ()
    efforts: tuple[Effort, ...] = DEFAULT_EFFORTS
    level: int = 1
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    info: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable row."""
        return json.loads(json.dumps(asdict(self)))

    @staticmethod
    def from_json(row: dict[str, Any]) -> Task:
        """Inverse of `to_json`; unknown or missing fields raise TypeError."""
        row = dict(row)
        row["prompt"] = tuple(row["prompt"])
        row["tags"] = tuple(row["tags"])
        row["efforts"] = tuple(Effort(e) for e in row["efforts"])
        row["limits"] = Limits(**row["limits"])
        return Task(**row)


def prompt_key(prompt: tuple[Message, ...], world: Any = None) -> int:
    """A 64-bit hash of a prompt's text and images (by their hashes); splits and de-duplication are decided by it.

    `world` (a JSON value) is what else makes a task another one: the files or records that the policy will find.
    """
    said = [[m["role"], _named(m["content"])] for m in prompt]
    text = json.dumps(said if world is None else [said, world], ensure_ascii=False)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _named(content: str | list[Part]) -> Any:
    """A message's content with the hashes of its images in place of their files."""
    if isinstance(content, str):
        return content
    return [part["image"] if part["type"] == "image" else part for part in content]
