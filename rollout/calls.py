"""How the scheduler asks workers, hears of their answers and knows the time: the seam that a simulation replaces."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

Answer = tuple[Any, "Future[Any]"]
"""What a call was about, and its result or error."""


class Calls(Protocol):
    """Calls to worker actors; answers come in the order in which they arrive, at a cost that no other call adds to."""

    def now(self) -> float:
        """Seconds on a clock that only goes forward."""
        ...

    def ask(self, method: Any, *args: Any, about: Any) -> Future[Any]:
        """Call a worker's method; its answer will be among `answers`, with what it is about."""
        ...

    def tell(self, method: Any, *args: Any) -> None:
        """Call a worker's method whose answer nobody waits for."""
        ...

    def answers(self, timeout: float) -> list[Answer]:
        """All answers that are there; waits up to `timeout` seconds for the first."""
        ...

    def kill(self, handle: Any) -> None:
        """End a worker."""
        ...


class RayCalls:
    """`Calls` on Ray. `ray.wait` looks at every open call each time; here an answer is heard of as it arrives."""

    def __init__(self) -> None:
        self._heard: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.now: Callable[[], float] = time.monotonic

    def ask(self, method: Any, *args: Any, about: Any) -> Future[Any]:
        """See `Calls.ask`."""
        future: Future[Any] = method.remote(*args).future()
        future.add_done_callback(lambda f: self._heard.put((about, f)))
        return future

    def tell(self, method: Any, *args: Any) -> None:
        """See `Calls.tell`."""
        method.remote(*args)

    def answers(self, timeout: float) -> list[Answer]:
        """See `Calls.answers`."""
        out: list[Answer] = []
        try:
            out.append(self._heard.get(timeout=timeout) if timeout > 0 else self._heard.get_nowait())
            while True:
                out.append(self._heard.get_nowait())
        except queue.Empty:
            return out

    def kill(self, handle: Any) -> None:
        """See `Calls.kill`."""
        import ray

        ray.kill(handle)
