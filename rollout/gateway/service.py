"""One call: messages to the tokens of its session, to the engine, and back; what came is captured in any case."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from environments.images import image_file, image_parts
from rewards.efforts import DEFAULT_EFFORTS, Effort
from rollout.engine.base import Engine, EngineNotReady, FinishReason, GenerateRequest, Generation, Progress
from rollout.gateway import reply
from rollout.gateway.book import Book
from rollout.gateway.errors import ApiError
from rollout.gateway.groups import Shelf
from rollout.gateway.keys import Door, Key
from rollout.gateway.reply import Heard
from rollout.gateway.request import Ask
from rollout.gateway.session import Begun, Chat, Session, Turn
from rollout.trajectory import Sampling

_SHARE = 10
"""Reading a reply's pieces takes at most one part in so many of the time: long ones are looked at less often."""

_ABORT_S = 60.0
"""For the engine to end a request that is aborted: a step, and a long prompt before it."""


@dataclass(frozen=True)
class Settings:
    """What the gateway serves, and its bounds."""

    model: str = "policy"
    """The name that requests give, and /v1/models lists."""
    max_context: int = 512
    """Of the engine, in tokens."""
    efforts: tuple[Effort, ...] = DEFAULT_EFFORTS
    """Medium is not one of them unless it is put there."""
    effort: Effort = Effort.MAX
    """Of a request that names none: K3's own default."""
    timeout_s: float = 600.0
    """A request that takes longer is ended with 504."""
    poll_s: float = 0.02
    """Pause between two looks at what a streamed reply has sampled."""
    max_requests: int = 1024
    """In flight at once, of all keys."""
    max_body: int = 32 << 20
    """Bytes of a request's body: some images."""
    read_s: float = 30.0
    """For a request's body to arrive."""
    max_sessions: int = 4096
    """Kept at once; the least recently used is given up."""
    idle_s: float = 3600.0
    """After which a session is given up."""


@dataclass(eq=False)
class Call:
    """A request on its way; `task` ends with its replies whatever becomes of the client."""

    id: str
    key: Key
    ask: Ask
    session: Session
    path: list[Turn]
    begun: Begun
    request: GenerateRequest
    reserved: int
    created: int = field(default_factory=lambda: int(time.time()))
    task: asyncio.Task[list[tuple[Heard, Generation]]] = field(init=False)

    def tag(self, index: int) -> str:
        """Names continuation `index` among all replies."""
        return f"{self.id[-10:]}{index}"


class Gateway:
    """The policy behind the API: sessions, keys and the engine."""

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        settings: Settings,
        keys: Sequence[Key] = (),
        shelf: Shelf | None = None,
    ) -> None:
        """shelf: where sessions go that were closed, or given up with something sampled in them."""
        self.engine, self.chat, self.settings, self.shelf = engine, chat, settings, shelf
        self.door = Door(keys, settings.max_requests)
        self.book = Book(settings.max_sessions, settings.idle_s, self._leave)
        self._calls: set[Call] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def begin(self, key: Key, ask: Ask, name: str | None = None, task: str | None = None) -> Call:
        """Start a call, in the session of that name or in the one that it goes on from.

        Raises ApiError for what cannot be served, or not now; nothing is captured then.
        """
        if ask.model != self.settings.model:
            raise ApiError(
                f"no model {ask.model!r}: this server has {self.settings.model!r}", 404, "model", "model_not_found"
            )
        if ask.options.given() and not self.chat.takes_options:
            raise ApiError(
                f"{', '.join(ask.options.given())}: this policy's chat template has no words for it",
                code="unsupported_parameter",
            )
        if self.chat.image_id is None and any(image_parts(ask.messages)):
            raise ApiError("this policy has no vision tower: serve one that has, or send no images", param="messages")
        with ExitStack() as slot:
            slot.enter_context(self.door.admit(key))
            try:
                if name is None:
                    session = self.book.recognised(key.name, ask, task)
                else:
                    session = self.book.named(key.name, name, ask.effort, task)
                session.running += 1
                slot.callback(self._left, session)
                # Long texts take a while; what goes on beside it only adds to the session.
                path = await asyncio.to_thread(session.lay, ask, self.chat)
            except RecursionError:
                raise ApiError("messages or tools are nested too deeply") from None
            except ValueError as error:
                raise ApiError(f"the messages cannot be rendered: {error}", param="messages") from None
            call = self._ready(key, ask, session, path)
            slot.callback(self._done, call)
            held = slot.pop_all()
        self._calls.add(call)
        call.task = self._keep(self._serve(call, held))
        return call

    async def updates(self, call: Call) -> AsyncIterator[list[Progress]]:
        """What each continuation has sampled, again and again until the call is done."""
        pause = self.settings.poll_s
        while not (await asyncio.wait({call.task}, timeout=pause))[0]:
            began = time.monotonic()
            if state := await self.engine.progress(call.request.id):
                yield state
            pause = max(self.settings.poll_s, _SHARE * (time.monotonic() - began))

    def abandon(self, call: Call) -> None:
        """Nobody waits for this call any more: the engine stops it, and what it sampled is captured as broken off."""
        if not call.task.done():
            self._keep(self.engine.abort(call.request.id))

    def usage(self, call: Call, replies: list[tuple[Heard, Generation]]) -> dict[str, Any]:
        """OpenAI's count of tokens."""
        prompt = len(call.request.prompt_ids)
        out = sum(len(g.token_ids) for _, g in replies)
        thought = sum(reply.thinking_tokens(self.chat, g.token_ids) for _, g in replies)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": out,
            "total_tokens": prompt + out,
            "prompt_tokens_details": {"cached_tokens": max((g.cached_tokens for _, g in replies), default=0)},
            "completion_tokens_details": {"reasoning_tokens": thought},
        }

    async def close(self, grace_s: float = 5.0) -> None:
        """Break off what is in flight, and hand on every open session."""
        for call in list(self._calls):
            self.abandon(call)
        for _ in range(2):
            if self._tasks:
                await asyncio.wait(set(self._tasks), timeout=grace_s)
            for task in self._tasks:
                task.cancel()
        self.book.leave_all()

    # ---- inside

    def _ready(self, key: Key, ask: Ask, session: Session, path: list[Turn]) -> Call:
        prompt = np.concatenate([turn.node.token_ids for turn in path]).astype(np.int32)
        room = self.settings.max_context - len(prompt)
        if room < 1:
            raise ApiError(
                f"the messages have {len(prompt)} tokens, the context has {self.settings.max_context}: send less",
                param="messages",
                code="context_length_exceeded",
            )
        most = min(ask.max_tokens or room, room)
        reserved = self.door.reserve(key, len(prompt) + most * ask.n)
        seed = secrets.randbits(63) if ask.seed is None else ask.seed
        sampling = tuple(
            Sampling(ask.temperature, most, _seed(seed, i), tuple(self.chat.stop_ids)) for i in range(ask.n)
        )
        files = {p["image"]: p for turn in path for p in image_parts(turn.messages)}
        images = tuple(image_file(files[p.image]) for turn in path for p in turn.node.images)
        id = f"chatcmpl-{secrets.token_hex(12)}"
        request = GenerateRequest(id, prompt, sampling, keep=True, images=images)
        return Call(id, key, ask, session, path, session.begun(path), request, reserved)

    async def _serve(self, call: Call, slot: ExitStack) -> list[tuple[Heard, Generation]]:
        """Generate and capture. Raises ApiError for what the engine refuses, and where it takes too long."""
        with slot:
            work = asyncio.ensure_future(self.engine.generate(call.request))
            watch = asyncio.ensure_future(self._until_stopped(call)) if call.ask.stops else None
            try:
                done, _ = await asyncio.wait({work}, timeout=self.settings.timeout_s)
                if not done:
                    async with asyncio.timeout(_ABORT_S):
                        await self.engine.abort(call.request.id)
                async with asyncio.timeout(_ABORT_S):
                    generations = await work
            except ValueError as error:
                raise ApiError(str(error)) from None
            except TimeoutError:
                raise ApiError(f"the engine did not end a request in {_ABORT_S:g} s", 504, code="timeout") from None
            except EngineNotReady as error:
                raise ApiError(f"the policy has no weights now: {error}", 503, headers={"retry-after": "5"}) from None
            finally:
                work.cancel()  # in an engine that is still at it this is an abort
                if watch is not None:
                    watch.cancel()
            return self._captured(call, generations, late=not done)

    async def _until_stopped(self, call: Call) -> None:
        """Have the engine stop once every continuation has met a stop text."""
        pause = self.settings.poll_s
        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()
            state = await self.engine.progress(call.request.id)
            if state and all(reply.hear(self.chat, ids, call.ask.stops).stopped for ids, _ in state):
                await self.engine.abort(call.request.id)
                return
            pause = max(self.settings.poll_s, _SHARE * (time.monotonic() - began))

    def _captured(self, call: Call, generations: list[Generation], late: bool) -> list[tuple[Heard, Generation]]:
        for i, g in enumerate(generations):
            if not len(g.token_ids) == len(g.logprobs) == len(g.versions):
                raise RuntimeError(f"{call.id}#{i}: {len(g.token_ids)} ids, {len(g.logprobs)} log-probs")
        replies = [reply.end(self.chat, g, call.ask.stops) for g in generations]
        turns = []
        for (heard, g), sampling in zip(replies, call.request.sampling, strict=True):
            whole = g.finish is FinishReason.STOP and not heard.stopped
            if len(g.token_ids):
                turns.append(call.session.heard(call.path, heard.message, g, sampling, whole))
        self.book.heard(call.session, turns)
        if any(t.sampled for t in turns):
            call.session.counts[str(call.begun)] += 1
        self.door.settle(call.key, call.reserved, len(call.request.prompt_ids) + sum(len(t.node) for t in turns))
        call.reserved = -1
        if late:
            raise ApiError(f"no reply in {self.settings.timeout_s:g} s: ask for fewer tokens", 504, code="timeout")
        if any(g.finish is FinishReason.ABORT for _, g in replies):
            raise ApiError("the request was broken off", 503, code="aborted")
        return replies

    def _done(self, call: Call) -> None:
        self._calls.discard(call)
        if call.reserved > 0:  # it failed before anything was counted
            self.door.settle(call.key, call.reserved, 0)

    def _left(self, session: Session) -> None:
        session.running -= 1
        self.book.discard(session)
        self.book.sweep()

    def _keep(self, work: Any) -> asyncio.Task[Any]:
        """A task that nobody needs to hold; its error is whoever's who waits for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda t: t.cancelled() or t.exception())
        return task

    def _leave(self, session: Session) -> None:
        if self.shelf is not None:
            self.shelf.put(session.owner, session.trajectory())


def _seed(seed: int, index: int) -> int:
    """In [0, 2^63): the request's own for its first continuation, then a hash of it."""
    if index == 0:
        return seed % 2**63
    digest = hashlib.blake2b(json.dumps([seed, index]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
