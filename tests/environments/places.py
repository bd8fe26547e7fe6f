"""Real sandboxes for tests: a factory on a temporary store, with the event loop that it is bound to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from environments.sandbox import linux
from environments.sandbox.api import ExecResult, Limits, Sandbox
from environments.sandbox.local import LocalSandboxes

T = TypeVar("T")


class Place:
    """Calls coroutines: `place(place.factory.create("t"))`."""

    def __init__(self, store: Path, limits: Limits | None = None, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.factory = LocalSandboxes(store, limits, **options)

    def __call__(self, work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, seconds))

    def create(self, snapshot: str | None = None) -> Sandbox:
        return self(self.factory.create("test", snapshot))

    def run(self, sandbox: Sandbox, command: str | list[str], **options: Any) -> ExecResult:
        return self(sandbox.exec(command, **options))

    def text(self, sandbox: Sandbox, command: str) -> str:
        """Standard output of a command that must succeed."""
        result = self.run(sandbox, command)
        assert result.ok, result
        return result.stdout.decode(errors="replace")

    def nursery(self) -> int:
        """Pid of the nursery's pid 1, as the host numbers it."""
        assert self.factory._link is not None
        (inner,) = linux.children(self.factory._link._process.pid)
        return inner

    def porter(self) -> int:
        """Pid of the nursery's first child."""
        return linux.children(self.nursery())[0]

    def inside(self) -> dict[int, str]:
        """Every process of every sandbox, with its state."""
        porter = self.porter()
        return {pid: state for pid, state in linux.descendants(self.nursery()).items() if pid != porter}


@contextmanager
def place_at(store: Path, limits: Limits | None = None, **options: Any) -> Iterator[Place]:
    """A place that is closed at the end, with everything in it."""
    place = Place(store, limits, **options)
    try:
        yield place
    finally:
        place(place.factory.close())
        place.loop.close()
