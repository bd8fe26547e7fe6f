"""Sandboxes of another machine's `jointrl sandboxd`. The client's side of the lease, and of its snapshots.

A snapshot is in the worker's own store when its id is returned, as with local sandboxes: it outlives the other machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import ssl
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from environments.sandbox import archive, http, wire
from environments.sandbox import store as stores
from environments.sandbox.api import (
    LAYER,
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
    error_from_json,
)
from environments.sandbox.sandboxd import PORT, result_of

_GRACE_S = 30.0  # beyond a command's own timeout
_IDLE_S = 15.0  # after which a connection is not used again; the server waits longer
_TRIES = 3  # of what can be asked again


class RemoteSandboxes:
    """The factory of one worker (a `SandboxFactory`) on `url` (http or https), bound to the event loop that uses it.

    `lease_s`: how long the server keeps this worker's sandboxes when it hears nothing.
    Raises ValueError for a URL that is none.
    """

    def __init__(
        self,
        url: str,
        token: str,
        store: str | Path,
        limits: Limits | None = None,
        max_live: int = 64,
        wait_s: float = 120.0,
        lease_s: float = 60.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(f"{url!r} is no sandboxd: write http://HOST:PORT or https://HOST:PORT")
        self.url = url
        self.store = Path(store)
        self.limits = limits or Limits()
        self.slots = asyncio.Semaphore(max_live)
        self._address = (parts.hostname, parts.port or PORT)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._token, self._wait_s, self._lease_s = token, wait_s, lease_s
        self._owner = secrets.token_hex(16)
        self._starting = asyncio.Lock()
        self._capabilities: Capabilities | None = None
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._journal = -1
        self._beat: asyncio.Task[None] | None = None

    async def probe(self) -> Capabilities:
        """What the server gives; raises SandboxUnavailable where there is none, or it refuses the token."""
        async with self._starting:
            if self._capabilities is None:
                row, _ = await self.call("hello", {}, again=True)
                self._capabilities = Capabilities(**row["capabilities"])
            return self._capabilities

    async def create(
        self, task_id: str, snapshot: SnapshotId | LayerId | None = None, *, net: NetPolicy = NO_NETWORK
    ) -> RemoteSandbox:
        """See `SandboxFactory.create`. A snapshot that the server lacks is sent to it."""
        capabilities = await self.probe()
        try:
            async with asyncio.timeout(self._wait_s):
                await self.slots.acquire()
        except TimeoutError:
            raise SandboxUnavailable(f"no sandbox slot came free within {self._wait_s:g} s: raise max_live") from None
        key = secrets.token_hex(16)
        try:
            if self._beat is None or self._beat.done():
                self._beat = asyncio.create_task(self._heartbeat())
            if snapshot is not None and not snapshot.startswith(LAYER):
                await self._bring(snapshot)
            args = {
                "key": key,
                "task": task_id,
                "snapshot": snapshot,
                "limits": asdict(self.limits),
                "hosts": list(net.hosts),
            }
            row, _ = await self.call("create", args, timeout=self._wait_s, again=True)
        except BaseException as error:
            self.slots.release()
            if isinstance(error, asyncio.CancelledError):
                asyncio.get_running_loop().create_task(self._forget(key))  # it may exist already
            if isinstance(error, SandboxLost):
                raise SandboxUnavailable(str(error)) from error
            raise
        return RemoteSandbox(self, row["box"], key, task_id, capabilities, net)

    async def close(self) -> None:
        """Close every sandbox of this factory."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
            with contextlib.suppress(SandboxLost, SandboxUnavailable):  # its lease ends them all the same
                await self.call("leave", {})
        for _, _, writer in self._idle:
            writer.close()
        self._idle.clear()
        if self._journal >= 0:
            os.close(self._journal)
            self._journal = -1

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 4)
            with contextlib.suppress(SandboxLost, SandboxUnavailable):  # the next one, or the next operation, will tell
                await self.call("heartbeat", {}, timeout=self._lease_s / 4)

    async def _forget(self, key: str) -> None:
        with contextlib.suppress(SandboxLost, SandboxUnavailable):
            await self.call("close", {"key": key}, again=True)

    # ---------------------------------------------------------------------------------------------------- snapshots

    async def fetch(self, snapshot: SnapshotId) -> None:
        """Copy a snapshot from the server into the store, unless it is there."""
        final = self._stored(snapshot)
        if final.exists():
            return
        temporary = self.store / "tmp" / f"{self._owner}.{secrets.token_hex(4)}"
        try:
            head, reader, writer = await self._send("GET", f"snapshots/{snapshot}", b"", 600.0)
            with open(temporary, "wb") as out:
                async for data in http.parts(reader, head.length(1 << 40)):
                    out.write(data)
                out.flush()
                os.fsync(out.fileno())
            self._keep(reader, writer)
            await asyncio.to_thread(archive.verify, temporary, snapshot)
            os.rename(temporary, final)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise SandboxUnavailable(f"{self.url} broke off in the middle of snapshot {snapshot}") from error
        finally:
            temporary.unlink(missing_ok=True)

    async def _bring(self, snapshot: SnapshotId) -> None:
        row, _ = await self.call("has", {"snapshot": snapshot}, again=True)
        if row["has"]:
            return
        try:
            data = self._stored(snapshot).read_bytes()
        except FileNotFoundError:
            raise SandboxUnavailable(f"snapshot {snapshot} is neither in {self.store} nor at {self.url}") from None
        _, reader, writer = await self._send("PUT", f"snapshots/{snapshot}", data, 600.0)
        self._keep(reader, writer)

    def _stored(self, snapshot: SnapshotId) -> Path:
        if self._journal < 0:  # so that what a dead worker left unfinished is found
            stores.prepare(self.store)
            stores.reap(self.store)
            self._journal = stores.open_journal(self.store, self._owner)
        return self.store / "snapshots" / f"{snapshot}.tar"

    # ----------------------------------------------------------------------------------------------------- requests

    async def call(
        self,
        operation: str,
        args: dict[str, Any],
        *blobs: bytes,
        timeout: float = 120.0,
        on_output: OnOutput | None = None,
        again: bool = False,
    ) -> tuple[dict[str, Any], list[bytes]]:
        """One operation; cancelling this cancels it there. `again`: it may be asked again when the connection broke.

        Raises what the operation raised there, SandboxUnavailable where the server cannot be reached, and SandboxLost
        where the connection broke while it worked: what it has done is not known.
        """
        frame = wire.pack({"owner": self._owner, "lease_s": self._lease_s, **args}, *blobs)
        for attempt in range(_TRIES):
            try:
                async with asyncio.timeout(timeout + _GRACE_S):
                    return await self._once(operation, frame, timeout, on_output)
            except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, ValueError) as error:
                if not again or attempt == _TRIES - 1:
                    raise SandboxLost(f"{self.url} broke off in {operation!r}: {error!r}") from error
                await asyncio.sleep(0.1 * 4**attempt)
        raise AssertionError("unreachable")

    async def _once(
        self, operation: str, frame: bytes, timeout: float, on_output: OnOutput | None
    ) -> tuple[dict[str, Any], list[bytes]]:
        _, reader, writer = await self._send("POST", operation, frame, timeout)
        try:
            answer: tuple[dict[str, Any], list[bytes]] | None = None
            async for data in http.chunks(reader):
                row, blobs = wire.unpack(data)
                if "stream" not in row:
                    answer = row, blobs
                elif on_output is not None:
                    on_output(row["stream"], blobs[0])
            if answer is None:
                raise asyncio.IncompleteReadError(b"", 1)
        except BaseException:
            writer.close()
            raise
        self._keep(reader, writer)
        if "error" in answer[0]:
            raise error_from_json(answer[0]["error"])
        return answer[0]["done"], answer[1]

    async def _send(
        self, method: str, path: str, body: bytes, timeout: float
    ) -> tuple[http.Head, asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request; the answer's head, and the connection for its body."""
        reader, writer = await self._connect()
        try:
            start = f"{method} /v1/{path} HTTP/1.1"
            host = f"{self._address[0]}:{self._address[1]}"
            authorization = f"Bearer {self._token}"
            writer.write(http.head(start, Host=host, Authorization=authorization, Content_Length=len(body)))
            writer.write(body)
            with contextlib.suppress(ConnectionError):  # it may have refused, and said why, before it read everything
                await writer.drain()
            head = await http.read_head(reader)
            if head is None:
                raise ConnectionResetError("no answer")
            if head.start[1] not in ("200", "204"):
                said = (await reader.read(1000)).decode("utf-8", "replace").strip()
                raise SandboxUnavailable(f"{self.url} refused ({head.start[1]}): {said}")
            return head, reader, writer
        except http.Refused as error:
            writer.close()
            raise SandboxUnavailable(f"{self.url} does not speak as sandboxd does: {error}") from None
        except BaseException:
            writer.close()
            raise

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            since, reader, writer = self._idle.pop()
            if time.monotonic() - since < _IDLE_S and not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        try:
            return await asyncio.open_connection(*self._address, limit=http.HEAD_BYTES, ssl=self._tls)
        except (OSError, ssl.SSLError) as error:
            raise SandboxUnavailable(
                f"no sandboxd at {self.url} ({error}): start `jointrl sandboxd` there, or change sandbox.url"
            ) from error

    def _keep(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._idle.append((time.monotonic(), reader, writer))


class RemoteSandbox(Sandbox):
    """One sandbox of a sandboxd; see `Sandbox`."""

    def __init__(
        self,
        factory: RemoteSandboxes,
        box: str,
        key: str,
        task_id: str,
        capabilities: Capabilities,
        net: NetPolicy,
    ) -> None:
        self.id, self.task_id, self.net = box, task_id, net
        self.capabilities = capabilities
        self.factory: RemoteSandboxes = factory
        self._key: str | None = key

    async def _call(self, operation: str, args: dict[str, Any], *blobs: bytes, **options: Any) -> Any:
        return await self.factory.call(operation, {"box": self.id, **args}, *blobs, **options)

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
        if not command and not isinstance(command, str):
            raise ValueError("an empty argument list is no command")
        args = {
            "command": command if isinstance(command, str) else list(command),
            "timeout": timeout,
            "cwd": cwd,
            "background": background,
            "stream": on_output is not None,
        }
        return result_of(*await self._call("exec", args, stdin, timeout=timeout, on_output=on_output))

    def session(self, name: str = "main") -> Session:
        """See `Sandbox.session`."""
        return _RemoteSession(self, name)

    async def read_file(self, path: str) -> bytes:
        """See `Sandbox.read_file`."""
        _, (data,) = await self._call("read", {"path": path}, again=True)
        return data

    async def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See `Sandbox.write_file`."""
        await self._call("write", {"path": path, "mode": mode}, data, again=True)

    async def snapshot(self) -> SnapshotId:
        """See `Sandbox.snapshot`."""
        row, _ = await self._call("snapshot", {}, timeout=600.0, again=True)
        await self.factory.fetch(row["snapshot"])
        return row["snapshot"]

    async def freeze(self) -> LayerId:
        """See `Sandbox.freeze`."""
        row, _ = await self._call("freeze", {}, again=True)
        return row["layer"]

    async def pause(self) -> None:
        """See `Sandbox.pause`."""
        await self._call("pause", {})

    async def resume(self) -> None:
        """See `Sandbox.resume`."""
        await self._call("resume", {}, again=True)

    async def close(self) -> None:
        """See `Sandbox.close`."""
        key, self._key = self._key, None
        if key is None:
            return
        try:
            with contextlib.suppress(SandboxLost, SandboxUnavailable):  # its lease ends it all the same
                await self.factory.call("close", {"key": key}, again=True)
        finally:
            self.factory.slots.release()


class _RemoteSession(Session):
    """A shell session of a remote sandbox."""

    def __init__(self, sandbox: RemoteSandbox, name: str) -> None:
        self.name = name
        self._sandbox = sandbox

    async def run(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        """See `Session.run`."""
        args = {"name": self.name, "command": command, "timeout": timeout}
        return result_of(*await self._sandbox._call("session_run", args, timeout=timeout))

    async def close(self) -> None:
        """See `Session.close`."""
        await self._sandbox._call("session_close", {"name": self.name})
