"""The nursery's processes: forked, watched and reaped in one place, by the one thread that may create them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from environments.sandbox import api, linux


class Children:
    """Every child of this process. The kernel ties parent-death signals to the creating thread: there is only one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._exits: dict[int, asyncio.Future[int]] = {}
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        # a thousand children may end before the loop looks: one note of it is enough, and a full pipe is no news
        signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)

    def watch(self, pid: int) -> asyncio.Future[int]:
        """A future with the exit status (`os.waitstatus_to_exitcode`) of a child just created."""
        self._exits[pid] = future = self._loop.create_future()
        return future

    def fork(self, body: Callable[[], None]) -> tuple[int, asyncio.Future[int]]:
        """Run `body` in a forked child that then exits 0; (pid, future of its status)."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                body()
                code = 0
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(code)
        return pid, self.watch(pid)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """The JSON value of function(*args), computed in a forked child; its SandboxError or OSError is raised here."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)

        def body() -> None:
            try:
                row = {"value": function(*args)}
            except (api.SandboxError, OSError) as error:
                row = {"error": api.error_to_json(error)}
            os.write(write_end, json.dumps(row).encode())

        try:
            pid, exited = self.fork(body)
        except OSError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        try:
            text = await read_pipe(read_end)
        except asyncio.CancelledError:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            os.close(read_end)
            await asyncio.shield(exited)
        if not text:
            raise api.SandboxUnavailable(f"internal error: {function.__name__} died ({exited.result()})")
        row = json.loads(text)
        if "error" in row:
            raise api.error_from_json(row["error"])
        return row["value"]

    def kill_strangers(self) -> None:
        """Kill children that nobody here created: orphans of a sandbox whose creation was interrupted."""
        for pid in linux.children(os.getpid()):
            if pid not in self._exits:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            future = self._exits.pop(pid, None)
            if future is not None and not future.done():
                future.set_result(os.waitstatus_to_exitcode(status))


class Kept:
    """The first and last half of `cap` bytes of a stream; `tell` gets what comes, as it comes, up to `cap` bytes."""

    def __init__(self, cap: int, tell: Callable[[bytes], None] | None = None) -> None:
        self._half, self._tell = max(1, cap // 2), tell
        self._head, self._tail, self._total = bytearray(), bytearray(), 0

    def add(self, chunk: bytes) -> None:
        """More of the stream."""
        if self._tell is not None and self._total < 2 * self._half:
            self._tell(chunk[: 2 * self._half - self._total])
        self._total += len(chunk)
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:] if room > 0 else chunk
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def take(self) -> tuple[bytes, int]:
        """(kept bytes, dropped count) of what came since the last call."""
        tail = bytes(self._tail[-self._half :])
        dropped = self._total - len(self._head) - len(tail)
        kept = joined(bytes(self._head), tail, dropped)
        self._head, self._tail, self._total = bytearray(), bytearray(), 0
        return kept, dropped


def joined(head: bytes, tail: bytes, dropped: int) -> bytes:
    """What is kept of a stream, with a line that says what is not."""
    return head + (b"\n[%d bytes dropped]\n" % dropped if dropped else b"") + tail


class Capture:
    """Reads one pipe as long as it is written to; see `Kept`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, cap: int, tell: Callable[[bytes], None] | None = None
    ) -> None:
        self._loop, self._fd, self._kept = loop, fd, Kept(cap, tell)
        self._ended = False
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._read_some)

    def _read_some(self) -> bool:
        """Read once; whether there may be more."""
        try:
            chunk = os.read(self._fd, 1 << 18)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._fd)
            self._ended = True
            return False
        self._kept.add(chunk)
        return True

    def take(self) -> tuple[bytes, int]:
        """(kept bytes, dropped count) of all that was written since the last call."""
        for _ in range(64):  # what the pipe holds; a process that writes faster than this reads is not waited for
            if self._ended or not self._read_some():
                break
        return self._kept.take()

    def close(self) -> None:
        """Read no more."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


async def read_pipe(fd: int, until: Callable[[bytes], bool] = lambda data: False) -> bytes:
    """Bytes of a pipe up to its end, or up to where `until` holds."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    data = bytearray()
    done: asyncio.Future[None] = loop.create_future()

    def read_some() -> None:
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        data.extend(chunk)
        if (not chunk or until(bytes(data))) and not done.done():
            done.set_result(None)

    loop.add_reader(fd, read_some)
    try:
        await done
    finally:
        loop.remove_reader(fd)
    return bytes(data)


async def readable(fd: int) -> None:
    """Return when a file descriptor becomes readable (a pidfd: when its process has ended)."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: None if done.done() else done.set_result(None))
    try:
        await done
    finally:
        loop.remove_reader(fd)
