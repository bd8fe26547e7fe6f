"""Sandboxes on this machine: bubblewrap, without root, without a daemon. The worker's side; `nursery.py` is the other.

Works in any asyncio event loop (a Ray async actor's too): the worker itself forks nothing but one nursery, which is
tied to the worker's life by a pidfd and a socket, not to the thread that created it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from environments.sandbox import store as stores
from environments.sandbox import wire
from environments.sandbox.api import (
    NO_NETWORK,
    WORKSPACE,
    Capabilities,
    ExecResult,
    LayerId,
    Limits,
    NetPolicy,
    OnOutput,
    Sandbox,
    SandboxLost,
    SandboxUnavailable,
    Session,
    SnapshotId,
    argv_of,
    error_from_json,
)
from environments.sandbox.bwrap import find_bwrap

_START_S = 60.0  # of a nursery: an interpreter start; long only on a machine that swaps
_END_S = 10.0  # of a nursery, which ends by itself when the connection closes
_GRACE_S = 30.0  # beyond a command's own timeout, until its nursery counts as stuck
_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from environments.sandbox.nursery import main; main()"


class LocalSandboxes:
    """The factory of one worker (a `SandboxFactory`), bound to the event loop that first uses it.

    `store` keeps the snapshots; several workers may share it. At most `max_live` sandboxes are alive at once: further
    creations wait up to `wait_s` seconds (close the agent's sandbox before creating the verdict's).
    """

    def __init__(
        self, store: str | Path, limits: Limits | None = None, max_live: int = 64, wait_s: float = 120.0
    ) -> None:
        self.store = Path(store)
        self.limits = limits or Limits()
        self.slots = asyncio.Semaphore(max_live)
        self._wait_s = wait_s
        self._starting = asyncio.Lock()
        self._link: _Link | None = None

    async def create(
        self,
        task_id: str,
        snapshot: SnapshotId | LayerId | None = None,
        *,
        net: NetPolicy = NO_NETWORK,
        limits: Limits | None = None,
    ) -> LocalSandbox:
        """A sandbox with an empty /workspace, or with a snapshot's content; `limits`: others than the factory's.

        Raises SandboxUnavailable: this machine lacks something (the message says the fix), the snapshot is missing or
        damaged, or no slot came free in time.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                await self.slots.acquire()
        except TimeoutError:
            raise SandboxUnavailable(f"no sandbox slot came free within {self._wait_s:g} s: raise max_live") from None
        args = {
            "task": task_id,
            "snapshot": snapshot,
            "limits": asdict(limits) if limits else None,
            "hosts": list(net.hosts),
        }
        try:
            try:
                link, box = await self._created(args)
            except SandboxLost:
                if self._link is None or not self._link.closed:
                    raise
                link, box = await self._created(args)  # the nursery was about to end: by a new one, once
        except SandboxLost as error:
            self.slots.release()
            raise SandboxUnavailable(str(error)) from error
        except BaseException:
            self.slots.release()
            raise
        return LocalSandbox(self, link, box, task_id, net)

    async def _created(self, args: dict[str, Any]) -> tuple[_Link, str]:
        """A nursery and the name of a sandbox that it has made. Raises SandboxLost if it ends meanwhile."""
        link = await self._linked()
        box = f"{link.owner}.{next(link.numbers)}"
        try:
            await link.call("create", {"box": box} | args)
        except asyncio.CancelledError:
            link.send("close", {"box": box})  # its creation may have just succeeded
            raise
        return link, box

    async def probe(self) -> Capabilities:
        """What this machine gives; raises SandboxUnavailable with what to mend."""
        return (await self._linked()).capabilities

    def temporary(self) -> Path:
        """A new name in the store for what is not whole yet; removed with what this worker leaves when it dies."""
        assert self._link is not None, "probe first"
        return self.store / "tmp" / f"{self._link.owner}.{secrets.token_hex(4)}"

    async def _linked(self) -> _Link:
        async with self._starting:
            if self._link is None or self._link.closed:
                self._link = await self._start()
            return self._link

    async def close(self) -> None:
        """Kill every sandbox of this factory; a later `create` starts a new nursery."""
        if self._link is not None:
            await self._link.close()
            self._link = None

    async def _start(self) -> _Link:
        bwrap = find_bwrap()
        owner = secrets.token_hex(6)
        try:
            stores.prepare(self.store)
            stores.reap(self.store)
            journal = stores.open_journal(self.store, owner)
        except OSError as error:
            raise SandboxUnavailable(f"the store {self.store} cannot be used: {error}") from error
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.callback(theirs.close)
            stack.callback(os.close, journal)
            life = os.pidfd_open(os.getpid())
            stack.callback(os.close, life)
            options = {
                "control": theirs.fileno(),
                "journal": journal,
                "owner": life,
                "bwrap": bwrap,
                "store": str(self.store.resolve()),
                "limits": asdict(self.limits),
            }
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, _ROOT, json.dumps(options)],
                pass_fds=(theirs.fileno(), journal, life),
                env={k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"},  # no keys, no tokens
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt of the terminal is the worker's to handle
            )
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
            async with asyncio.timeout(_START_S):
                header, _ = await wire.receive(reader)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            process.kill()
            process.wait()
            raise SandboxUnavailable(f"the nursery did not start: {error!r} (its messages are on stderr)") from error
        except BaseException:
            process.kill()
            process.wait()
            raise
        if "fatal" in header:
            writer.close()
            process.wait()
            raise SandboxUnavailable(header["fatal"])
        return _Link(owner, process, reader, writer, Capabilities(**header["hello"]))


class LocalSandbox(Sandbox):
    """One bubblewrap sandbox; see `Sandbox`."""

    def __init__(self, factory: LocalSandboxes, link: _Link, box: str, task_id: str, net: NetPolicy) -> None:
        self.id = box
        self.factory = factory
        self.net = net
        self.task_id = task_id
        self.capabilities = link.capabilities
        self._link = link
        self._slots: asyncio.Semaphore | None = factory.slots

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
        """See `Sandbox.exec`."""
        argv = argv_of(command)
        args = {"box": self.id, "argv": argv, "cwd": cwd, "timeout": timeout, "background": background}
        answer = await self._link.call("exec", args, stdin, timeout=timeout + _GRACE_S, on_output=on_output)
        return _result(*answer)

    def session(self, name: str = "main") -> Session:
        """See `Sandbox.session`."""
        return _LocalSession(self._link, self.id, name)

    async def read_file(self, path: str) -> bytes:
        """See `Sandbox.read_file`."""
        _, (data,) = await self._link.call("read", {"box": self.id, "path": path})
        return data

    async def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See `Sandbox.write_file`."""
        await self._link.call("write", {"box": self.id, "path": path, "mode": mode}, data)

    async def snapshot(self) -> SnapshotId:
        """See `Sandbox.snapshot`."""
        row, _ = await self._link.call("snapshot", {"box": self.id}, timeout=600.0)
        return row["snapshot"]

    async def freeze(self) -> LayerId:
        """See `Sandbox.freeze`."""
        row, _ = await self._link.call("freeze", {"box": self.id})
        return row["layer"]

    async def pause(self) -> None:
        """See `Sandbox.pause`."""
        await self._link.call("pause", {"box": self.id})

    async def resume(self) -> None:
        """See `Sandbox.resume`."""
        await self._link.call("resume", {"box": self.id})

    async def close(self) -> None:
        """See `Sandbox.close`."""
        slots, self._slots = self._slots, None
        if slots is None:
            return
        try:
            await self._link.call("close", {"box": self.id})
        except SandboxLost:  # the nursery is gone, and with it every process
            pass
        except asyncio.CancelledError:
            self._link.send("close", {"box": self.id})
            raise
        finally:
            slots.release()


class _LocalSession(Session):
    """A shell session of a local sandbox."""

    def __init__(self, link: _Link, box: str, name: str) -> None:
        self.name = name
        self._link, self._box = link, box

    async def run(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        """See `Session.run`."""
        args = {"box": self._box, "name": self.name, "command": command, "timeout": timeout}
        return _result(*await self._link.call("session_run", args, timeout=timeout + _GRACE_S))

    async def close(self) -> None:
        """See `Session.close`."""
        await self._link.call("session_close", {"box": self._box, "name": self.name})


def _result(row: dict[str, Any], blobs: list[bytes]) -> ExecResult:
    row = {key: value for key, value in row.items() if key != "id"}
    return ExecResult(stdout=blobs[0], stderr=blobs[1], **row | {"dropped": tuple(row["dropped"])})


class _Link:
    """The connection to a nursery: numbered requests, answers in any order."""

    def __init__(
        self,
        owner: str,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        capabilities: Capabilities,
    ) -> None:
        self.owner = owner
        self.capabilities = capabilities
        self.numbers = itertools.count()
        self.closed = False
        self._process, self._writer = process, writer
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], list[bytes]]]] = {}
        self._listeners: dict[int, OnOutput] = {}
        self._requests = itertools.count()
        self._pump = asyncio.create_task(self._receive(reader))

    def send(self, op: str, args: dict[str, Any], *blobs: bytes, stream: bool = False) -> int:
        """Send a request without waiting; its number."""
        number = next(self._requests)
        if not self.closed:
            self._writer.write(wire.pack({"id": number, "op": op, "args": args, "stream": stream}, *blobs))
        return number

    async def call(
        self, op: str, args: dict[str, Any], *blobs: bytes, timeout: float = 120.0, on_output: OnOutput | None = None
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request and wait for its answer; cancelling this cancels the work on the other side."""
        if self.closed:
            raise SandboxLost("the nursery has ended")
        number = self.send(op, args, *blobs, stream=on_output is not None)
        if on_output is not None:
            self._listeners[number] = on_output
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                row, data = await answer
        except BaseException as error:
            if not self.closed:
                self._writer.write(wire.pack({"op": "cancel", "of": number}))
            if isinstance(error, TimeoutError):
                raise SandboxLost(f"the nursery did not answer {op!r} within {timeout:g} s") from None
            raise
        finally:
            del self._waiting[number]
            self._listeners.pop(number, None)
        if "error" in row:
            raise error_from_json(row["error"])
        return row, data

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                row, data = await wire.receive(reader)
                if "stream" in row:
                    if (listener := self._listeners.get(row["id"])) is not None:
                        listener(row["stream"], data[0])
                elif (answer := self._waiting.get(row["id"])) is not None and not answer.done():
                    answer.set_result((row, data))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:  # also where the event loop ends and cancels this
            self.closed = True
            self._writer.close()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(SandboxLost("the nursery has ended"))
            await self._bury()

    async def _bury(self) -> None:
        """Wait until the nursery, and with it every process in it, is dead."""
        for _ in range(int(_END_S / 0.002)):
            if self._process.poll() is not None:
                return
            await asyncio.sleep(0.002)
        self._process.kill()  # its pid 1 has asked to die with it
        self._process.wait()

    async def close(self) -> None:
        """End the nursery and return when it is dead."""
        self.closed = True
        self._writer.close()
        await asyncio.wait([self._pump])
