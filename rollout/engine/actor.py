"""An engine in a Ray actor: it steps while there is work, and answers updates, aborts and stats between two steps."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout.engine.base import (
    Carried,
    Engine,
    EngineNotReady,
    GenerateRequest,
    Generation,
    Key,
    Progress,
    StateMissing,
    WeightManifest,
)

if TYPE_CHECKING:
    from rl.config import Config
    from rollout.engine.native import NativeEngine


class EngineActor:
    """The engine that the configuration asks for, as an actor; see `rollout.engine.base.Engine`."""

    def __init__(self, config: Config, name: str = "engine0", index: int = 0) -> None:
        self.name = name
        self._engine = make_engine(config, index)

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """See `Engine.generate`."""
        return await self._engine.generate(request)

    async def update_weights(self, manifest: WeightManifest, buckets: list[Any]) -> int:
        """See `Engine.update_weights`."""
        return await self._engine.update_weights(manifest, buckets)

    async def abort(self, request_id: str) -> bool:
        """See `Engine.abort`."""
        return await self._engine.abort(request_id)

    async def progress(self, request_id: str) -> list[Progress]:
        """See `Engine.progress`."""
        return await self._engine.progress(request_id)

    async def export_state(self, key: Key, have: int) -> tuple[int, Any, Any]:
        """See `Engine.export_state`."""
        return await self._engine.export_state(key, have)

    async def stats(self) -> dict[str, float]:
        """See `Engine.stats`."""
        return await self._engine.stats()

    async def trace(self, prompt: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs of a vLLM engine's modules, see `VllmEngine.trace`."""
        return await self._engine.trace(prompt)  # type: ignore[attr-defined]

    async def ping(self) -> dict[str, Any]:
        """A sign of life: name and process id."""
        return {"name": self.name, "pid": os.getpid()}


class NativeServer:
    """`Engine` over a `NativeEngine`: one task steps it, all else runs between two steps of the same event loop."""

    def __init__(self, core: NativeEngine) -> None:
        self.core = core
        self._futures: dict[str, asyncio.Future[list[Generation]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._busy_s = 0.0

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample every continuation; see `Engine.generate`."""
        if request.carried is not None:
            await self._continue(request, request.carried)
        self.core.submit(request)
        future = self._futures[request.id] = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = asyncio.ensure_future(self._serve())
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                self.core.abort(request.id)
            self._futures.pop(request.id, None)

    async def _continue(self, request: GenerateRequest, carried: Carried) -> None:
        """Have the state that a request goes on from, or one that spares as much of its prompt."""
        from ray.exceptions import RayError

        from rollout.engine.carry import adopt
        from rollout.engine.orders import Order

        core = self.core
        if carried.key[0] != core.version or core.prefixes.get(carried.key) is not None:
            return
        if core.prefixes.reach(carried.key[0], Order.of(core.policy, request).identity) >= carried.length:
            return
        if not carried.grown:
            raise StateMissing(f"no state of the {carried.length} tokens before request {request.id} is kept here")
        try:
            fixed, *grown = [await _value(x) for x in (carried.fixed, *(part for _, _, part in carried.grown))]
        except RayError:  # whoever owned it is gone: the prompt is read from its beginning
            core.counts["carried_lost"] += carried.length
            return
        if carried.key[0] == core.version:  # the weights may have changed meanwhile
            held = adopt(core.prefixes, core.policy, carried, fixed, grown)
            core.counts["carried" if held else "carried_lost"] += carried.length

    async def export_state(self, key: Key, have: int) -> tuple[int, Any, Any]:
        """See `Engine.export_state`."""
        from rollout.engine.carry import export

        return export(self.core.prefixes, self.core.policy.config, key, have)

    async def update_weights(self, manifest: WeightManifest, buckets: list[Any]) -> int:
        """Verify and serve a version; see `Engine.update_weights`."""
        tensors: dict[str, np.ndarray] = {}
        for bucket in buckets:
            tensors.update(await _value(bucket))
        try:
            return self.core.load(manifest, tensors)
        except Exception as e:
            self._fail(EngineNotReady(f"version {manifest.version} was refused: {e}"))
            raise

    async def abort(self, request_id: str) -> bool:
        """Stop one request; see `Engine.abort`."""
        return self.core.abort(request_id)

    async def progress(self, request_id: str) -> list[Progress]:
        """See `Engine.progress`."""
        return self.core.progress(request_id)

    async def stats(self) -> dict[str, float]:
        """See `Engine.stats`; `busy_s`: seconds spent in steps since the last call."""
        busy, self._busy_s = self._busy_s, 0.0
        return self.core.stats() | {"busy_s": busy}

    async def _serve(self) -> None:
        try:
            while self.core.busy:
                begin = time.monotonic()
                for request_id, generations in self.core.step():
                    future = self._futures.get(request_id)
                    if future is not None and not future.done():
                        future.set_result(generations)
                self._busy_s += time.monotonic() - begin
                await asyncio.sleep(0)
        except Exception as e:
            # The state may be half advanced: nothing of it can be trusted.
            self.core.forget()
            self._fail(e)
        finally:
            self._task = None

    def _fail(self, error: Exception) -> None:
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)


async def _value(x: Any) -> Any:
    """What a reference is to, or the thing itself."""
    return await x if inspect.isawaitable(x) else x


def make_engine(config: Config, index: int = 0) -> Engine:
    """The engine of `config.engine.kind`, in this process, without weights. Raises ValueError for an unknown kind.

    A native engine is on GPU `index` modulo those that it sees, or on the CPU; float32, as the learner.
    """
    e = config.engine
    if e.kind == "vllm":
        from rollout.engine.vllm import VllmEngine

        return VllmEngine(str(config.model.path), e.max_batch, e.max_context, e.threads, seed=config.seed)
    if e.kind != "native":
        raise ValueError(f"unknown engine kind {e.kind!r}: native or vllm")
    import torch

    from model import QuantSpec, build_policy
    from rollout.engine.native import NativeEngine

    torch.set_num_threads(e.threads)
    q = config.model.quant
    quant = QuantSpec(q.expert_weights, q.expert_activations, q.scale_rule)
    m = config.model
    policy = build_policy(m.kind, m.preset, m.path, quant, vision=m.vision)
    if torch.cuda.is_available():
        policy = policy.to(torch.device("cuda", index % torch.cuda.device_count()))
    options = (e.record_routes, e.record_picks, e.prefix_cache_bytes, e.deterministic, e.draft_tokens)
    return NativeServer(NativeEngine(policy, e.max_batch, e.max_context, *options))


def start_engine(config: Config, index: int, gpus: float = 0.0) -> Any:
    """The handle of a new engine actor named engine<index>; it may not be up yet, and has no weights.

    gpus: GPUs (or a part of one). A lost engine is restarted under the same handle, without weights.
    """
    import ray

    threads = str(config.engine.threads)
    # Set before torch is imported: OpenMP reads them once. num_cpus 0: an actor that finds no place waits for ever.
    env = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    cls: Any = ray.remote(EngineActor)
    options = cls.options(
        num_cpus=0, num_gpus=gpus, max_restarts=-1, max_concurrency=10_000, runtime_env={"env_vars": env}
    )
    return options.remote(config, f"engine{index}", index)


def start_engines(config: Config, timeout_s: float = 180.0, gpus: float = 0.0) -> dict[str, Any]:
    """Start `engine.replicas` engine actors and wait until they answer; name -> handle. They have no weights yet.

    gpus: see `start_engine`. Raises TimeoutError naming the engines that did not answer in timeout_s seconds.
    """
    import ray

    engines = {f"engine{i}": start_engine(config, i, gpus) for i in range(config.engine.replicas)}
    calls = {engine.ping.remote(): name for name, engine in engines.items()}
    ready, late = ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s)
    if late:
        raise TimeoutError(f"{', '.join(calls[c] for c in late)} did not start within {timeout_s:.0f} s")
    ray.get(ready)
    return engines
