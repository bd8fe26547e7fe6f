"""Generation engine for Hugging Face policies: vLLM in this process, weights replaced in place, version by version."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rollout.engine import vllm_backend as backend
from rollout.engine.base import (
    EngineNotReady,
    FinishReason,
    GenerateRequest,
    Generation,
    Key,
    Progress,
    WeightManifest,
)
from rollout.engine.weights import verify
from rollout.trajectory import Sampling

_MIN_TEMPERATURE = 0.01
"""vLLM silently raises lower positive temperatures to this one, so they are refused."""


@dataclass(eq=False)
class _Sequence:
    """One continuation in flight."""

    key: str
    prompt: list[int]
    sampling: Sampling
    done: asyncio.Future[Generation]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    cached: int = 0

    def finish(self, reason: str) -> None:
        """Resolve with vLLM's finish reason: stop, length or abort."""
        if self.done.done():
            return
        if reason == "length":
            full = len(self.tokens) >= self.sampling.max_tokens
            finish = FinishReason.LENGTH if full else FinishReason.CONTEXT
        elif reason in ("stop", "abort"):
            finish = FinishReason(reason)
        else:
            self.done.set_exception(RuntimeError(f"vLLM ended sequence {self.key} with {reason!r}"))
            return
        self.done.set_result(
            Generation(
                np.asarray(self.tokens, np.int32),
                np.asarray(self.logprobs, np.float32),
                np.asarray(self.versions, np.int32),
                finish,
                cached_tokens=self.cached,
            )
        )


class VllmEngine:
    """`rollout.engine.base.Engine` over one in-process vLLM; use it from one asyncio event loop (an async Ray actor).

    All vLLM calls run on one thread of their own: a step, or a weight update, never both, so requests that arrive while
    a step runs join the next one. Log-probs are of the sampled distribution (after temperature), float32; a greedy
    token's is at temperature 1. The constructor blocks for some ten seconds; nothing is generated before
    `update_weights`.
    """

    def __init__(
        self,
        path: str | Path,
        max_batch: int,
        max_context: int,
        threads: int = 1,
        dtype: backend.Dtype = "float32",
        seed: int = 0,
    ) -> None:
        from model.hf import weight_shapes

        self.max_context = max_context
        self._shapes = weight_shapes(path)
        self._version: int | None = None
        self._reason = "no weights were loaded yet"
        self._arrivals: list[_Sequence] = []
        self._running: dict[str, _Sequence] = {}
        self._requests: dict[str, list[_Sequence]] = {}
        self._task: asyncio.Task[None] | None = None
        self._update = asyncio.Lock()
        self._counts = {"generated": 0, "prefilled": 0, "cached": 0}
        self._thread = ThreadPoolExecutor(1, "vllm")
        self._llm = self._thread.submit(backend.start, str(path), max_batch, max_context, threads, dtype, seed).result()
        self._vocab: int = self._llm.vllm_config.model_config.get_vocab_size()

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample every continuation of the request; see `Engine.generate`."""
        if self._version is None:
            raise EngineNotReady(self._reason)
        prompt = [int(t) for t in request.prompt_ids]
        if not 0 < len(prompt) < self.max_context:
            raise ValueError(f"a prompt of {len(prompt)} tokens does not fit a context of {self.max_context}")
        if not 0 <= min(prompt) <= max(prompt) < self._vocab:
            raise ValueError(f"a prompt id is outside the vocabulary of {self._vocab}")
        if request.id in self._requests:
            raise ValueError(f"request {request.id} is already in flight")
        if request.images:
            raise ValueError(
                f"request {request.id} has images, engine.kind=vllm reads text: use model.kind=k3 with model.vision "
                "and engine=native, or leave environments with images out (envs.exclude)"
            )
        for s in request.sampling:
            _check(s)
        loop = asyncio.get_running_loop()
        sequences = [
            _Sequence(f"{request.id}#{i}", prompt, s, loop.create_future()) for i, s in enumerate(request.sampling)
        ]
        self._requests[request.id] = sequences
        self._arrivals += sequences
        if self._task is None:
            self._task = loop.create_task(self._serve())
        try:
            return list(await asyncio.gather(*(s.done for s in sequences)))
        finally:
            if any(not s.done.done() or s.done.cancelled() for s in sequences):
                await self.abort(request.id)
            del self._requests[request.id]

    async def update_weights(self, manifest: WeightManifest, buckets: list[Any]) -> int:
        """Verify and serve a whole version; sequences in flight continue on it, their state recomputed."""
        async with self._update:
            weights: dict[str, np.ndarray] = {}
            for bucket in buckets:
                weights.update(await bucket if inspect.isawaitable(bucket) else bucket)
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(None, verify, manifest, weights, self._shapes)
                await loop.run_in_executor(self._thread, self._load, manifest.version, weights)
            except Exception as e:
                # Nothing may be sampled on weights that are not the manifest's: what is in flight fails too.
                self._version, self._reason = None, f"version {manifest.version} was refused: {e}"
                await self._fail(EngineNotReady(self._reason))
                raise
            return manifest.version

    async def abort(self, request_id: str) -> bool:
        """Stop one request; what it sampled so far comes back with FinishReason.ABORT."""
        alive = [s for s in self._requests.get(request_id, ()) if not s.done.done() or s.done.cancelled()]
        self._arrivals = [s for s in self._arrivals if s not in alive]
        for s in alive:
            s.finish("abort")
            self._running.pop(s.key, None)
        keys = [s.key for s in alive]
        await asyncio.get_running_loop().run_in_executor(self._thread, self._llm.abort_request, keys)
        return bool(alive)

    async def progress(self, request_id: str) -> list[Progress]:
        """See `Engine.progress`."""
        sequences = self._requests.get(request_id, [])
        return [(np.asarray(s.tokens, np.int32), np.asarray(s.logprobs, np.float32)) for s in sequences]

    async def export_state(self, key: Key, have: int) -> tuple[int, Any, Any]:
        """None ever: vLLM keeps its states to itself. See `Engine.export_state`."""
        return 0, None, None

    async def stats(self) -> dict[str, float]:
        """Counters since the last call: see `Engine.stats`."""
        out = {f"tokens_{name}": float(n) for name, n in self._counts.items()}
        self._counts = dict.fromkeys(self._counts, 0)
        out["running"] = float(len(self._running))
        out["waiting"] = float(len(self._arrivals))
        out["version"] = float(-1 if self._version is None else self._version)
        return out

    async def trace(self, prompt: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs of the model's modules on a prompt int32 [T], see `model.trace`. Raises RuntimeError while sequences
        are in flight.
        """
        if self._running or self._arrivals:
            raise RuntimeError("a trace needs an idle engine")
        return await asyncio.get_running_loop().run_in_executor(self._thread, backend.trace_prompt, self._llm, prompt)

    def close(self) -> None:
        """Give vLLM's memory and its process group back; the engine cannot be used again."""
        self._thread.submit(backend.stop, self._llm).result()
        self._thread.shutdown()

    async def _fail(self, error: Exception) -> None:
        """Fail everything in flight, and take it out of vLLM."""
        alive = [*self._running.values(), *self._arrivals]
        self._running.clear()
        self._arrivals.clear()
        for s in alive:
            if not s.done.done():
                s.done.set_exception(error)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._llm.abort_request, [s.key for s in alive])

    async def _serve(self) -> None:
        """Step vLLM as long as there is work; between two steps arrivals join."""
        loop = asyncio.get_running_loop()
        try:
            while self._arrivals or self._running:
                arrivals, self._arrivals = self._arrivals, []
                self._running.update((s.key, s) for s in arrivals)
                try:
                    version, outputs = await loop.run_in_executor(self._thread, self._step, arrivals)
                    for output in outputs:
                        self._collect(version, output)
                except Exception as e:
                    await self._fail(e)  # every caller gets the error; what arrives meanwhile is tried again
        finally:
            self._task = None

    def _collect(self, version: int, output: Any) -> None:
        sequence = self._running.get(output.request_id)
        if sequence is None:
            return
        (out,) = output.outputs
        if len(out.token_ids) != len(out.logprobs):
            raise RuntimeError(f"vLLM gave {len(out.token_ids)} tokens but {len(out.logprobs)} log-probs")
        if not sequence.tokens:
            sequence.cached = output.num_cached_tokens or 0
            self._counts["cached"] += sequence.cached
            self._counts["prefilled"] += len(sequence.prompt) - sequence.cached
        sequence.tokens += out.token_ids
        sequence.logprobs += [row[t].logprob for t, row in zip(out.token_ids, out.logprobs, strict=True)]
        sequence.versions += [version] * len(out.token_ids)
        self._counts["generated"] += len(out.token_ids)
        if output.finished:
            del self._running[sequence.key]
            sequence.finish(out.finish_reason)

    # Below: on the vLLM thread.

    def _step(self, arrivals: list[_Sequence]) -> tuple[int, list[Any]]:
        import torch

        version = self._version
        if version is None:
            raise EngineNotReady(self._reason)
        for s in arrivals:
            # The salt keeps the versions of the prefix cache apart, besides the reset after every update.
            prompt = {"prompt_token_ids": s.prompt, "cache_salt": str(version)}
            self._llm.add_request(s.key, prompt, backend.sampling_params(s.sampling, self.max_context - len(s.prompt)))
        # vLLM's sampler compiles small functions at first use (15 s on a CPU) whatever enforce_eager says.
        with torch.compiler.set_stance("force_eager"):
            return version, self._llm.step()

    def _load(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        try:
            self._llm.collective_rpc(backend.replace_weights, args=(weights,))
            self._llm.reset_prefix_cache(reset_running_requests=True)
        except Exception:
            # Here and not in the caller: the next step may already wait for this thread.
            self._version, self._reason = None, f"loading version {version} failed half way"
            raise
        self._version = version


def _check(sampling: Sampling) -> None:
    if sampling.max_tokens < 1:
        raise ValueError(f"max_tokens must be positive, got {sampling.max_tokens}")
    if sampling.temperature < 0 or 0 < sampling.temperature < _MIN_TEMPERATURE:
        raise ValueError(f"temperature must be 0 or at least {_MIN_TEMPERATURE}, got {sampling.temperature}")
