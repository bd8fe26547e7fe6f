"""An engine on a thread and event loop of its own: a long step holds up no connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rollout.engine.base import Engine, GenerateRequest, Generation, Key, Progress, WeightManifest

T = TypeVar("T")

_END_S = 30.0
"""For the engine's thread to end; it is a daemon beyond that."""


class Host:
    """`rollout.engine.base.Engine` for another event loop than the one that it is called from."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        """make: builds the engine, on its thread; what it raises is raised here."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()
        try:
            self._engine = asyncio.run_coroutine_threadsafe(_made(make), self._loop).result()
        except BaseException:
            self.close()
            raise

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """See `Engine.generate`; cancelling it aborts the request."""
        return await self._there(self._engine.generate(request))

    async def progress(self, request_id: str) -> list[Progress]:
        """See `Engine.progress`."""
        return await self._there(self._engine.progress(request_id))

    async def abort(self, request_id: str) -> bool:
        """See `Engine.abort`."""
        return await self._there(self._engine.abort(request_id))

    async def update_weights(self, manifest: WeightManifest, buckets: list[Any]) -> int:
        """See `Engine.update_weights`; buckets are the tensors themselves."""
        return await self._there(self._engine.update_weights(manifest, buckets))

    async def export_state(self, key: Key, have: int) -> tuple[int, Any, Any]:
        """See `Engine.export_state`."""
        return await self._there(self._engine.export_state(key, have))

    async def stats(self) -> dict[str, float]:
        """See `Engine.stats`."""
        return await self._there(self._engine.stats())

    def close(self) -> None:
        """End the engine's thread; what is in flight there is cancelled. The engine cannot be used again."""
        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(_END_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)

    async def _there(self, call: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))


async def _made(make: Callable[[], Engine]) -> Engine:
    return make()


async def _cancel_all() -> None:
    others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
