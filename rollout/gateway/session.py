"""A conversation as it was sampled: a tree of turns, each with the token ids that it adds. Ids are never made twice.

A call whose messages go on from a captured reply goes on from its sampled ids; any other branches off where it differs.
Every branch is a segment of the session's one trajectory, in which each sampled token is trained once.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from environments.task import Limits, Message, Task, Tool, prompt_key
from rewards.efforts import Effort
from rewards.grade import Grade, GradeStatus
from rollout.engine.base import FinishReason, Generation
from rollout.gateway.request import Ask, Options, arguments_of
from rollout.images import places
from rollout.picks import filled, recorded, told
from rollout.trajectory import Node, Sampling, StopReason, Trajectory

ENVIRONMENT = "gateway"
"""Of tasks that only the harness knows."""

NOTHING = Options()
"""Nothing is said of the next turn."""


class Chat(Protocol):
    """What the gateway needs of a tokenizer (`model.chat.ChatTokenizer`, `model.hf_chat.HFChatTokenizer`)."""

    stop_ids: tuple[int, ...]
    image_id: int | None
    takes_options: bool
    unsure_tail: int

    @property
    def render_prompt(self) -> Callable[..., list[int]]:
        """Of messages, tools and effort, and of options where `takes_options`."""
        ...

    @property
    def render_tool_results(self) -> Callable[..., list[int]]:
        """Of messages, and of options where `takes_options`."""
        ...

    def encode_assistant(self, message: Any) -> list[int]: ...

    def parse(self, ids: Any) -> Any: ...

    def decode(self, ids: Any) -> str: ...


class Begun(StrEnum):
    """How a call stands to what was captured before it; every member is a count of its session."""

    BEGAN = "began"
    """Nothing was captured of its conversation."""
    CONTINUED = "continued"
    """It extends a captured reply that nothing had extended, token by token."""
    BRANCHED = "branched"
    """It shares less: another message, another option, a reply that was cut off or edited, or a second try."""


@dataclass(eq=False)
class Turn:
    """What one step adds: given messages up to the next generation prefix, or a reply."""

    key: bytes
    """Of the conversation up to here, thinking and ids left aside: see `chain`."""
    node: Node
    messages: list[Message]
    parent: Turn | None
    options: Options = NOTHING
    finish: FinishReason | None = None
    """Set for what was sampled here."""
    whole: bool = False
    """Sampled up to its stop token: the next message may follow its ids."""
    routes: np.ndarray | None = None
    """As `Node.routes`: filled in as engines report them."""
    picks: np.ndarray | None = None
    children: list[Turn] = field(default_factory=list)

    @property
    def sampled(self) -> bool:
        """Whether the policy said it here, and was heard to the end."""
        return self.finish is not None and self.finish is not FinishReason.ABORT

    @property
    def trains(self) -> bool:
        """Whether its tokens can be trained: greedy ones have no log-prob that they were sampled with."""
        return self.sampled and self.node.sampling is not None and self.node.sampling.temperature > 0

    def line(self) -> list[Turn]:
        """The turns from the beginning up to this one."""
        out, at = [self], self.parent
        while at is not None:
            out.append(at)
            at = at.parent
        return out[::-1]


def header(tools: Sequence[Tool], effort: Effort) -> bytes:
    """The key before the first message: what is said of tools and effort stands before it."""
    return _hash(b"", [list(tools), str(effort)])


def chain(key: bytes, message: Message) -> bytes:
    """The key after one more message: its role, words, images and calls; not its thinking, which clients may drop."""
    content: Any = message["content"]
    if not isinstance(content, str):
        content = [p["text"] if p["type"] == "text" else [p["image"]] for p in content]
    calls = [[c["name"], _object(c["arguments"])] for c in message.get("tool_calls", ())]
    return _hash(key, [message["role"], content, calls, message.get("name", "") if message["role"] == "tool" else ""])


def _object(arguments: dict[str, Any] | str) -> Any:
    return arguments_of(arguments) if isinstance(arguments, str) else arguments


def _hash(key: bytes, value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True).encode()
    return hashlib.blake2b(key + text, digest_size=16).digest()


def steps(messages: Sequence[Message]) -> Iterator[tuple[list[Message], Message | None]]:
    """Given messages, and the reply that follows them; None after the last ones."""
    given: list[Message] = []
    for message in messages:
        if message["role"] == "assistant":
            yield given, message
            given = []
        else:
            given.append(message)
    yield given, None


def reply_keys(ask: Ask) -> list[bytes]:
    """The keys after each reply in a request's messages, in their order."""
    key, out = header(ask.tools, ask.effort), []
    for message in ask.messages:
        key = chain(key, message)
        if message["role"] == "assistant":
            out.append(key)
    return out


class Session:
    """All calls of one episode, at one effort. `reward` or `graded` closes it."""

    def __init__(self, id: str, owner: str, effort: Effort, task: str | None = None) -> None:
        """task: what the harness calls the task; sessions of one task and effort make a group."""
        self.id, self.owner, self.effort, self.label = id, owner, effort, task
        self.root = Turn(b"", Node.given("", []), [], None)
        """Adds nothing: conversations begin under it."""
        self.turns: list[Turn] = []
        """In the order in which they came."""
        self.given: Task | None = None
        """The task of one of our environments, where the session was opened on one."""
        self.grade: Grade | None = None
        self.running = 0
        self.counts: Counter[str] = Counter()

    # ---- a call

    def lay(self, ask: Ask, chat: Chat) -> list[Turn]:
        """The turns that make a request's prompt; captured ones where there are any, new ones are not added yet.

        Raises ValueError for messages that the tokenizer cannot render.
        """
        at, key, out = self.root, header(ask.tools, ask.effort), []
        for given, reply in steps(ask.messages):
            for message in given:
                key = chain(key, message)
            options = NOTHING if reply is not None else ask.options
            at = self._told(at, key, given, options, ask, chat)
            out.append(at)
            if reply is not None:
                key = chain(key, reply)
                at = self._said(at, key, reply, chat)
                out.append(at)
        return out

    def _told(self, at: Turn, key: bytes, given: list[Message], options: Options, ask: Ask, chat: Chat) -> Turn:
        for turn in at.children:
            if turn.finish is None and turn.key == key and turn.options == options:
                return turn
        words = options.given()
        if at is self.root:
            ids, role = chat.render_prompt(given, ask.tools, str(ask.effort), **words), "prompt"
        else:
            ids, role = chat.render_tool_results(given, **words), given[-1]["role"] if given else "prompt"
        node = Node.given(role, ids, places(given, ids, chat.image_id))
        return Turn(key, node, given, at, options)

    def _said(self, at: Turn, key: bytes, reply: Message, chat: Chat) -> Turn:
        """A reply in the history: as it was sampled there, or elsewhere in the session, or else as it is told."""
        for turn in reversed(at.children):
            if turn.key == key and _agrees(turn, reply) and (turn.whole or turn.finish is None):
                return turn
        for turn in reversed(self.turns):
            if turn.whole and turn.key == key and _agrees(turn, reply):
                return Turn(key, Node.given("assistant", turn.node.token_ids), turn.messages, at)
        return Turn(key, Node.given("assistant", chat.encode_assistant(reply)), [reply], at)

    def heard(
        self, path: list[Turn], message: Message, generation: Generation, sampling: Sampling, whole: bool
    ) -> Turn:
        """Add a reply, and with it the turns of `lay` that are new. whole: its stop token was sampled."""
        path = self._joined(path)
        n, last = len(generation.token_ids), path[-1]
        for name, get in (("routes", generation.prompt_routes), ("picks", generation.prompt_picks)):
            if get is not None:
                _learn(path, name, generation.prompt_begin, get)
        node = Node(
            *("assistant", generation.token_ids, generation.logprobs, np.ones(n, np.uint8), generation.versions),
            sampling=sampling,
        )
        kept: Message = {**message}  # type: ignore[misc]
        turn = Turn(chain(last.key, kept), node, [kept], last, finish=generation.finish, whole=whole)
        turn.routes, turn.picks = generation.routes, generation.picks
        last.children.append(turn)
        self.turns.append(turn)
        self.counts[f"finish/{turn.finish}"] += 1
        return turn

    def begun(self, path: list[Turn]) -> Begun:
        """How a call on these turns (of `lay`) stands to what was captured."""
        if not any(t.sampled for t in self.turns):
            return Begun.BEGAN
        before = path[-2] if len(path) > 1 else self.root
        return Begun.CONTINUED if before.sampled and not _goes_on(before) else Begun.BRANCHED

    def _joined(self, path: list[Turn]) -> list[Turn]:
        """The path with its new turns added to the tree; a call beside this one may have added the same ones."""
        at, out = self.root, []
        for turn in path:
            if turn not in at.children:
                twin = next((t for t in at.children if _same(t, turn)), None)
                if twin is None:
                    turn.parent = at
                    at.children.append(turn)
                else:
                    turn = twin
            out.append(turn)
            at = turn
        return out

    # ---- what came of it

    def close(self, grade: Grade) -> None:
        """The session's verdict; it takes no more calls."""
        self.grade = grade

    def leaves(self) -> list[Turn]:
        """Replies that no captured reply goes on from, in the order in which they came."""
        inner = {id(t) for turn in self.turns if turn.sampled for t in turn.line()[:-1]}
        return [t for t in self.turns if t.sampled and id(t) not in inner]

    def conversation(self) -> list[Message]:
        """The messages of the newest branch: what an environment grades."""
        leaves = self.leaves()
        return [m for turn in (leaves[-1].line() if leaves else ()) for m in turn.messages]

    def task(self) -> Task:
        """The environment's task, or one that stands for what the harness asked first."""
        if self.given is not None:
            return self.given
        first = next((t.line()[1] for t in self.turns if t.sampled), None)
        prompt = tuple(first.messages) if first is not None else ()
        label = self.label or f"{prompt_key(prompt):016x}"
        return Task(f"{ENVIRONMENT}/{label}", ENVIRONMENT, prompt, efforts=(self.effort,), limits=Limits())

    def trajectory(self) -> Trajectory:
        """All branches, one segment each; a reply that several share is trained in the first and context in the others.

        Not in it: replies that were broken off. Context alone: greedy ones, see `Turn.trains`.
        """
        t = Trajectory(self.id, self.task(), self.effort, segments=[], grade=self.grade)
        leaves, seen = self.leaves(), set()
        for leaf in leaves:
            t.segments.append(len(t.nodes))
            for turn in leaf.line()[1:]:
                t.append(turn.node if turn.trains and id(turn) not in seen else _context(turn))
                t.nodes[-1] = replace(t.nodes[-1], routes=turn.routes, picks=turn.picks)
                if id(turn) not in seen:
                    t.conversation.extend(turn.messages)
                seen.add(id(turn))
        t.segments = t.segments or [0]
        if self.grade is None:
            t.stop = StopReason.ABORTED
        elif self.grade.status is GradeStatus.INFRA_ERROR:
            t.stop, t.error = StopReason.ERROR, self.grade.evidence.get("error")
        else:
            cut = {FinishReason.LENGTH: StopReason.TOKENS, FinishReason.CONTEXT: StopReason.CONTEXT}
            t.stop = cut.get(leaves[-1].finish, StopReason.DONE) if leaves else StopReason.DONE  # type: ignore[arg-type]
        return t

    def summary(self) -> dict[str, Any]:
        """What there is, as JSON."""
        replies = [t for t in self.turns if t.sampled]
        greedy = sum(not t.trains for t in replies)
        return {
            "id": self.id,
            "task": self.task().id,
            "effort": str(self.effort),
            "replies": len(replies),
            "branches": len(self.leaves()),
            "output_tokens": sum(len(t.node) for t in replies),
            "trained_tokens": sum(len(t.node) for t in replies if t.trains),
            "greedy": greedy,
            "counts": dict(self.counts),
            "grade": None if self.grade is None else self.grade.to_json(),
        }


def _goes_on(turn: Turn) -> bool:
    """Whether a captured reply goes on from this turn."""
    return any(t.sampled or _goes_on(t) for t in turn.children)


def _agrees(turn: Turn, reply: Message) -> bool:
    """Whether a reply may be this turn: a client that leaves thinking out has not changed it."""
    thought = reply.get("reasoning_content")
    return thought is None or thought == turn.messages[0].get("reasoning_content", "")


def _same(a: Turn, b: Turn) -> bool:
    """Two turns that were given, with the same ids and the same images."""
    given = a.finish is None and b.finish is None and a.key == b.key and a.options == b.options
    return given and np.array_equal(a.node.token_ids, b.node.token_ids)


def _context(turn: Turn) -> Node:
    return Node.given(turn.node.role, turn.node.token_ids, turn.node.images)


def _learn(path: list[Turn], name: str, begin: int, read: np.ndarray) -> None:
    """Fill in routes or picks of the prompt's tokens from `begin` on where none are known: those used for sampling are
    kept."""
    for i, at, new in told([len(turn.node) for turn in path], begin, read):
        if name == "routes" or recorded(new).any():
            setattr(path[i], name, filled(getattr(path[i], name), len(path[i].node), at, new))


def cut(generation: Generation, tokens: int) -> Generation:
    """The first tokens of a generation: what follows a stop text is not part of the reply."""
    columns: Mapping[str, Any] = {
        name: None if (x := getattr(generation, name)) is None else x[:tokens]
        for name in ("token_ids", "logprobs", "versions", "routes", "picks")
    }
    return replace(generation, finish=FinishReason.STOP, **columns)
