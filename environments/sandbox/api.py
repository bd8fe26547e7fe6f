"""What a sandbox is, whichever backend provides it: the nouns, the limits and the errors."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

SnapshotId = str
"""Hex digest of the content of /workspace: names, types, modes, link targets, extended attributes and bytes."""

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


@dataclass(frozen=True)
class Capabilities:
    """What the backend really gives on this machine."""

    isolation: str
    """`namespaces`: user, pid, network, mount, ipc and uts namespaces on the shared kernel."""
    workspace: str
    """How /workspace starts from a snapshot: `overlay` (shared lower layer) or `copy` (private copy)."""
    network: str
    """`none`: not even a loopback interface that reaches anything."""
    memory: str
    """`watched`: the kernel limits each process; their sum is looked at four times a second while a command runs."""
    disk: str
    """`hard`: the filesystem itself refuses."""
    processes_survive_snapshot: bool = False


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

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with code 0."""
        return self.code == 0


class Sandbox(ABC):
    """One live sandbox; an async context manager. Calls run one after another in the order they were made.

    All methods raise SandboxLost when it is gone.
    """

    id: str
    task_id: str
    capabilities: Capabilities

    @abstractmethod
    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout: float = 30.0,
        cwd: str = WORKSPACE,
        stdin: bytes = b"",
        background: bool = False,
    ) -> ExecResult:
        """Run a shell command (str, by bash) or an argument list; fresh process, seconds of wall time at most.

        On timeout every process of the sandbox is killed, and the next command works. What a command leaves running is
        killed when it returns, unless `background`.
        """

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

    @abstractmethod
    async def close(self) -> None:
        """Kill every process and give everything back; closing twice is nothing."""

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class SandboxFactory(Protocol):
    """Creates sandboxes. A verdict is always given in a fresh one, created from the agent's snapshot."""

    async def create(self, task_id: str, snapshot: SnapshotId | None = None) -> Sandbox:
        """A sandbox whose /workspace is empty, or the content of a snapshot; raises SandboxUnavailable."""
        ...

    async def close(self) -> None:
        """Close every sandbox of this factory."""
        ...


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
