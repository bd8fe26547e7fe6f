"""What a sandbox is, whichever backend provides it: the nouns, the limits and the errors."""

from __future__ import annotations

import asyncio
import errno
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

SnapshotId = str
"""Hex digest of the content of /workspace: names, types, modes, link targets, extended attributes and bytes; and of the
state of its shell sessions where it has some. Durable: it is in the store when it is returned."""

LayerId = str
"""`layer-...` (or a SnapshotId): a frozen content of /workspace that only the factory that made it can start sandboxes
from. It lives until its sandbox is frozen again or closed, and as long as sandboxes that started from it."""
LAYER = "layer-"

WORKSPACE = "/workspace"
"""The directory that persists over turns and snapshots, and where commands start."""


class SandboxError(RuntimeError):
    """Base of what a sandbox raises; none of them is the agent's fault unless it says so."""


class SandboxUnavailable(SandboxError):
    """This machine cannot give a sandbox (now): infrastructure, so the sample is masked. The message says the fix."""


class SandboxLost(SandboxError):
    """The sandbox is gone (its lifetime, its owner's nursery, its first process): its state cannot be continued."""


class LimitExceeded(SandboxError):
    """The agent asked for more than its limits allow; `kind` names the limit (disk, file, snapshot)."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Unsupported(SandboxError):
    """The backend lacks what was asked for."""


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use."""

    memory_mb: int = 512
    """Memory of all processes of the sandbox together (watched), and private memory of each one (hard)."""
    pids: int = 64
    """Processes and threads alive at once."""
    disk_mb: int = 64
    """/workspace, /tmp and /dev/shm together (they are in memory)."""
    files: int = 8192
    """Files, directories and links in them."""
    file_mb: int = 32
    """Largest single file, also of `read_file` and `write_file`."""
    output_bytes: int = 1 << 16
    """Kept of each output stream of a command (first and last half); the rest is counted and dropped."""
    lifetime_s: float = 600.0
    """Hard lifetime from creation, in seconds: then it is killed, whatever it does."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            whole = isinstance(value, int) or (limit.name == "lifetime_s" and isinstance(value, float))
            if isinstance(value, bool) or not whole or not 0 < value < math.inf:  # -1 would be no limit to the kernel
                raise ValueError(f"{limit.name}={value!r} is no limit: write a positive number")


@dataclass(frozen=True)
class Capabilities:
    """What the backend really gives on this machine."""

    isolation: str
    """`namespaces`: user, pid, network, mount, ipc and uts namespaces on the shared kernel."""
    workspace: str
    """How /workspace starts from a snapshot: `overlay` (shared lower layer) or `copy` (private copy)."""
    network: str
    """`none`: there is no network. `blocked`: the provider says that it blocks it. `policy`: a rule of the cluster's,
    only as good as its network plug-in."""
    memory: str
    """`watched`: the kernel limits each process; their sum is looked at four times a second while a command runs.
    `hard`: the kernel limits their sum. `provider`: as the provider sells it."""
    disk: str
    """`hard`: the filesystem itself refuses. `none`: not limited by us."""
    sessions: str = "replayed"
    """`shell`: one bash lives between commands. `replayed`: each command loads and saves the shell's state; background
    jobs of a session are processes of the sandbox, not of its shell."""
    streaming: bool = False
    """Whether `on_output` is called while the command runs, or once at its end."""
    freeze: bool = False
    """Whether `freeze` and `fork` work."""
    pause: bool = False
    """Whether `pause` and `resume` work."""
    allow_list: bool = False
    """Whether `NetPolicy.hosts` works."""
    processes_survive_snapshot: bool = False


@dataclass(frozen=True)
class NetPolicy:
    """What a sandbox may reach: nothing, or what is listed, through an HTTP proxy at 127.0.0.1:3128."""

    hosts: tuple[str, ...] = ()
    """Exact `host:port`. A name that resolves to a private, loopback or link-local address is refused; such an address
    is reached only where it is listed itself."""

    def __post_init__(self) -> None:
        for host in self.hosts:
            if not isinstance(host, str):
                raise ValueError(f"{host!r}: write one exact host:port")
            name, _, port = host.rpartition(":")
            if not name or not port.isdecimal() or not 0 < int(port) < 65536 or "*" in name:
                raise ValueError(f"{host!r}: write one exact host:port")


NO_NETWORK = NetPolicy()


@dataclass(frozen=True)
class ExecResult:
    """What one command did. `code` is None where a signal ended it (then `signal` is set).

    `timed_out` and `out_of_memory` say that it was killed for that, with every process of the sandbox.
    The output is the agent's word: rewards never come from it. `dropped` counts the bytes of stdout and stderr beyond
    the cap; in their place the kept bytes hold one line that says so. `leftovers` is whether anything that was still
    running was killed.
    """

    stdout: bytes
    stderr: bytes
    code: int | None
    signal: int | None
    timed_out: bool
    out_of_memory: bool
    dropped: tuple[int, int]
    leftovers: bool
    seconds: float
    session_restarted: bool = False
    """The session's shell was lost in this command; the next one has a new shell, as it was at the last freeze."""

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with code 0."""
        return self.code == 0


OnOutput = Callable[[int, bytes], None]
"""Called with 1 (stdout) or 2 (stderr) and bytes, as they come; at most `Limits.output_bytes` of them in all."""


class Session(ABC):
    """A shell that keeps directory, variables, functions, aliases and options from one command to the next.

    It is the agent's: its output and exit codes are the agent's word. A snapshot keeps what it holds.
    """

    name: str

    @abstractmethod
    async def run(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        """Run shell text. On timeout what it started is interrupted, then killed; a shell that does not come back is
        replaced (`session_restarted`). Background jobs of the command stay."""

    @abstractmethod
    async def close(self) -> None:
        """End the shell."""


class Sandbox(ABC):
    """One live sandbox; an async context manager. Calls run one after another in the order they were made.

    All methods raise SandboxLost when it is gone, and Unsupported where `capabilities` says no.
    """

    id: str
    task_id: str
    capabilities: Capabilities
    factory: SandboxFactory
    net: NetPolicy = NO_NETWORK

    @abstractmethod
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
        """Run a shell command (str, by bash) or an argument list; fresh process, seconds of wall time at most.

        On timeout everything that it started is killed, and the next command works. What a command leaves running is
        killed when it returns, unless `background`: that is a service, and goes on.
        """

    @abstractmethod
    def session(self, name: str = "main") -> Session:
        """The shell session of that name, started by its first command."""

    @abstractmethod
    async def read_file(self, path: str) -> bytes:
        """Bytes of a regular file below /workspace (relative, or absolute below it).

        Raises FileNotFoundError, PermissionError (a symbolic link anywhere in the path, or a path that leaves
        /workspace), IsADirectoryError, LimitExceeded (larger than `Limits.file_mb`).
        """

    @abstractmethod
    async def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Create or replace a regular file below /workspace, with its directories; raises as `read_file`."""

    @abstractmethod
    async def snapshot(self) -> SnapshotId:
        """Freeze all processes, store the content of /workspace, continue; returns when it is on disk."""

    async def freeze(self) -> LayerId:
        """A frozen content of /workspace for `fork` and for a verdict on the same machine.

        Independent of its size where nothing runs in the sandbox; else processes are stopped while it is copied.
        """
        raise Unsupported(f"this backend ({self.capabilities.isolation}) cannot freeze: take a snapshot")

    async def fork(self, n: int) -> list[Sandbox]:
        """`n` sandboxes with the content (and the sessions) of this one; all or none."""
        layer = await self.freeze()
        made = await asyncio.gather(
            *(self.factory.create(self.task_id, layer, net=self.net) for _ in range(n)), return_exceptions=True
        )
        good = [one for one in made if isinstance(one, Sandbox)]
        for error in made:
            if isinstance(error, BaseException):
                await asyncio.gather(*(one.close() for one in good))
                raise error
        return good

    async def pause(self) -> None:
        """Stop every process where it is; commands are refused until `resume`."""
        raise Unsupported(f"this backend ({self.capabilities.isolation}) cannot pause")

    async def resume(self) -> None:
        """Let every process go on."""
        raise Unsupported(f"this backend ({self.capabilities.isolation}) cannot pause")

    @abstractmethod
    async def close(self) -> None:
        """Kill every process and give everything back; closing twice is nothing."""

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class SandboxFactory(Protocol):
    """Creates sandboxes. A verdict is always given in a fresh one, created from the agent's snapshot."""

    async def create(
        self, task_id: str, snapshot: SnapshotId | LayerId | None = None, *, net: NetPolicy = NO_NETWORK
    ) -> Sandbox:
        """A sandbox whose /workspace is empty, or the content of a snapshot.

        Raises SandboxUnavailable, and Unsupported for a policy that the backend cannot keep.
        """
        ...

    async def close(self) -> None:
        """Close every sandbox of this factory."""
        ...


def argv_of(command: str | Sequence[str]) -> list[str]:
    """The arguments of what `Sandbox.exec` is given; raises ValueError where there is none, or one that is no text."""
    argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
    if not argv:
        raise ValueError("an empty argument list is no command")
    if wrong := [a for a in argv if not isinstance(a, str)]:
        raise ValueError(f"{wrong[0]!r} is no argument: write {str(wrong[0])!r}")
    return argv


def error_to_json(error: BaseException) -> dict[str, Any]:
    """An error as a JSON row, for the wire between nursery and worker."""
    if isinstance(error, LimitExceeded):
        return {"type": "LimitExceeded", "kind": error.kind, "message": str(error)}
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        kind = "file" if error.errno == errno.EFBIG else "disk"
        return {"type": "LimitExceeded", "kind": kind, "message": f"{kind}: {error.strerror}"}
    if isinstance(error, OSError):
        return {"type": "OSError", "errno": error.errno, "message": error.strerror or str(error)}
    name = type(error).__name__ if isinstance(error, SandboxError) else "SandboxUnavailable"
    return {"type": name, "message": str(error) if isinstance(error, SandboxError) else f"internal error: {error!r}"}


def error_from_json(row: dict[str, Any]) -> Exception:
    """Inverse of `error_to_json`; OSErrors come back as their subclass (FileNotFoundError, ...)."""
    if row["type"] == "LimitExceeded":
        return LimitExceeded(row["kind"], row["message"])
    if row["type"] == "OSError":
        return OSError(row["errno"], row["message"])
    kinds = {c.__name__: c for c in (SandboxUnavailable, SandboxLost, Unsupported)}
    return kinds.get(row["type"], SandboxUnavailable)(row["message"])
