"""Sandboxes of somebody else's making (containers, pods, rented machines), behind the same interface.

A `Provider` starts one, runs an argument list in it, and ends it; everything else is done here with bash, coreutils,
grep and tar inside. Snapshots are the same content-addressed archives as everywhere, in the worker's own store: any
backend goes on from them, whichever took them. What an image holds outside /workspace is not in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import itertools
import os
import secrets
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from environments.sandbox import archive
from environments.sandbox import store as stores
from environments.sandbox.api import (
    LAYER,
    NO_NETWORK,
    WORKSPACE,
    Capabilities,
    ExecResult,
    LayerId,
    LimitExceeded,
    Limits,
    NetPolicy,
    OnOutput,
    Sandbox,
    SandboxError,
    SandboxFactory,
    SandboxLost,
    SandboxUnavailable,
    Session,
    SnapshotId,
    Unsupported,
    argv_of,
)
from environments.sandbox.shell import DUMP

_GRACE_S = 30.0  # beyond a command's own timeout, which is kept inside
_LARGE_S = 300.0  # for an archive to be sent or fetched
_STATES = "/tmp/.jointrl"  # shell sessions; a file each

# arguments: mark, seconds, keep what it leaves (1) or not (0), directory, the command.
# Whatever it starts has the mark in its environment, wherever it goes. -k: what ignores TERM is killed a second later.
_RUN = """n=$1 t=$2 k=$3; cd -- "$4" || exit 127; shift 4
JOINTRL_EXEC=$n timeout -k 1 "$t" "$@"; r=$?
if [ $k = 0 ] || [ $r = 124 ] || [ $r = 137 ]; then for p in /proc/[0-9]*; do
  [ "${p#/proc/}" = $$ ] || ! grep -qzx "JOINTRL_EXEC=$n" "$p/environ" || kill -9 "${p#/proc/}"
done 2>/dev/null; fi; exit $r"""
# arguments: state file, command
_SESSION = f"""__jointrl_s=$1 __jointrl_c=$2; set --
[ ! -f "$__jointrl_s" ] || . "$__jointrl_s" > /dev/null 2>&1
eval "$__jointrl_c"
__jointrl_r=$?; mkdir -p {_STATES}; {DUMP} > "$__jointrl_s.new"; mv "$__jointrl_s.new" "$__jointrl_s"
exit $__jointrl_r"""
# arguments: path, most bytes or mode. Exit codes are _ERRORS.
_CHECK = f"""p=$1; [ "$(realpath -m -- "$p"; echo x)" = "$p
x" ] || exit 41; case $p in {WORKSPACE}/*) ;; {WORKSPACE}) exit 43;; *) exit 41;; esac
[ ! -d "$p" ] || exit 43; [ ! -e "$p" ] || [ -f "$p" ] || exit 41
"""
_READ = _CHECK + '[ -e "$p" ] || exit 42; [ "$(stat -c %s -- "$p")" -le "$2" ] || exit 44; exec cat -- "$p"'
_WRITE = _CHECK + 'mkdir -p -- "${p%/*}" && cat > "$p" && chmod "$2" -- "$p" || exit 45'
_ERRORS: dict[int, Exception] = {
    41: PermissionError(errno.EACCES, "a symbolic link, or not a file below /workspace"),
    42: FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)),
    43: IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)),
    44: LimitExceeded("file", "larger than file_mb"),
    45: LimitExceeded("disk", "the file could not be written whole"),
}


class Outcome(NamedTuple):
    """What an argument list did inside; `code` as the provider reports it."""

    code: int
    stdout: bytes
    stderr: bytes
    dropped: tuple[int, int]


class Provider(ABC):
    """One kind of foreign sandbox. All methods raise SandboxUnavailable or SandboxLost for what is not the agent's."""

    name: str
    capabilities: Capabilities

    @abstractmethod
    async def start(self, name: str, labels: dict[str, str], limits: Limits, layer: LayerId | None) -> str:
        """Start one, without network, that ends by itself after `limits.lifetime_s`; its handle.

        It has an empty, writable /workspace, or what `layer` holds. `name` is new, and `discard(name)` finds it.
        """

    @abstractmethod
    async def run(
        self, handle: str, argv: Sequence[str], stdin: bytes, timeout: float, cap: int, on_output: OnOutput | None
    ) -> Outcome:
        """Run an argument list; kept are the first and last half of `cap` bytes of each stream (`children.Kept`)."""

    @abstractmethod
    async def stop(self, handle: str) -> None:
        """End it, whatever it does; ending twice is nothing."""

    @abstractmethod
    async def discard(self, name: str) -> None:
        """End what `start(name)` may have begun before it was cancelled."""

    async def commit(self, handle: str) -> LayerId:
        """What it holds, for `start`."""
        raise Unsupported(f"{self.name} cannot freeze: take a snapshot")

    async def pause(self, handle: str) -> None:
        """Stop its processes where they are."""
        raise Unsupported(f"{self.name} cannot pause")

    async def resume(self, handle: str) -> None:
        """Let them go on."""
        raise Unsupported(f"{self.name} cannot pause")

    async def reap(self, store: str, alive: set[str]) -> None:
        """End what owners of this store left that are not alive; where a provider does not list, lifetimes do it."""
        return None

    async def close(self) -> None:
        """Give back what is not a sandbox."""
        return None


class ForeignSandboxes:
    """The factory of one worker (a `SandboxFactory`) on a provider; see `LocalSandboxes` for the parameters."""

    def __init__(
        self, provider: Provider, store: str | Path, limits: Limits, max_live: int = 64, wait_s: float = 120.0
    ) -> None:
        self.provider, self.store, self.limits = provider, Path(store), limits
        self.slots = asyncio.Semaphore(max_live)
        self._wait_s = wait_s
        self.owner = secrets.token_hex(6)
        self._numbers = itertools.count()
        self._starting = asyncio.Lock()
        self._journal = -1
        self._live: set[ForeignSandbox] = set()
        self._ends: set[asyncio.Task[None]] = set()

    async def create(
        self, task_id: str, snapshot: SnapshotId | LayerId | None = None, *, net: NetPolicy = NO_NETWORK
    ) -> ForeignSandbox:
        """See `SandboxFactory.create`."""
        if net.hosts:
            raise Unsupported(f"{self.provider.name} sandboxes have no allow list: use bwrap or sandboxd")
        await self._prepare()
        layer = snapshot if snapshot is not None and snapshot.startswith(LAYER) else None
        stored = self.store / "snapshots" / f"{snapshot}.tar"
        if snapshot is not None and layer is None and not stored.exists():
            raise SandboxUnavailable(f"snapshot {snapshot} is not in the store {self.store}")
        try:
            async with asyncio.timeout(self._wait_s):
                await self.slots.acquire()
        except TimeoutError:
            raise SandboxUnavailable(f"no sandbox slot came free within {self._wait_s:g} s: raise max_live") from None
        name = f"jointrl-{self.owner}-{next(self._numbers)}"
        labels = {"jointrl.owner": self.owner, "jointrl.store": self.store_id, "jointrl.task": task_id}
        sandbox: ForeignSandbox | None = None
        try:
            handle = await self.provider.start(name, labels, self.limits, layer)
            sandbox = ForeignSandbox(self, handle, name, task_id)
            self._live.add(sandbox)
            if snapshot is not None and layer is None:
                await sandbox.fill(stored, snapshot)
        except BaseException:
            if sandbox is not None:
                self._later(sandbox.close())
            else:
                self.slots.release()
                self._later(self.provider.discard(name))
            raise
        return sandbox

    async def close(self) -> None:
        """Close every sandbox of this factory."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)), *self._ends)
        await self.provider.close()
        if self._journal >= 0:
            os.close(self._journal)
            self._journal = -1

    @property
    def store_id(self) -> str:
        """Tells the sandboxes of this store from others' on the same provider."""
        return hashlib.sha256(str(self.store.resolve()).encode()).hexdigest()[:16]

    def gone(self, sandbox: ForeignSandbox) -> None:
        """A sandbox was closed."""
        self._live.discard(sandbox)
        self.slots.release()

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _prepare(self) -> None:
        async with self._starting:
            if self._journal < 0:
                stores.prepare(self.store)
                stores.reap(self.store)
                self._journal = stores.open_journal(self.store, self.owner)
                await self.provider.reap(self.store_id, stores.living(self.store))


class ForeignSandbox(Sandbox):
    """One sandbox of a provider; see `Sandbox`."""

    def __init__(self, factory: ForeignSandboxes, handle: str, name: str, task_id: str) -> None:
        self.id, self.task_id = name, task_id
        self.factory: SandboxFactory = factory
        self._factory, self._provider, self._handle = factory, factory.provider, handle
        self.capabilities = factory.provider.capabilities
        self._limits = factory.limits
        self._lock = asyncio.Lock()
        self._paused = self._closed = False

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
        return await self._exec(argv, timeout, cwd, stdin, background, on_output)

    async def _exec(
        self,
        argv: list[str],
        timeout: float,
        cwd: str = WORKSPACE,
        stdin: bytes = b"",
        keep: bool = False,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        loop = asyncio.get_running_loop()
        mark = secrets.token_hex(8)
        wrapped = ["bash", "-c", _RUN, "jointrl", mark, f"{timeout:g}", str(int(keep)), cwd, *argv]
        start = loop.time()
        cap = self._limits.output_bytes
        done = await self._run(wrapped, stdin, timeout + _GRACE_S, cap, on_output)
        seconds = loop.time() - start
        timed_out = done.code in (124, 137) and seconds >= timeout
        return ExecResult(
            done.stdout,
            done.stderr,
            None if timed_out else done.code,
            signal.SIGKILL.value if timed_out else None,
            timed_out,
            False,
            done.dropped,
            timed_out,
            seconds,
        )

    async def _run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        timeout: float = _LARGE_S,
        cap: int = 1 << 16,
        on_output: OnOutput | None = None,
    ) -> Outcome:
        async with self._lock:
            if self._closed:
                raise SandboxLost(f"sandbox {self.id} is gone: it was closed")
            if self._paused:
                raise SandboxError(f"sandbox {self.id} is paused: resume it first")
            try:
                async with asyncio.timeout(timeout):
                    return await self._provider.run(self._handle, argv, stdin, timeout, cap, on_output)
            except TimeoutError:
                raise SandboxLost(f"{self._provider.name} did not answer within {timeout:g} s ({self.id})") from None

    def session(self, name: str = "main") -> Session:
        """See `Sandbox.session`."""
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"{name!r}: letters, digits, - and _ make a session's name")
        return _ReplayedSession(self, name)

    async def read_file(self, path: str) -> bytes:
        """See `Sandbox.read_file`."""
        most = self._limits.file_mb << 20
        done = await self._run(["bash", "-c", _READ, "jointrl", _absolute(path), str(most)], cap=2 * most + 2)
        self._check(done, path)
        return done.stdout

    async def write_file(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See `Sandbox.write_file`."""
        if len(data) > self._limits.file_mb << 20:
            raise LimitExceeded("file", f"{path}: {len(data)} bytes are more than {self._limits.file_mb} MB")
        self._check(await self._run(["bash", "-c", _WRITE, "jointrl", _absolute(path), f"{mode:o}"], data), path)

    def _check(self, done: Outcome, path: str) -> None:
        if done.code == 0 and not done.dropped[0]:
            return
        error = _ERRORS.get(done.code)
        if isinstance(error, OSError):
            raise type(error)(error.errno, f"{path}: {error.strerror}")
        if isinstance(error, LimitExceeded):
            raise LimitExceeded(error.kind, f"{path}: {error}")
        raise SandboxLost(f"{self.id}: {path}: code {done.code}: {done.stderr[-500:].decode(errors='replace')}")

    async def snapshot(self) -> SnapshotId:
        """See `Sandbox.snapshot`. Processes go on meanwhile: a file that one of them writes may be cut anywhere."""
        sessions = await self._sessions()
        most = 2 * self._limits.disk_mb << 20
        done = await self._run(["tar", "-C", WORKSPACE, "--format=pax", "--sort=name", "-cf", "-", "."], cap=8 * most)
        if done.dropped[0]:
            raise LimitExceeded("snapshot", f"/workspace holds more than {most} bytes")
        if done.code not in (0, 1):  # 1: a file changed while it was read
            raise SandboxLost(f"{self.id}: tar said {done.code}: {done.stderr[-500:].decode(errors='replace')}")
        return await asyncio.to_thread(self._store, done.stdout, most, sessions)

    def _store(self, tar: bytes, most: int, sessions: dict[str, str]) -> SnapshotId:
        temporary = self._factory.store / "tmp" / f"{self._factory.owner}.{secrets.token_hex(4)}"
        try:
            with tempfile.TemporaryFile() as source, open(temporary, "wb") as out:
                source.write(tar)
                source.seek(0)
                digest = archive.canonical(source, out, most, sessions)
                out.flush()
                os.fsync(out.fileno())
            os.rename(temporary, self._factory.store / "snapshots" / f"{digest}.tar")
            return digest
        finally:
            temporary.unlink(missing_ok=True)

    async def _sessions(self) -> dict[str, str]:
        script = f'cd {_STATES} 2>/dev/null || exit 0; for f in *; do printf "%s\\0" "$f"; cat "$f"; printf "\\0"; done'
        done = await self._run(["bash", "-c", script], cap=1 << 22)
        parts = done.stdout.decode("utf-8", "replace").split("\0")[:-1]
        return dict(zip(parts[::2], parts[1::2], strict=True))

    async def fill(self, stored: Path, snapshot: SnapshotId) -> None:
        """Put a snapshot's content into the empty /workspace."""
        await asyncio.to_thread(archive.verify, stored, snapshot)
        argv = ["tar", "-C", WORKSPACE, "--no-overwrite-dir", "--warning=no-unknown-keyword", "-xpf", "-"]
        done = await self._run(argv, stored.read_bytes())
        if done.code != 0:
            raise SandboxUnavailable(f"{self.id}: tar said {done.code}: {done.stderr[-500:].decode(errors='replace')}")
        for name, state in archive.read_sessions(stored).items():
            put = f'mkdir -p {_STATES}; cat > "{_STATES}/$1"'
            await self._run(["bash", "-c", put, "jointrl", name], state.encode("utf-8", "surrogateescape"))

    async def freeze(self) -> LayerId:
        """See `Sandbox.freeze`."""
        if not self.capabilities.freeze:
            return await super().freeze()
        return await self._provider.commit(self._handle)

    async def pause(self) -> None:
        """See `Sandbox.pause`."""
        async with self._lock:
            await self._provider.pause(self._handle)
            self._paused = True

    async def resume(self) -> None:
        """See `Sandbox.resume`."""
        async with self._lock:
            await self._provider.resume(self._handle)
            self._paused = False

    async def close(self) -> None:
        """See `Sandbox.close`."""
        if self._closed:
            return
        self._closed = True
        try:
            with contextlib.suppress(SandboxLost):
                await asyncio.shield(self._provider.stop(self._handle))
        finally:
            self._factory.gone(self)


class _ReplayedSession(Session):
    """A session that loads and saves the shell's state with each command."""

    def __init__(self, sandbox: ForeignSandbox, name: str) -> None:
        self.name = name
        self._sandbox = sandbox

    async def run(self, command: str, *, timeout: float = 30.0) -> ExecResult:
        """See `Session.run`."""
        argv = ["bash", "-c", _SESSION, "bash", f"{_STATES}/{self.name}", command]
        return await self._sandbox._exec(argv, timeout, keep=True)

    async def close(self) -> None:
        """See `Session.close`."""
        await self._sandbox._run(["rm", "-f", f"{_STATES}/{self.name}"])


def _absolute(path: str) -> str:
    if "\0" in path:
        raise OSError(errno.EINVAL, "not a possible path")
    relative = path.removeprefix(WORKSPACE + "/")
    if relative.startswith("/") or ".." in relative.split("/"):
        raise PermissionError(errno.EACCES, f"{path}: not a file below {WORKSPACE}")
    return f"{WORKSPACE}/{relative}"


def make_foreign(backend: str, image: str, store: str | Path, limits: Limits, max_live: int) -> ForeignSandboxes:
    """The factory of docker, podman, kubernetes, e2b, modal or daytona; SandboxUnavailable says what is missing."""
    if backend in ("docker", "podman", "kubernetes"):
        from environments.sandbox.containers import Kubernetes, containers

        provider: Provider = Kubernetes(image) if backend == "kubernetes" else containers(backend, image)
    else:
        from environments.sandbox.rented import rented

        provider = rented(backend, image)
    return ForeignSandboxes(provider, store, limits, max_live)
