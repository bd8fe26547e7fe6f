"""A rollout worker: an asynchronous Ray actor that runs many episodes at once. It imports no torch."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from environments.sandbox.api import SandboxFactory
from rollout.controls import refuse
from rollout.engine.base import Generation
from rollout.engine.router import EngineRouter, readers
from rollout.episode import Episode, Stage
from rollout.store import EpisodeJournal
from rollout.trajectory import Group, GroupOrder, StopReason, Trajectory

if TYPE_CHECKING:
    from rl.config import Config

Opened = tuple[str, Generation]
"""The engine that sampled a first turn, and the turn."""

_SOFT_SHARE = 0.8
"""Share of the group's deadline after which its unfinished episodes are cut off, so that the finished ones are kept."""

_GRACE_SHARE = 0.05
"""Share of the deadline for the engines to give back a cut group, for its grading, and for closing its sandboxes."""


class RolloutWorker:
    """Runs groups of episodes against engines; one asyncio event loop, any number of groups at once.

    engines: name -> actor handle. store: folder of sandbox snapshots and episode journals; needed only by environments
    with a sandbox. run: whose journals they are, where runs share a store. Everything an episode may meet ends in its
    trajectory (a masked grade and an error); what is raised from `run_group` is a fault of the configuration or of this
    code.
    """

    def __init__(
        self,
        config: Config,
        engines: Mapping[str, Any],
        name: str = "worker0",
        offset: int = 0,
        store: str | None = None,
        run: str = "run",
    ) -> None:
        self.config, self.name, self.store, self.run = config, name, store, run
        e = config.engine
        self._router = EngineRouter(engines, e.request_timeout_s, offset, e.carry_tokens, readers(config))
        self._chat = load_chat(config)
        self._sandboxes: SandboxFactory | None = None
        self._journal: EpisodeJournal | None = None
        self._groups: dict[str, tuple[float, Stage, list[asyncio.Task[Trajectory]]]] = {}
        self._attempts = 0
        self.counts: Counter[str] = Counter()

    async def run_group(self, order: GroupOrder, dispatch: int = 1) -> Group:
        """Run the order's episodes to their end; trajectories are in the order of its seeds."""
        self._attempts += 1
        stage = self._stage(order, f"@{self.name}.{os.getpid()}.{self._attempts}")
        prompt = self._chat.render_prompt(list(order.task.prompt), stage.tools, str(order.effort))
        episodes = [Episode(stage, i, prompt) for i in range(len(order.seeds))]
        enough = self.config.rollout.enough if order.purpose == "train" else 0
        begun = [e for e in episodes if not e.resumed]
        if 0 < enough < len(episodes):
            # None waits for the first turns of all: each asks for its own, of one engine, which keeps their prompt.
            home = self._router.lightest()
            for e in begun:
                e.engine = home
            begun = []
        opening = asyncio.ensure_future(self._open(stage, prompt, begun))
        tasks = [asyncio.ensure_future(e.play(_of(opening, e) if e in begun else None)) for e in episodes]
        held = (time.monotonic(), stage, tasks)
        self._groups[order.id] = held
        try:
            complete = await self._played(tasks, enough)
            if not all(t.done() for t in tasks):
                self.counts["groups_enough" if complete else "groups_cut"] += 1
                await self._cut(stage, tasks, at_once=complete)
            for t in tasks:
                if t.done() and not t.cancelled():
                    t.result()  # a fault of this code is raised, not hidden in a masked sample
            for e in episodes:
                if complete and e.trajectory.stop is StopReason.ABORTED:
                    e.trajectory.stop = StopReason.SPARE
            self.counts["groups"] += 1
            return Group(order, [e.trajectory for e in episodes], self.name, dispatch)
        finally:
            for task in (opening, *tasks):
                task.cancel()
            if self._groups.get(order.id) is held:  # a later dispatch of the same group may be here already
                del self._groups[order.id]
                if stage.journal is not None:
                    for e in episodes:
                        stage.journal.forget(e.trajectory.id)

    async def abort(self, group_id: str) -> bool:
        """End a group's episodes now; they come back as aborted. False if the group is not here."""
        if group_id not in self._groups:
            return False
        _, stage, tasks = self._groups[group_id]
        await self._cut(stage, tasks)
        return True

    async def set_engines(self, engines: Mapping[str, Any]) -> None:
        """Send requests to these engines alone from now on; those at others are waited for."""
        self._router.update(engines)

    async def ping(self) -> dict[str, Any]:
        """A sign of life, and what is held: process id, groups with their age (s), episodes, load of the engines and
        which of them are down, counts."""
        now = time.monotonic()
        return {
            "pid": os.getpid(),
            "groups": {id: round(now - begin, 1) for id, (begin, _, _) in self._groups.items()},
            "episodes": sum(not t.done() for _, _, tasks in self._groups.values() for t in tasks),
            "engines": self._router.outstanding(),
            "down": self._router.down(),
            "counts": dict(self.counts + self._router.counts),
        }

    def _stage(self, order: GroupOrder, attempt: str) -> Stage:
        from environments.catalogue import resolve

        refuse(order, self.config.controls.exclude_tags)
        env = resolve(order.task.environment)
        if env.needs_sandbox and self._sandboxes is None:
            if self.store is None:
                raise ValueError(f"environment {env.id} needs a sandbox, and this worker has no folder for snapshots")
            self._sandboxes = make_sandboxes(self.config, self.store)
            self._journal = EpisodeJournal(self.store, self.run)
        return Stage(
            order,
            env,
            env.tools(order.task),
            self._chat,
            self._router,
            self.config.engine.max_context,
            self._sandboxes if env.needs_sandbox else None,
            self._journal if env.needs_sandbox else None,
            attempt,
        )

    @staticmethod
    async def _open(stage: Stage, prompt: list[int], episodes: list[Episode]) -> dict[Episode, Opened]:
        """The first turn of all episodes in one request: their common prompt is prefilled once."""
        if not episodes:
            return {}
        begin = time.monotonic()
        sampling = tuple(e.sampling() for e in episodes)
        images = episodes[0].trajectory.image_files()
        engine, generations = await stage.generate("open", np.asarray(prompt, np.int32), sampling, images=images)
        for e in episodes:
            e.seconds["generate"] += time.monotonic() - begin
        return {e: (engine, g) for e, g in zip(episodes, generations, strict=True)}

    async def _played(self, tasks: list[asyncio.Task[Trajectory]], enough: int) -> bool:
        """Wait for the episodes, at most until they are late; True as soon as `enough` (not 0) have a valid grade."""
        end = time.monotonic() + _SOFT_SHARE * self.config.rollout.group_timeout_s
        when, open_ = asyncio.FIRST_COMPLETED if enough else asyncio.ALL_COMPLETED, set(tasks)
        graded = 0
        while open_ and (left := end - time.monotonic()) > 0:
            done, open_ = await asyncio.wait(open_, timeout=left, return_when=when)
            graded += sum(not t.cancelled() and (g := t.result().grade) is not None and g.valid for t in done)
            if enough and graded >= enough:
                return True
        return False

    async def _cut(self, stage: Stage, tasks: list[asyncio.Task[Trajectory]], at_once: bool = False) -> None:
        """Have the engines give back what they sampled, then cancel what still acts; at_once: nothing is wanted of it,
        so do both together."""
        grace = _GRACE_SHARE * self.config.rollout.group_timeout_s
        aborts = [asyncio.ensure_future(self._router.abort(r)) for r in stage.requests]
        for t in tasks if at_once else ():
            t.cancel()
        await asyncio.wait(aborts or tasks, timeout=grace)
        if not at_once:
            await asyncio.wait(tasks, timeout=grace)
        for t in tasks:
            t.cancel()
        await asyncio.wait(tasks, timeout=grace)


async def _of(opening: asyncio.Future[dict[Episode, Opened]], episode: Episode) -> Opened:
    """One episode's share of the first request; cancelling one episode leaves the request to the others."""
    return (await asyncio.shield(opening))[episode]


def make_sandboxes(config: Config, store: str) -> SandboxFactory:
    """The sandboxes of one worker, by `config.sandbox`; raises as `environments.sandbox.backends.make_sandboxes`."""
    from environments.sandbox import backends
    from environments.sandbox.api import Limits

    c = config.sandbox
    limits = Limits(memory_mb=c.memory_mb, lifetime_s=c.lifetime_s)
    return backends.make_sandboxes(
        c.backend, store, limits, c.max_live, url=c.url, token_file=c.token_file, image=c.image
    )


def load_chat(config: Config) -> Any:
    """The tokenizer of the run's policy; it renders images where the policy sees and means the same ids by their marks.
    Any other one refuses them.
    """
    if config.model.kind == "hf":
        from model.hf_chat import HFChatTokenizer

        return HFChatTokenizer(str(config.model.path))
    from model.chat import ChatTokenizer
    from model.checkpoint_config import architecture
    from model.image import ImageSpec

    policy = architecture(config.model.preset, config.model.path, config.model.vision)
    if policy.vision is not None:
        chat = ChatTokenizer(images=ImageSpec.of(policy.vision))
        if chat.media_ids == policy.media_tokens:
            return chat
    return ChatTokenizer()
