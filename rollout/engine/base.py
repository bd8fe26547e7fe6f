"""The engine's interface: token ids in; token ids out with log-prob, weight version and finish reason."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from rollout.trajectory import Sampling


class FinishReason(StrEnum):
    """Why the engine stopped sampling one sequence."""

    STOP = "stop"
    """A stop token was sampled (it is part of the output)."""
    LENGTH = "length"
    """`max_tokens` was reached."""
    CONTEXT = "context"
    """The engine's context length was reached."""
    ABORT = "abort"
    """The caller aborted it."""


@dataclass(frozen=True)
class GenerateRequest:
    """Sample len(sampling) continuations of one prompt; they share its prefill. prompt_ids: int32 [T].

    images: the files of the prompt's images in order, each behind one run of placeholder tokens.
    """

    id: str
    prompt_ids: np.ndarray
    sampling: tuple[Sampling, ...]
    keep: bool = False
    """A next turn will follow: the engine may keep the state at the end of each continuation, to extend it then."""
    images: tuple[bytes, ...] = ()


@dataclass(frozen=True, eq=False)
class Generation:
    """One continuation: token_ids int32 [T], logprobs float32 [T], versions int32 [T]; routes: see `Node.routes`."""

    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    finish: FinishReason
    routes: np.ndarray | None = None
    prompt_routes: np.ndarray | None = None
    """Routes of the prompt tokens that were prefilled for this request, aligned with prompt_ids; or None."""
    cached_tokens: int = 0
    """Prompt tokens that were served from a state cache of the same weight version."""
    picks: np.ndarray | None = None
    """See `Node.picks`, aligned with token_ids."""
    prompt_picks: np.ndarray | None = None
    """Picks of the prompt tokens that were prefilled for this request, aligned with prompt_ids; or None."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Small arrays travel as bytes: pickling each by itself was half of what an answer cost the engine's process.
        They are read-only where they arrive, as all that comes out of an object store is."""
        values = [getattr(self, f.name) for f in fields(self)]
        arrays = [v for v in values if isinstance(v, np.ndarray)]
        if sum(a.nbytes for a in arrays) > _SMALL:
            return Generation, tuple(values)
        return _unpacked, tuple((v.dtype.str, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values)


_SMALL = 1 << 16
"""Bytes of a continuation up to which copying its arrays costs less than treating them one by one."""


def _unpacked(*values: Any) -> Generation:
    """Inverse of `Generation.__reduce__` for small arrays."""
    columns: list[Any] = [np.frombuffer(v[2], v[0]).reshape(v[1]) if isinstance(v, tuple) else v for v in values]
    return Generation(*columns)


@dataclass(frozen=True)
class WeightManifest:
    """One version of the weights: every name with dtype, shape and checksum (hex blake2b of the raw bytes)."""

    version: int
    tensors: dict[str, tuple[str, tuple[int, ...], str]]

    @property
    def checksum(self) -> str:
        """One checksum over all names and checksums."""
        import hashlib

        h = hashlib.blake2b(digest_size=16)
        for name in sorted(self.tensors):
            h.update(f"{name}:{self.tensors[name]}".encode())
        return h.hexdigest()


Progress = tuple[np.ndarray, np.ndarray]
"""What a continuation has sampled so far: token_ids int32 [T], logprobs float32 [T]."""


class EngineNotReady(RuntimeError):
    """Raised when generation is asked for while no verified weights are loaded."""


class Engine(Protocol):
    """What every engine actor offers (methods are async where they wait).

    An engine generates only on weights whose checksums were verified against their manifest; `update_weights` may come
    while sequences are in flight: they continue on the new weights, their state recomputed, each token tagged with the
    version that sampled it.
    """

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Sample every continuation; raises EngineNotReady, or ValueError for a prompt beyond the context."""
        ...

    async def update_weights(self, manifest: WeightManifest, buckets: list[Any]) -> int:
        """Load, verify and serve a whole version; returns it. Buckets are object references to {name: ndarray}.

        Raises ValueError naming the tensor whose checksum, shape or dtype differs; the engine then refuses to generate.
        """
        ...

    async def abort(self, request_id: str) -> bool:
        """Stop one request; its continuations return with FinishReason.ABORT."""
        ...

    async def progress(self, request_id: str) -> list[Progress]:
        """What each continuation of a request has sampled so far; nothing for a request that is not in flight."""
        ...

    async def stats(self) -> dict[str, float]:
        """Counters since the last call: tokens generated, prefilled, cached; running and waiting sequences; version."""
        ...
