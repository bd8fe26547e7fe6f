"""One episode: generate, read, act, again; then the verdict. Sampled ids are kept and never tokenised again."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np

from environments.aside import BlockedError, aside
from environments.base import Environment, Step
from environments.sandbox.api import LimitExceeded, Sandbox, SandboxError, SandboxFactory
from environments.task import Limits, Message, Tool
from rewards.grade import Grade, GradeStatus, brief
from rollout.engine.base import Carried, FinishReason, GenerateRequest, Generation
from rollout.engine.router import EngineRouter
from rollout.images import places
from rollout.picks import filled, recorded, told
from rollout.tools import answer_malformed, failed_call, merge_results
from rollout.trajectory import NO_ROUTE, GroupOrder, Node, Sampling, StopReason, Trajectory

_CUT = {
    FinishReason.LENGTH: StopReason.TOKENS,
    FinishReason.CONTEXT: StopReason.CONTEXT,
    FinishReason.ABORT: StopReason.ABORTED,
}
"""What ends an episode whose turn was not finished by a stop token."""


class Chat(Protocol):
    """What an episode needs of the tokenizer (`model.chat.ChatTokenizer`)."""

    stop_ids: tuple[int, ...]
    image_id: int | None
    """The token in whose place images stand; None where none can."""

    def render_tool_results(self, messages: list[Message]) -> list[int]: ...

    def parse_reply(self, ids: list[int]) -> tuple[Message, bool]: ...


class Journal(Protocol):
    """Where an episode's turns survive its worker."""

    def save(self, trajectory: Trajectory) -> None: ...

    def load(self, begun: Trajectory) -> Trajectory | None: ...

    def forget(self, trajectory_id: str) -> None: ...


@dataclass
class Stage:
    """What the episodes of one group share: environment, tools, tokenizer, engines, sandboxes."""

    order: GroupOrder
    env: Environment
    tools: list[Tool]
    chat: Chat
    router: EngineRouter
    max_context: int
    sandboxes: SandboxFactory | None = None
    """Set where the environment needs a sandbox."""
    journal: Journal | None = None
    attempt: str = ""
    """Makes the request ids of a group that is dispatched again differ from those of its lost dispatch."""
    began: float = field(default_factory=time.time)
    """In Unix seconds."""
    requests: set[str] = field(default_factory=set)
    """Requests that an engine is serving now; they are aborted when the group is."""

    @property
    def limits(self) -> Limits:
        """The task's limits: the same at every effort, so that lengths are what the policy wanted them to be."""
        return self.order.task.limits

    async def generate(
        self,
        tag: str,
        prompt: np.ndarray,
        sampling: tuple[Sampling, ...],
        prefer: str | None = None,
        images: tuple[bytes, ...] = (),
        carried: Carried | None = None,
    ) -> tuple[str, list[Generation]]:
        """One engine request on behalf of the group."""
        keep = self.limits.turns > 1
        id = f"{self.order.id}/{tag}{self.attempt}"
        request = GenerateRequest(id, prompt, sampling, keep, images, self.began)
        self.requests.add(request.id)
        try:
            return await self.router.generate(request, prefer, carried)
        finally:
            self.requests.discard(request.id)


def turn_seed(seed: int, turn: int) -> int:
    """The sampling seed of a turn: the episode's own for the first, then a hash of it, in [0, 2^63)."""
    if turn == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


async def _close(sandbox: Sandbox) -> None:
    """Give a sandbox back; one that is gone already is what was wanted."""
    with suppress(SandboxError):
        await sandbox.close()


class Episode:
    """One trajectory in the making; `play` runs it to its end and never raises for what an episode may meet."""

    def __init__(self, stage: Stage, index: int, prompt_ids: list[int]) -> None:
        order = stage.order
        self.stage = stage
        self.seed = order.seeds[index]
        self.trajectory = Trajectory(f"{order.id}/{index}", order.task, order.effort)
        self.conversation: list[Message] = self.trajectory.conversation
        self.seconds = {"generate": 0.0, "environment": 0.0, "grade": 0.0}
        self.sandbox: Sandbox | None = None
        self._opening: asyncio.Task[None] | None = None
        """What opens the sandbox, from the episode's beginning on."""
        self.engine: str | None = None
        self._carrying: asyncio.Future[Carried | None] | None = None
        """The policy's state after its last turn on its way out of the engine, and then there."""
        self._routes: list[np.ndarray | None] = []
        """Per node, uint16 [T, L, K]: filled in as engines report them, written into the nodes at the end."""
        self._picks: list[np.ndarray | None] = []
        """Per node, as `Node.picks`: filled in likewise."""
        self._snapshots: list[str | None] = []
        """Per node: the sandbox after that turn."""
        saved = stage.journal.load(self.trajectory) if stage.journal is not None else None
        self.resumed = saved is not None
        if saved is None:
            self.conversation.extend(order.task.prompt)
            self._given("prompt", order.task.prompt, prompt_ids)
        else:
            self.conversation.extend(saved.conversation)
            self.seconds |= saved.seconds
            for node in saved.nodes:
                self._add(node, node.routes, node.picks)
                self._snapshots[-1] = node.snapshot

    @property
    def turn(self) -> int:
        """Turns of the policy so far."""
        return self.trajectory.turns

    def sampling(self) -> Sampling:
        """How the next turn is sampled; its max_tokens is what the episode has left."""
        left = self.stage.limits.tokens - self.trajectory.output_tokens
        return Sampling(
            self.stage.order.temperature, left, turn_seed(self.seed, self.turn), tuple(self.stage.chat.stop_ids)
        )

    async def play(self, opening: Awaitable[tuple[str, Generation]] | None) -> Trajectory:
        """Run to the end; `opening` gives the first turn, sampled for the whole group at once (None: generate here)."""
        t = self.trajectory
        if self.stage.sandboxes is not None:
            self._opening = asyncio.create_task(self._open(self.stage.sandboxes))  # while the first turn is sampled
        try:
            t.stop = await self._turns(None if opening is None else await opening)
            if t.stop.truncated:  # cut off in the middle of its output: it failed, whatever can be read from the rest
                t.grade = Grade.outcome(False, truncated=str(t.stop))
            elif t.stop is not StopReason.ABORTED:
                t.grade = await self._verdict()
                if t.grade.status in (GradeStatus.INFRA_ERROR, GradeStatus.BLOCKED):
                    t.error = t.grade.evidence.get("error")
        except asyncio.CancelledError:
            # The group was aborted or ran out of time: its other episodes are kept.
            t.stop, t.grade = StopReason.ABORTED, None
        except Exception as e:
            t.stop, t.error = StopReason.ERROR, brief(e)
            status = GradeStatus.BLOCKED if isinstance(e, BlockedError) else GradeStatus.INFRA_ERROR
            t.grade = Grade.failed(status, t.error)
        finally:
            if self._carrying is not None:
                self._carrying.cancel()
            await self._leave()
        self._finish()
        return t

    async def _turns(self, first: tuple[str, Generation] | None) -> StopReason:
        while True:
            sampling = self.sampling()
            if first is None:
                generation = await self._generate(sampling)
            else:
                (self.engine, generation), first = first, None
            message = self._heard(generation, sampling)
            if generation.finish is not FinishReason.STOP:
                return _CUT[generation.finish]
            self._carry(generation)
            step = await self._act(message)
            await self._freeze()
            if step is None:
                return StopReason.SECONDS
            if step.done:
                self.conversation.extend(step.messages)
                return StopReason.DONE
            if stop := self._told(step.messages):
                return stop
            self._save()

    async def _generate(self, sampling: Sampling) -> Generation:
        begin = time.monotonic()
        tag = f"{self.trajectory.id.rpartition('/')[2]}.{self.turn}"
        prompt = self.trajectory.column("token_ids")
        images = self.trajectory.image_files()
        carried = None if self._carrying is None else await self._carrying
        self.engine, (generation,) = await self.stage.generate(tag, prompt, (sampling,), self.engine, images, carried)
        self.seconds["generate"] += time.monotonic() - begin
        return generation

    def _carry(self, generation: Generation) -> None:
        """Carry the state at the end of a turn out of its engine while the environment acts."""
        before, engine = self._carrying, self.engine
        if engine is None or generation.kept is None:
            return
        length = sum(len(n) for n in self.trajectory.nodes) - 1  # the last token was not fed

        async def carry() -> Carried | None:
            return await self.stage.router.carry(engine, generation, length, None if before is None else await before)

        self._carrying = asyncio.ensure_future(carry())

    def _heard(self, generation: Generation, sampling: Sampling) -> Message:
        """Append what was sampled; returns the message that it says."""
        ids, n = generation.token_ids, len(generation.token_ids)
        self._learn(generation)
        node = Node("assistant", ids, generation.logprobs, np.ones(n, np.uint8), generation.versions, sampling)
        self._add(node, generation.routes, generation.picks)
        message, _ = self.stage.chat.parse_reply(ids.tolist())
        self.conversation.append(message)
        return message

    async def _act(self, message: Message) -> Step | None:
        """The environment's answer; None if the wall time is used up. Malformed calls are answered here, never run."""
        errors, good = answer_malformed(message, self.stage.tools)
        if errors and not good.get("tool_calls"):
            return Step(list(errors.values()), done=False)
        await self._enter()
        env, task = self.stage.env, self.stage.order.task
        left = self.stage.limits.seconds - self.seconds["environment"]
        begin = time.monotonic()
        try:
            conversation = [*self.conversation[:-1], good]
            act = partial(env.step, task, conversation)
            # A single turn's step is ours and blocks nobody: going aside costs some 0.2 ms.
            ours = type(env).step is Environment.step
            step = await (act(self.sandbox) if ours else aside(env.id, act, self.sandbox, left))
        except TimeoutError:
            return None
        except LimitExceeded as e:
            # The agent's own doing: it is told, so that filling the disk is no way out of a failed task.
            calls = good.get("tool_calls", [])
            step = Step([failed_call(c, f"error: {e}") for c in calls], done=not calls)
        finally:
            self.seconds["environment"] += time.monotonic() - begin
        return Step(merge_results(message, errors, step.messages), step.done)

    def _told(self, messages: list[Message]) -> StopReason | None:
        """Append the environment's messages; returns the limit that ends the episode here, if one does."""
        self.conversation.extend(messages)
        if self.turn >= self.stage.limits.turns:
            return StopReason.TURNS
        if self.trajectory.output_tokens >= self.stage.limits.tokens:
            return StopReason.TOKENS
        ids = self.stage.chat.render_tool_results(messages)
        if sum(len(n) for n in self.trajectory.nodes) + len(ids) >= self.stage.max_context:
            return StopReason.CONTEXT
        self._given("tool", messages, ids)
        return None

    async def _enter(self) -> Sandbox | None:
        """The sandbox, as soon as it is open; None where the environment needs none. Raises what opening it raised."""
        if self._opening is not None:
            await self._opening
        return self.sandbox

    async def _open(self, factory: SandboxFactory) -> None:
        """Open the sandbox: prepared by the environment, or on the last turn's snapshot."""
        env, task = self.stage.env, self.stage.order.task
        snapshot = next((s for s in reversed(self._snapshots) if s), None)
        self.sandbox = await factory.create(task.id, snapshot)
        begin = time.monotonic()
        ready = env.start if snapshot is None else env.on_restore
        await aside(env.id, partial(ready, task), self.sandbox, task.limits.seconds)
        self.seconds["environment"] += time.monotonic() - begin

    async def _freeze(self) -> None:
        """Note the sandbox's snapshot at the turn that just ended."""
        if self.sandbox is not None:
            with suppress(LimitExceeded):  # more files than a snapshot may have: the verdict will say so
                self._snapshots[-1] = await self.sandbox.snapshot()

    async def _leave(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
            if not self._opening.cancelled():
                self._opening.exception()  # whoever needed the sandbox has been told
        if self.sandbox is not None:
            sandbox, self.sandbox = self.sandbox, None
            await _close(sandbox)

    async def _verdict(self) -> Grade:
        """Graded where the agent never was: a fresh sandbox on the frozen files. Failures become masked grades."""
        stage, place = self.stage, None
        begin = time.monotonic()
        try:
            if (sandbox := await self._enter()) is not None and stage.sandboxes is not None:
                snapshot = await sandbox.snapshot()
                await self._leave()
                place = await stage.sandboxes.create(stage.order.task.id, snapshot)
        except LimitExceeded as e:
            return Grade.outcome(False, error=str(e))
        except Exception as e:
            return Grade.failed(GradeStatus.INFRA_ERROR, brief(e))
        task, said = stage.order.task, self.conversation
        limit = task.limits.seconds
        try:
            grade = await aside(stage.env.id, partial(stage.env.grade, task, said), place, limit)
            if not isinstance(grade, Grade):
                raise TypeError(f"{type(stage.env).__name__}.grade returned {type(grade).__name__}, not a Grade")
            return grade
        except TimeoutError:
            return Grade.failed(GradeStatus.GRADER_TIMEOUT, f"no verdict in {limit:.0f} s")
        except BlockedError as e:
            return Grade.failed(GradeStatus.BLOCKED, str(e))
        except Exception as e:
            status = GradeStatus.INFRA_ERROR if isinstance(e, SandboxError) else GradeStatus.GRADER_ERROR
            return Grade.failed(status, brief(e))
        finally:
            if place is not None:
                await _close(place)
            self.seconds["grade"] += time.monotonic() - begin

    def _given(self, role: str, messages: Sequence[Message], ids: list[int]) -> None:
        """Append what the policy is told: the ids that were rendered from messages."""
        self._add(Node.given(role, ids, places(messages, ids, self.stage.chat.image_id)))

    def _add(self, node: Node, routes: np.ndarray | None = None, picks: np.ndarray | None = None) -> None:
        self.trajectory.append(node)
        self._routes.append(routes)
        self._picks.append(picks)
        self._snapshots.append(None)

    def _learn(self, generation: Generation) -> None:
        """Fill in routes and picks of tokens that no engine had run before; what was used for sampling is kept."""
        for kept, read in ((self._routes, generation.prompt_routes), (self._picks, generation.prompt_picks)):
            if read is None:
                continue
            lengths = [len(node) for node in self.trajectory.nodes]
            for i, at, new in told(lengths, generation.prompt_begin, read):
                if kept is self._routes or recorded(new).any():
                    kept[i] = filled(kept[i], lengths[i], at, new)

    def _save(self) -> None:
        """Keep the turns so far, if the sandbox can be continued from them."""
        turn = max(i for i, n in enumerate(self.trajectory.nodes) if n.sampling is not None)
        if self.stage.journal is not None and (self.sandbox is None or self._snapshots[turn]):
            self._finish()
            self.stage.journal.save(self.trajectory)

    def _finish(self) -> None:
        """Write routes, picks and snapshots, known only after the node was appended, into the trajectory's nodes."""
        t = self.trajectory
        shape = next((r.shape[1:] for r in self._routes if r is not None), None)
        for i, node in enumerate(t.nodes):
            routes = self._routes[i]
            if routes is None and shape is not None:
                routes = self._routes[i] = np.full((len(node), *shape), NO_ROUTE, np.uint16)
            known = (routes, self._picks[i], self._snapshots[i])
            if any(a is not b for a, b in zip(known, (node.routes, node.picks, node.snapshot), strict=True)):
                t.nodes[i] = replace(node, routes=routes, picks=self._picks[i], snapshot=self._snapshots[i])
        t.seconds = dict(self.seconds)
