"""`jointrl sandboxd`: this machine's sandboxes for workers on other machines, over HTTP.

    POST /v1/<operation>       body: one frame (`wire.py`); answer: frames in chunks, output as it comes, then results
    GET, PUT /v1/snapshots/ID  a snapshot's archive

Every request carries the token. A client is an owner with a secret name and a lease that each of its requests renews:
where it falls silent its sandboxes are closed. Their hard lifetime is kept here. An operation whose connection breaks
is cancelled. Should the server itself die, the kernel kills everything (`nursery.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import re
import secrets
import signal
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from environments.sandbox import api, archive, http, wire
from environments.sandbox.local import LocalSandbox, LocalSandboxes

PORT = 8431
LONGEST_LEASE_S = 3600.0
_HEAD_S = 30.0  # from a connection's opening, or its last answer, to the next request
_STALL_S = 60.0  # without a byte in the middle of a body, or one taken of an answer: the client is gone
_SWEEP_S = 0.25  # between two looks at the leases
_FRAME_BYTES = 1 << 20  # of a request besides a file's content
_ID = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"[0-9a-f]{32}")


@dataclass
class _Owner:
    """One client: until when it lives, and what it has."""

    expires: float
    boxes: dict[str, LocalSandbox] = field(default_factory=dict)
    keys: dict[str, asyncio.Task[LocalSandbox]] = field(default_factory=dict)
    """Creations by the client's key: a repeated request gets the same sandbox."""
    gone: bool = False


class Sandboxd:
    """The server. `limits` are the most that a client may ask for."""

    def __init__(self, sandboxes: LocalSandboxes, token: str) -> None:
        self.sandboxes = sandboxes
        self._token = token.encode()
        self._owners: dict[str, _Owner] = {}
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Listen; the port. Raises SandboxUnavailable if this machine gives no sandboxes, OSError for the address."""
        await self.sandboxes.probe()
        self._server = await asyncio.start_server(self._serve, host, port, limit=http.HEAD_BYTES, ssl=tls)
        self._sweeper = asyncio.create_task(self._sweep())
        return self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and close every sandbox."""
        if self._server is not None and self._sweeper is not None:
            self._server.close()
            self._sweeper.cancel()
        await self.sandboxes.close()

    # -------------------------------------------------------------------------------------------------- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                async with asyncio.timeout(_HEAD_S):
                    head = await http.read_head(reader)
                if head is None:
                    return
                self._authorise(head)
                await self._answer(head, reader, writer)
                await _taken(writer)
        except http.Refused as error:
            text = f"{error}\n".encode()
            start = f"HTTP/1.1 {error.status} Refused"
            writer.write(http.head(start, Content_Length=len(text), Connection="close") + text)
            with contextlib.suppress(TimeoutError, ConnectionError):
                await _taken(writer)
        except TimeoutError:
            writer.transport.abort()  # what is still to be sent would keep the connection for ever
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _authorise(self, head: http.Head) -> None:
        kind, _, token = head.headers.get("authorization", "").partition(" ")
        # of equal length whatever was sent, and in constant time
        if kind != "Bearer" or not hmac.compare_digest(token.encode("latin-1"), self._token):
            raise http.Refused(401, "the token is missing or wrong")

    async def _answer(self, head: http.Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, _ = head.start
        if path.startswith("/v1/snapshots/") and _ID.fullmatch(path.rpartition("/")[2]):
            file = self.sandboxes.store / "snapshots" / f"{path.rpartition('/')[2]}.tar"
            if method == "GET":
                return await self._send_file(file, writer)
            if method == "PUT":
                return await self._take_file(head, file, reader, writer)
        operation = getattr(self, f"_op_{path.removeprefix('/v1/')}", None)
        if method != "POST" or operation is None or not path.startswith("/v1/"):
            raise http.Refused(404, f"no {method} {path}")
        most = (self.sandboxes.limits.file_mb << 20) + _FRAME_BYTES
        try:
            body = [data async for data in http.parts(reader, head.length(most), _STALL_S)]
            args, blobs = wire.unpack(b"".join(body))
        except ValueError:
            raise http.Refused(400, "the body is no frame") from None
        writer.write(http.head("HTTP/1.1 200 OK", Transfer_Encoding="chunked"))

        def tell(stream: int, data: bytes) -> None:
            writer.write(http.chunk(wire.pack({"stream": stream}, data)))

        frame = await self._run(operation, args, blobs, tell, reader)
        writer.write(http.chunk(frame) + http.chunk(b""))

    async def _run(
        self,
        operation: Callable[..., Coroutine[Any, Any, tuple[dict[str, Any], list[bytes]]]],
        args: dict[str, Any],
        blobs: list[bytes],
        tell: Callable[[int, bytes], None],
        reader: asyncio.StreamReader,
    ) -> bytes:
        """The last frame of an operation, which is cancelled where the client hangs up."""
        if operation == self._op_exec:
            args["tell"] = tell
        work = asyncio.create_task(self._carry_out(operation, args, blobs))
        hung_up = asyncio.create_task(reader.read(1))  # a client waits for the answer before it says more
        try:
            await asyncio.wait({work, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise asyncio.IncompleteReadError(b"", 1)
            row, out = work.result()
            return wire.pack({"done": row}, *out)
        except (api.SandboxError, OSError) as error:
            return wire.pack({"error": api.error_to_json(error)})
        except (TypeError, ValueError) as error:
            return wire.pack({"error": api.error_to_json(api.Unsupported(f"not a request of sandboxd: {error}"))})
        finally:
            for task in (work, hung_up):
                task.cancel()
            await asyncio.wait({work, hung_up})

    async def _carry_out(
        self,
        operation: Callable[..., Coroutine[Any, Any, tuple[dict[str, Any], list[bytes]]]],
        args: dict[str, Any],
        blobs: list[bytes],
    ) -> tuple[dict[str, Any], list[bytes]]:
        return await operation(self._owner(args), *blobs, **args)

    async def _send_file(self, file: Path, writer: asyncio.StreamWriter) -> None:
        if not file.exists():
            raise http.Refused(404, "this snapshot is not in the store")
        with open(file, "rb") as opened:
            writer.write(http.head("HTTP/1.1 200 OK", Content_Length=os.fstat(opened.fileno()).st_size))
            while data := opened.read(http.PART_BYTES):
                writer.write(data)
                await _taken(writer)

    async def _take_file(
        self, head: http.Head, file: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        length = head.length(4 * self.sandboxes.limits.disk_mb << 20)
        temporary = self.sandboxes.temporary()
        try:
            with open(temporary, "wb") as out:
                async for data in http.parts(reader, length, _STALL_S):
                    out.write(data)
            await asyncio.to_thread(archive.verify, temporary, file.stem)
            os.rename(temporary, file)
        except api.SandboxUnavailable as error:
            raise http.Refused(422, str(error)) from None
        finally:
            temporary.unlink(missing_ok=True)
        writer.write(http.head("HTTP/1.1 204 Kept"))

    # --------------------------------------------------------------------------------------------------- operations

    def _owner(self, args: dict[str, Any]) -> _Owner:
        """The client that a request names, with its lease renewed."""
        name, lease = str(args.pop("owner", "")), args.pop("lease_s", 0)
        if not _OWNER.fullmatch(name) or not isinstance(lease, int | float) or not 0 < lease <= LONGEST_LEASE_S:
            raise ValueError(f"an owner is 32 hex digits, a lease at most {LONGEST_LEASE_S:g} s")
        owner = self._owners.setdefault(name, _Owner(0.0))
        owner.expires = asyncio.get_running_loop().time() + lease
        return owner

    async def _op_hello(self, owner: _Owner) -> Any:
        return {"capabilities": asdict(await self.sandboxes.probe()), "limits": asdict(self.sandboxes.limits)}, []

    async def _op_heartbeat(self, owner: _Owner) -> Any:
        return {"boxes": sorted(owner.boxes)}, []

    async def _op_has(self, owner: _Owner, *, snapshot: str) -> Any:
        known = _ID.fullmatch(snapshot) and (self.sandboxes.store / "snapshots" / f"{snapshot}.tar").exists()
        return {"has": bool(known)}, []

    async def _op_create(
        self, owner: _Owner, *, key: str, task: str, snapshot: str | None, limits: dict[str, Any], hosts: list[str]
    ) -> Any:
        wanted, most = api.Limits(**limits), self.sandboxes.limits
        for limit in fields(most):
            if getattr(wanted, limit.name) > getattr(most, limit.name):
                raise api.Unsupported(
                    f"this sandboxd gives at most {limit.name}={getattr(most, limit.name)}, not "
                    f"{getattr(wanted, limit.name)}: ask for less, or start it with more"
                )
        if key not in owner.keys:
            net = api.NetPolicy(tuple(hosts))
            making = self.sandboxes.create(task, snapshot, net=net, limits=wanted)
            owner.keys[key] = asyncio.create_task(self._make(owner, making))
        try:
            sandbox = await asyncio.shield(owner.keys[key])
        except api.SandboxError:
            owner.keys.pop(key, None)  # it may be tried again
            raise
        return {"box": sandbox.id}, []

    async def _make(self, owner: _Owner, making: Coroutine[Any, Any, LocalSandbox]) -> LocalSandbox:
        sandbox = await making
        if owner.gone:
            await sandbox.close()
            raise api.SandboxLost("its owner's lease ran out while it was created")
        owner.boxes[sandbox.id] = sandbox
        return sandbox

    def _box(self, owner: _Owner, box: str) -> LocalSandbox:
        if box not in owner.boxes:
            raise api.SandboxLost(
                f"sandbox {box} is gone: closed, its owner's lease ran out, or sandboxd was restarted"
            )
        return owner.boxes[box]

    async def _op_exec(
        self, owner: _Owner, stdin: bytes, *, box: str, stream: bool, tell: api.OnOutput, **args: Any
    ) -> Any:
        result = await self._box(owner, box).exec(stdin=stdin, on_output=tell if stream else None, **args)
        return result_row(result)

    async def _op_session_run(self, owner: _Owner, *, box: str, name: str, command: str, timeout: float) -> Any:
        return result_row(await self._box(owner, box).session(name).run(command, timeout=timeout))

    async def _op_session_close(self, owner: _Owner, *, box: str, name: str) -> Any:
        await self._box(owner, box).session(name).close()
        return {}, []

    async def _op_read(self, owner: _Owner, *, box: str, path: str) -> Any:
        return {}, [await self._box(owner, box).read_file(path)]

    async def _op_write(self, owner: _Owner, data: bytes, *, box: str, path: str, mode: int) -> Any:
        await self._box(owner, box).write_file(path, data, mode)
        return {}, []

    async def _op_snapshot(self, owner: _Owner, *, box: str) -> Any:
        return {"snapshot": await self._box(owner, box).snapshot()}, []

    async def _op_freeze(self, owner: _Owner, *, box: str) -> Any:
        return {"layer": await self._box(owner, box).freeze()}, []

    async def _op_pause(self, owner: _Owner, *, box: str) -> Any:
        await self._box(owner, box).pause()
        return {}, []

    async def _op_resume(self, owner: _Owner, *, box: str) -> Any:
        await self._box(owner, box).resume()
        return {}, []

    async def _op_close(self, owner: _Owner, *, key: str) -> Any:
        """Close by creation key: also what is still being created, and what never was."""
        if (making := owner.keys.pop(key, None)) is not None:
            with contextlib.suppress(api.SandboxError):
                sandbox = await making
                owner.boxes.pop(sandbox.id, None)
                await sandbox.close()
        return {}, []

    async def _op_leave(self, owner: _Owner) -> Any:
        owner.expires = 0.0
        await self._end(owner)
        return {}, []

    async def _end(self, owner: _Owner) -> None:
        owner.gone = True
        for name in [name for name, one in self._owners.items() if one is owner]:
            del self._owners[name]
        for sandbox in list(owner.boxes.values()):
            await sandbox.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = asyncio.get_running_loop().time()
            for owner in [one for one in self._owners.values() if one.expires < now]:
                await self._end(owner)


async def _taken(writer: asyncio.StreamWriter) -> None:
    """Wait until most of what was written is sent; raises TimeoutError where the client takes none of it."""
    async with asyncio.timeout(_STALL_S):
        await writer.drain()


def result_row(result: api.ExecResult) -> tuple[dict[str, Any], list[bytes]]:
    """A result as a JSON row and blobs; `result_of` reads it."""
    row = asdict(result)
    return row, [row.pop("stdout"), row.pop("stderr")]


def result_of(row: dict[str, Any], blobs: list[bytes]) -> api.ExecResult:
    """Inverse of `result_row`."""
    return api.ExecResult(stdout=blobs[0], stderr=blobs[1], **row | {"dropped": tuple(row["dropped"])})


def read_token(path: Path, create: bool = False) -> str:
    """The token of a file that nobody else may read; a new one where there is no such file and `create`.

    Raises ValueError with what to mend.
    """
    if create and not path.exists():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    try:
        if path.stat().st_mode & 0o077:
            raise ValueError(f"others can read the token in {path}: run `chmod 600 {path}`")
        token = path.read_text().strip()
    except OSError as error:
        raise ValueError(f"the token file {path} cannot be read: {error.strerror}") from None
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise ValueError(f"{path} holds no token: at least 16 printable ASCII characters")
    return token


async def serve_forever(server: Sandboxd, host: str, port: int, tls: ssl.SSLContext | None) -> None:
    """Listen until SIGINT or SIGTERM, and say where."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        bound = await server.start(host, port, tls)
        print(f"sandboxd: {'https' if tls else 'http'}://{host}:{bound}", flush=True)
        await stop.wait()
    finally:
        await server.close()
