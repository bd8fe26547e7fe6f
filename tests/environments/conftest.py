"""A sandbox factory in memory, for tests of what uses sandboxes."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from environments.sandbox.api import NO_NETWORK, SandboxUnavailable, Unsupported


class MemorySandbox:
    """Files in a dict; snapshots are copies kept by the factory."""

    id, task_id, capabilities, net = "memory", "task", None, NO_NETWORK

    def __init__(self, factory: MemoryFactory, files: dict[str, bytes]) -> None:
        self.factory, self.files, self.open = factory, dict(files), True
        factory.alive += 1
        factory.made += 1

    async def read_file(self, path: str) -> bytes:
        return self.files[path]

    async def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self.files[path] = data

    async def exec(self, command, **options: Any) -> Any:
        raise Unsupported("files only: nothing can be run here")

    async def snapshot(self) -> str:
        name = hashlib.sha256(repr(sorted(self.files.items())).encode()).hexdigest()
        self.factory.snapshots[name] = dict(self.files)
        return name

    async def __aenter__(self) -> MemorySandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.factory.alive -= self.open
        self.open = False


class MemoryFactory:
    """Counts what is alive; refuses after `most` sandboxes."""

    def __init__(self) -> None:
        self.alive = self.made = 0
        self.most = 10**9
        self.snapshots: dict[str, dict[str, bytes]] = {}

    async def create(self, task_id: str, snapshot: str | None = None, *, net: Any = NO_NETWORK) -> MemorySandbox:
        if self.made >= self.most:
            raise SandboxUnavailable("no more")
        return MemorySandbox(self, {} if snapshot is None else self.snapshots[snapshot])

    async def close(self) -> None:
        """Nothing to give back."""


@pytest.fixture
def sandboxes() -> MemoryFactory:
    return MemoryFactory()
