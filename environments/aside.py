"""Runs an environment's own code beside the caller's event loop: code that never yields keeps up its own environment.

Each environment has one thread with an event loop of its own, so its code runs as it would alone: one thing at a time,
interleaved only where it awaits. Sandboxes stay with the caller's loop; what goes aside is given a stand-in for them.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from environments.sandbox.api import WORKSPACE, ExecResult, LayerId, OnOutput, Sandbox, Session, SnapshotId

T = TypeVar("T")

_IMPORT_S = 120.0
"""What imports may take of a thread beyond deadlines: whoever needs a module first pays for it, on a loaded machine for
long, and an import that is interrupted keeps its lock, so that nobody in the process can have the module any more."""

_MARGIN_S = 1.0
"""Code that yields is ended at its deadline by its own loop; only a loop that fails to is called blocked."""


_IMPORTLIB = "<frozen importlib._bootstrap>"


class BlockedError(RuntimeError):
    """An environment's code has kept its thread past its deadline; the message names the environment."""


class _Interrupt(BaseException):
    """Raised inside code that blocks; it is no Exception, so that the code's own handlers let it through."""


async def aside(
    environment: str,
    call: Callable[[Sandbox | None], Coroutine[Any, Any, T]],
    sandbox: Sandbox | None,
    seconds: float,
) -> T:
    """Await `call(sandbox)` in the environment's thread for at most `seconds` from when it begins there.

    Raises TimeoutError where it yields but does not end; BlockedError where it does not yield: then all that waits for
    this environment fails alike, its thread is given up, and the next call begins another. `sys.exit` in it is a
    RuntimeError here.
    """
    thread = _THREADS.get(environment)
    if thread is None:
        thread = _THREADS[environment] = _Thread(environment)
    try:
        place = None if sandbox is None else _StandIn(sandbox, asyncio.get_running_loop())
        return await thread.run(lambda: call(place), seconds)
    except BlockedError:
        if _THREADS.get(environment) is thread:
            del _THREADS[environment]
            thread.give_up()
        raise


class _Thread:
    """One environment's thread; a daemon, for what blocks may never end."""

    def __init__(self, environment: str) -> None:
        self.environment = environment
        self._loop = asyncio.new_event_loop()
        self._waiting = 0
        self._limit = 0.0
        """The longest deadline asked for."""
        self._over = False
        self._moved = 0.0
        """When the thread last began or ended something."""
        self._for_imports = _IMPORT_S
        self._thread = threading.Thread(target=self._serve, name=f"environment {environment}", daemon=True)
        self._thread.start()

    async def run(self, call: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        if not self._waiting:
            self._moved = time.monotonic()
        self._waiting += 1
        self._limit = max(self._limit, seconds)
        future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._bounded(call, seconds), self._loop))
        try:
            while not future.done():
                now = time.monotonic()
                left = self._moved + self._limit + _MARGIN_S - now
                if left <= 0 and not self._over and self._for_imports > 0 and self._imports():
                    self._moved, left = now, self._limit + _MARGIN_S
                    self._for_imports -= left
                if self._over or left <= 0:
                    raise BlockedError(
                        f"{self.environment}: its code did not yield for {self._limit:.0f} s (a loop, a blocking "
                        "call); what waited for it is masked"
                    )
                await asyncio.wait({future}, timeout=left)
            return future.result()
        finally:
            self._waiting -= 1
            future.cancel()

    def _imports(self) -> bool:
        """Whether the thread is importing a module, or waits for one that another thread imports."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None and frame.f_code.co_filename != _IMPORTLIB:
            frame = frame.f_back
        return frame is not None

    def give_up(self) -> None:
        """Interrupt what blocks, if it is Python code, and end the thread as soon as that lets it."""
        self._over = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(_Interrupt))

    async def _bounded(self, call: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        self._moved = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                return await _contained(call)
        finally:
            self._moved = time.monotonic()

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
            if left := asyncio.all_tasks(self._loop):
                for task in left:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(left))
        except _Interrupt:  # it came when what blocked had ended
            return


async def _contained(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What would end the thread is an error of the environment."""
    try:
        return await call()
    except _Interrupt:
        raise asyncio.CancelledError from None  # nobody waits for it any more
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the environment's code raised {type(error).__name__}({error})") from error


_THREADS: dict[str, _Thread] = {}
"""Environment id -> its thread, of this process; as `environments.catalogue.resolve` holds its instance."""


class _StandIn(Sandbox):
    """A sandbox of another loop: every call is carried out there."""

    def __init__(self, inner: Sandbox, home: asyncio.AbstractEventLoop) -> None:
        self.id, self.task_id, self.capabilities, self.net = inner.id, inner.task_id, inner.capabilities, inner.net
        self._inner, self._home = inner, home

    async def there(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call of the real sandbox where it lives."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._home))

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout: float = 30.0,
        cwd: str = WORKSPACE,
        stdin: bytes = b"",
        background: bool = False,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        how: dict[str, Any] = {"timeout": timeout, "cwd": cwd, "stdin": stdin, "background": background}
        return await self.there(self._inner.exec(command, on_output=on_output, **how))

    def session(self, name: str = "main") -> Session:
        return _SessionStandIn(self, self._inner.session(name))

    async def read_file(self, path: str) -> bytes:
        return await self.there(self._inner.read_file(path))

    async def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        await self.there(self._inner.write_file(path, data, mode))

    async def snapshot(self) -> SnapshotId:
        return await self.there(self._inner.snapshot())

    async def freeze(self) -> LayerId:
        return await self.there(self._inner.freeze())

    async def fork(self, n: int) -> list[Sandbox]:
        return [_StandIn(one, self._home) for one in await self.there(self._inner.fork(n))]

    async def pause(self) -> None:
        await self.there(self._inner.pause())

    async def resume(self) -> None:
        await self.there(self._inner.resume())

    async def close(self) -> None:
        await self.there(self._inner.close())


class _SessionStandIn(Session):
    """A shell session of a sandbox of another loop."""

    def __init__(self, place: _StandIn, inner: Session) -> None:
        self.name, self._place, self._inner = inner.name, place, inner

    async def run(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        return await self._place.there(self._inner.run(command, timeout=timeout))

    async def close(self) -> None:
        await self._place.there(self._inner.close())
