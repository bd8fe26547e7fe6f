"""One sandbox, as its nursery sees it: bubblewrap sets it up, the nursery enters it for every command.

Nothing inside controls anything outside: there is no shell or agent process that takes orders. A command is forked by
the nursery straight into the sandbox's namespaces, drops everything it has, and is then executed; its exit status comes
from the kernel. The first process inside only reaps orphans.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import stat
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from environments.sandbox import archive, linux
from environments.sandbox.api import WORKSPACE, LimitExceeded, Limits, SandboxLost, SandboxUnavailable
from environments.sandbox.bwrap import arguments
from environments.sandbox.children import Capture, read_pipe, readable

if TYPE_CHECKING:
    from environments.sandbox.nursery import Nursery

_START_S = 30.0  # creation takes milliseconds; on a machine that swaps it may take seconds
_FREEZE_S = 5.0  # until stopped processes have left the kernel
_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": WORKSPACE,
    "USER": "agent",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
}
# prints one byte when everything is set up, then reaps orphans until the nursery is gone; as pid 1 nothing inside can
# kill it
_INIT = ("/bin/bash", "--norc", "--noprofile", "-c", "printf r; exec 1>&- 2>&-; while read -r _; do :; done")
_NAMESPACES = linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
if os.path.exists("/proc/self/ns/cgroup"):
    _NAMESPACES |= linux.CLONE_NEWCGROUP
_LOOK_S = 0.25  # between two looks at a command's memory
_REFUSED = (errno.ELOOP, errno.EXDEV, errno.ENXIO)  # a symbolic link, a path that leaves /workspace, a fifo or socket


class Box:
    """One sandbox. `start` once, then the operations one at a time, then `destroy`."""

    def __init__(self, nursery: Nursery, box_id: str) -> None:
        self.id = box_id
        self.lost: str | None = None
        self._nursery = nursery
        self._limits: Limits = nursery.limits
        self._rlimits = _rlimits(self._limits)
        self._live = f"{nursery.live}/{box_id}"
        self._lock = asyncio.Lock()
        self._fds = contextlib.ExitStack()
        self._monitor_exit: asyncio.Future[int] | None = None
        self._monitor = self._init = self._pidfd = self._workspace = -1
        self.starting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gone: asyncio.Task[None] | None = None
        self._snapshots = 0

    # ------------------------------------------------------------------------------------------------ life and death

    async def start(self, lower: str | None) -> None:
        """Create it on the layer `lower` (or empty). Raises SandboxUnavailable; it must then be destroyed."""
        limits, nursery = self._limits, self._nursery
        os.mkdir(self._live, 0o755)
        size = f"size={limits.disk_mb}m,nr_inodes={limits.files},mode=755"
        linux.mount("sandbox", self._live, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, size)
        for name, mode in (("w", 0o755), ("k", 0o700), ("t", 0o1777), ("s", 0o1777)):
            os.mkdir(f"{self._live}/{name}", mode)
        if lower is not None and not nursery.overlay:
            await nursery.unpack_into(f"{self._live}/w", lower)
            lower = None
        elif lower is not None:
            os.chmod(f"{self._live}/w", stat.S_IMODE(os.stat(lower).st_mode))
        try:
            async with asyncio.timeout(_START_S):
                await self._spawn(arguments(self._live, lower, nursery.etc))
        except TimeoutError:
            raise SandboxUnavailable(f"bubblewrap did not finish within {_START_S:.0f} s") from None
        assert self._monitor_exit is not None
        self._monitor_exit.add_done_callback(lambda _: self.lose("its first process ended"))
        self._timer = asyncio.get_running_loop().call_later(
            limits.lifetime_s, self.lose, f"its lifetime of {limits.lifetime_s:g} s is over"
        )

    async def _spawn(self, args: list[str]) -> None:
        nursery = self._nursery
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:

            def pipe(to: contextlib.ExitStack) -> tuple[int, int]:
                r, w = os.pipe2(os.O_CLOEXEC)
                to.callback(os.close, r if to is ours else w)
                theirs.callback(os.close, w if to is ours else r)
                return r, w

            hold, _ = pipe(self._fds)  # the first process lives as long as the other end is open
            ready, ready_write = pipe(ours)
            errors, errors_write = pipe(ours)
            info, info_write = pipe(ours)
            argv_fd = os.memfd_create("args", os.MFD_CLOEXEC)
            theirs.callback(os.close, argv_fd)
            os.write(argv_fd, b"".join(os.fsencode(a) + b"\0" for a in args))
            os.lseek(argv_fd, 0, os.SEEK_SET)
            filter_fd = os.open(nursery.filter_file, os.O_RDONLY | os.O_CLOEXEC)  # own offset: creations overlap
            theirs.callback(os.close, filter_fd)
            for fd in (argv_fd, filter_fd, info_write):
                os.set_inheritable(fd, True)
            # options travel by fd and the environment is empty: /proc/1/cmdline and environ tell nothing of the host
            options = ["--args", str(argv_fd), "--seccomp", str(filter_fd), "--info-fd", str(info_write)]
            self._monitor = os.posix_spawn(
                nursery.bwrap,
                ["bwrap", *options, "--", *_INIT],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, i) for i, fd in enumerate((hold, ready_write, errors_write))],
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
            self._monitor_exit = nursery.children.watch(self._monitor)
            theirs.close()
            text = await read_pipe(info, lambda data: b"}" in data)  # closed early, bubblewrap dies of SIGPIPE
            if await read_pipe(ready, lambda data: b"r" in data) != b"r":
                said = (await read_pipe(errors)).decode(errors="replace").strip()
                raise SandboxUnavailable(f"bubblewrap failed: {said or 'no message'}")
            self._init = int(text.partition(b'"child-pid":')[2].split(b",")[0].split(b"}")[0])
            self._pidfd = os.pidfd_open(self._init)
            self._fds.callback(os.close, self._pidfd)
            for kind, value in self._rlimits.items():  # code of the agent can take over the first process: same user
                resource.prlimit(self._init, kind, (value, value))
            self._workspace = os.open(f"/proc/{self._init}/root{WORKSPACE}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._fds.callback(os.close, self._workspace)

    def lose(self, reason: str) -> None:
        """Note why it is gone and destroy it in the background."""
        if self.lost is None:
            self.lost = reason
            self._gone = asyncio.get_running_loop().create_task(self._destroy())

    async def destroy(self) -> None:
        """Kill every process and return when they are dead."""
        self.lose("it was closed")
        assert self._gone is not None
        await asyncio.shield(self._gone)

    async def _destroy(self) -> None:
        if self.starting is not None:  # a bubblewrap in the middle of its set-up may leave a child behind
            await asyncio.wait([self.starting])
        if self._timer is not None:
            self._timer.cancel()
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)  # the kernel then kills its whole namespace
            await readable(self._pidfd)
        if self._monitor_exit is not None and not self._monitor_exit.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._monitor, signal.SIGKILL)
            await self._monitor_exit
        self._nursery.children.kill_strangers()
        async with self._lock:  # an operation in flight notices that its process died, then lets go
            self._fds.close()
        self._nursery.forget(self)
        with contextlib.suppress(OSError):  # where start failed before its mount
            linux.unmount(self._live)
        with contextlib.suppress(OSError):
            os.rmdir(self._live)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One operation's turn; raises SandboxLost where there is nothing to operate on."""
        async with self._lock:
            if self.lost is not None:
                raise SandboxLost(f"sandbox {self.id} is gone: {self.lost}")
            yield

    # ------------------------------------------------------------------------------------------------------ commands

    async def exec(
        self, argv: list[str], cwd: str, stdin: bytes, timeout: float, background: bool
    ) -> tuple[dict[str, Any], bytes, bytes]:
        """Run one command; (fields of ExecResult, stdout, stderr)."""
        loop = asyncio.get_running_loop()
        async with self._turn():
            start = loop.time()
            captures, report, pid, exited = self._execute(argv, cwd, stdin)
            failure, timed_out, out_of_memory, leftovers = b"", False, False, True
            try:
                try:
                    async with asyncio.timeout(timeout):
                        failure = await read_pipe(report)
                        out_of_memory = not await self._ends_within_memory(pid, exited)
                except TimeoutError:
                    timed_out = True
                leftovers = timed_out or out_of_memory or (not background and bool(linux.children(self._init)))
            finally:  # also where this is cancelled: nothing of the command may stay
                os.close(report)
                if leftovers:
                    await self._signal_all(signal.SIGKILL)
                    await asyncio.shield(exited)
                (out, out_dropped), (err, err_dropped) = (capture.finish() for capture in captures)
            if failure.startswith(b"inside"):
                raise SandboxLost(f"sandbox {self.id} cannot be entered: {failure.decode()}")
            if self.lost is not None:
                raise SandboxLost(f"sandbox {self.id} is gone: {self.lost}")
            status = exited.result()
            fields = {
                "code": status if status >= 0 else None,
                "signal": -status if status < 0 else None,
                "timed_out": timed_out,
                "out_of_memory": out_of_memory,
                "dropped": [out_dropped, err_dropped],
                "leftovers": leftovers,
                "seconds": loop.time() - start,
            }
            return fields, out, err

    def _execute(self, argv: list[str], cwd: str, stdin: bytes) -> tuple[list[Capture], int, int, asyncio.Future[int]]:
        """Fork the command into the sandbox: its output, report pipe (empty: it was executed), pid and exit status."""
        loop = asyncio.get_running_loop()
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        source = os.memfd_create("stdin", os.MFD_CLOEXEC) if stdin else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        theirs = [source, *(w for _, w in pipes)]
        try:
            if stdin:
                archive.write_all(source, stdin)
                os.lseek(source, 0, os.SEEK_SET)
            pid, exited = self._fork_inside(lambda: self._become(argv, cwd, theirs))
        except BaseException:
            for r, _ in pipes:
                os.close(r)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        captures = [Capture(loop, r, self._limits.output_bytes) for r, _ in pipes[:2]]
        return captures, pipes[2][0], pid, exited

    def _become(self, argv: list[str], cwd: str, fds: list[int]) -> None:
        """In the forked child: join the sandbox, give up everything, execute. It cannot be traced until exec."""
        report = fds[3]
        where = "inside: setns"
        try:
            linux.setns(self._pidfd, _NAMESPACES)
            for target, fd in enumerate(fds[:3]):
                os.dup2(fd, target)
            if report != 3:
                report = os.dup2(report, 3, inheritable=False)
            linux.close_from(4)
            where = "inside: limits"
            os.setsid()
            os.umask(0o022)
            for name in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, and that would survive exec
                signal.signal(name, signal.SIG_DFL)
            for kind, value in self._rlimits.items():
                resource.setrlimit(kind, (value, value))
            linux.drop_capability_bounds()
            linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
            self._nursery.filter.install()
            where = "cwd"
            os.chdir(cwd)
            where = "command"
            os.execvpe(argv[0], argv, _ENV)
        except (OSError, ValueError) as error:  # ValueError: an argument with a NUL or a lone surrogate
            text = error.strerror if isinstance(error, OSError) else "not a possible argument"
            os.write(report if where.startswith("inside") else 2, f"{where}: {text}\n".encode())
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)

    def _fork_inside(self, body: Callable[[], None]) -> tuple[int, asyncio.Future[int]]:
        """Fork a child whose pid namespace is the sandbox's: (pid as seen here, exit status)."""
        try:
            linux.setns(self._pidfd, linux.CLONE_NEWPID)  # of children only
            return self._nursery.children.fork(body)
        except OSError as error:  # ESRCH, EINVAL, ENOMEM: the namespace is dead
            raise SandboxLost(f"sandbox {self.id} is gone: {error.strerror}") from error
        finally:
            linux.setns(self._nursery.own_pids, linux.CLONE_NEWPID)

    async def _ends_within_memory(self, pid: int, exited: asyncio.Future[int]) -> bool:
        """Wait for a command's end; False as soon as the sandbox holds more memory than its limit."""
        while True:
            done, _ = await asyncio.wait([exited], timeout=_LOOK_S)
            if done:
                return True
            inside = [pid, *linux.descendants(pid), *linux.descendants(self._init)]
            if sum(map(linux.resident, inside)) > self._limits.memory_mb << 20:
                return False

    async def _signal_all(self, number: int) -> None:
        """Signal every process of the sandbox at once, except its first: kill(-1) is atomic against forks."""

        def body() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, number)

        with contextlib.suppress(SandboxLost):
            await asyncio.shield(self._fork_inside(body)[1])

    # --------------------------------------------------------------------------------------------- files and snapshots

    async def read(self, path: str) -> bytes:
        """Bytes of a regular file below /workspace."""
        async with self._turn():
            fd = self._open(path, os.O_RDONLY)
            try:
                size = os.fstat(fd).st_size
                self._check_size(path, size)
                with open(fd, "rb", closefd=False) as file:
                    return file.read(size)
            finally:
                os.close(fd)

    async def write(self, path: str, data: bytes, mode: int) -> None:
        """Create or replace a regular file below /workspace."""
        async with self._turn():
            self._check_size(path, len(data))
            relative = _relative(path)
            parts = relative.split("/")[:-1]
            for i in range(len(parts)):
                self._make_directory("/".join(parts[: i + 1]))
            fd = self._open(path, os.O_WRONLY | os.O_CREAT, mode)
            try:
                os.ftruncate(fd, 0)
                os.fchmod(fd, mode)
                archive.write_all(fd, data)
            finally:
                os.close(fd)

    async def snapshot(self) -> str:
        """Freeze, store, continue; the content's digest."""
        async with self._turn():
            self._snapshots += 1
            name = f"{self.id}.{self._snapshots}"
            frozen = bool(linux.children(self._init))
            try:
                if frozen:
                    await self._freeze()
                limit = 2 * self._limits.disk_mb << 20  # of content; sparse files count in full
                return await self._nursery.children.run(
                    store_snapshot, self._workspace, self._nursery.store, name, limit
                )
            finally:
                with contextlib.suppress(FileNotFoundError):  # also of one that was killed half-way
                    os.unlink(f"{self._nursery.store}/tmp/{name}")
                if frozen:
                    await self._signal_all(signal.SIGCONT)

    async def _freeze(self) -> None:
        await self._signal_all(signal.SIGSTOP)
        for _ in range(int(_FREEZE_S / 0.005)):
            if all(state in "TZtX" for state in linux.descendants(self._init).values()):
                return
            await asyncio.sleep(0.005)
        raise SandboxUnavailable(f"sandbox {self.id}: processes did not stop within {_FREEZE_S:g} s")

    def _open(self, path: str, flags: int, mode: int = 0) -> int:
        """Open a regular file below /workspace, following no symbolic link."""
        try:
            fd = linux.open_beneath(self._workspace, _relative(path), flags | os.O_NONBLOCK | os.O_NOFOLLOW, mode)
        except OSError as error:
            raise _refusal(error, path) from error
        kind = os.fstat(fd).st_mode
        if not stat.S_ISREG(kind):
            os.close(fd)
            code = errno.EISDIR if stat.S_ISDIR(kind) else errno.EACCES
            raise OSError(code, f"{path}: {os.strerror(code)}")
        return fd

    def _make_directory(self, relative: str) -> None:
        parent, _, name = relative.rpartition("/")
        try:
            fd = linux.open_beneath(self._workspace, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _refusal(error, relative) from error
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=fd)
        finally:
            os.close(fd)

    def _check_size(self, path: str, size: int) -> None:
        if size > self._limits.file_mb << 20:
            raise LimitExceeded("file", f"{path}: {size} bytes are more than {self._limits.file_mb} MB")


def _rlimits(limits: Limits) -> dict[int, int]:
    """Limits of every process inside, by RLIMIT_*; never above what this process has."""
    mib = 1 << 20
    wanted = {
        resource.RLIMIT_DATA: limits.memory_mb * mib,
        # reservations without memory are cheap, and virtual machines make large ones
        resource.RLIMIT_AS: 8 * limits.memory_mb * mib,
        resource.RLIMIT_FSIZE: limits.file_mb * mib,
        resource.RLIMIT_NPROC: limits.pids,  # counted in the sandbox's user namespace, so set inside
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_CORE: 0,
    }
    hard = {kind: resource.getrlimit(kind)[1] for kind in wanted}
    return {k: v if hard[k] == resource.RLIM_INFINITY else min(v, hard[k]) for k, v in wanted.items()}


def store_snapshot(workspace: int, store: str, name: str, max_bytes: int) -> str:
    """Pack a directory (O_PATH fd) into the store: temporary file, fsync, rename; returns its id.

    Runs in a child that may be killed at any moment: its parent removes tmp/`name` where it is left.
    """
    root = linux.open_beneath(workspace, ".", os.O_RDONLY | os.O_DIRECTORY)
    temporary = f"{store}/tmp/{name}"
    with open(temporary, "wb") as file:
        digest = archive.pack(root, file, max_bytes)
        final = f"{store}/snapshots/{digest}.tar"
        if os.path.exists(final):
            return digest
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, final)
    folder = os.open(f"{store}/snapshots", os.O_RDONLY)
    os.fsync(folder)
    return digest


def _relative(path: str) -> str:
    try:
        if b"\0" in os.fsencode(path):
            raise ValueError("NUL")
    except ValueError:
        raise OSError(errno.EINVAL, "not a possible path") from None
    relative = path.removeprefix(WORKSPACE + "/") or "."
    if relative.startswith("/") or ".." in relative.split("/"):
        raise PermissionError(errno.EACCES, f"{path}: not a file below {WORKSPACE}")
    return relative


def _refusal(error: OSError, path: str) -> OSError:
    if error.errno in _REFUSED:
        return PermissionError(errno.EACCES, f"{path}: a symbolic link, or not a file below {WORKSPACE}")
    return OSError(error.errno, f"{path}: {os.strerror(error.errno or 0)}")
