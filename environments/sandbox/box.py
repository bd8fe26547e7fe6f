"""One sandbox, as its nursery sees it: bubblewrap sets it up, and every command is forked into it from outside.

Nothing inside controls anything outside: there is no shell or agent process that takes orders (`porter.py` says how a
command gets in), and exit statuses come from the kernel. The first process inside only reaps orphans.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from environments.sandbox import archive, linux, proxy
from environments.sandbox.api import (
    WORKSPACE,
    LimitExceeded,
    Limits,
    SandboxError,
    SandboxLost,
    SandboxUnavailable,
)
from environments.sandbox.bwrap import arguments
from environments.sandbox.children import Capture, read_pipe, readable
from environments.sandbox.porter import rlimits
from environments.sandbox.shell import Shell
from environments.sandbox.workspace import Workspace

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
_LOOK_S = 0.25  # between two looks at a command's memory
_LOOKS = 1000  # a second at most, of all commands: the more run, the less each gets to fill memory with
_KILL_ROUNDS = 100  # each finds what was forked before the processes stopped; more than one is rare
_MAX_SHELLS = 16


class Box:
    """One sandbox. `start` once, then the operations one at a time, then `destroy`."""

    def __init__(self, nursery: Nursery, box_id: str, limits: Limits, hosts: Sequence[str] = ()) -> None:
        self.id = box_id
        self.limits = limits
        self.hosts = tuple(hosts)
        self.lost: str | None = None
        self.nursery = nursery
        self._rlimits = rlimits(self.limits)
        self.live = f"{nursery.live}/{box_id}"
        self._lock = asyncio.Lock()
        self._fds = contextlib.ExitStack()
        self._monitor_exit: asyncio.Future[int] | None = None
        self._monitor = self.init = self.pidfd = -1
        self.starting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gone: asyncio.Task[None] | None = None
        self._paused = self._watching = False
        self._watcher: asyncio.Task[None] | None = None
        self._environment = dict(_ENV)
        self._proxy = -1
        self._proxy_exit: asyncio.Future[int] | None = None
        self._shells: dict[str, Shell] = {}
        self.workspace = Workspace(self)

    # ------------------------------------------------------------------------------------------------ life and death

    async def start(self, content: str | None) -> None:
        """Create it on a snapshot or layer (or empty). Raises SandboxUnavailable; it must then be destroyed."""
        lower, sessions = await self.workspace.begin(content)
        self._shells = {name: Shell(self, saved) for name, saved in sessions.items()}
        try:
            async with asyncio.timeout(_START_S):
                await self._spawn(arguments(self.live, lower, self.nursery.etc))
        except TimeoutError:
            raise SandboxUnavailable(f"bubblewrap did not finish within {_START_S:.0f} s") from None
        if self.hosts:
            await self._open_proxy()
        assert self._monitor_exit is not None
        self._monitor_exit.add_done_callback(lambda _: self.lose("its first process ended"))
        self._timer = asyncio.get_running_loop().call_later(
            self.limits.lifetime_s, self.lose, f"its lifetime of {self.limits.lifetime_s:g} s is over"
        )

    async def _spawn(self, args: list[str]) -> None:
        nursery = self.nursery
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
            self.init = int(text.partition(b'"child-pid":')[2].split(b",")[0].split(b"}")[0])
            self.pidfd = os.pidfd_open(self.init)
            self._fds.callback(os.close, self.pidfd)
            for kind, value in self._rlimits.items():  # code of the agent can take over the first process: same user
                resource.prlimit(self.init, kind, (value, value))
            self.workspace.attach(self.init, self._fds)

    async def _open_proxy(self) -> None:
        """Let it reach what is listed, through a process that is not in it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ours, theirs:

            def listen() -> None:
                linux.setns(self.pidfd, linux.CLONE_NEWNET)
                with proxy.listen_inside() as listener:
                    socket.send_fds(theirs, [b"l"], [listener.fileno()])

            _, listening = self.nursery.children.fork(listen)
            if await asyncio.shield(listening) != 0:
                raise SandboxUnavailable("the proxy's socket could not be made inside")
            _, (listener, *_), _, _ = socket.recv_fds(ours, 1, 1)
        try:

            def serve() -> None:
                os.dup2(listener, 3)
                linux.close_from(4)
                linux.drop_capability_bounds()
                linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
                self.nursery.filter.install()
                proxy.serve(socket.socket(fileno=3), self.hosts)

            self._proxy, self._proxy_exit = self.nursery.children.fork(serve)
        finally:
            os.close(listener)
        self._environment |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy.URL)

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
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)  # the kernel then kills its whole namespace
            await readable(self.pidfd)
        if self._monitor_exit is not None and not self._monitor_exit.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._monitor, signal.SIGKILL)
            await self._monitor_exit
        if self._proxy_exit is not None and not self._proxy_exit.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._proxy, signal.SIGKILL)
            await self._proxy_exit
        self.nursery.children.kill_strangers()
        async with self._lock:  # an operation in flight notices that its process died, then lets go
            for shell in self._shells.values():
                await shell.stop()
            self._fds.close()
        self.nursery.forget(self)
        self.workspace.end()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One operation's turn; raises SandboxLost where there is nothing to operate on."""
        async with self._lock:
            if self.lost is not None:
                raise SandboxLost(f"sandbox {self.id} is gone: {self.lost}")
            if self._paused:
                raise SandboxError(f"sandbox {self.id} is paused: resume it first")
            yield

    # ------------------------------------------------------------------------------------------------------ commands

    async def exec(
        self,
        argv: list[str],
        cwd: str,
        stdin: bytes,
        timeout: float,
        background: bool,
        tell: Callable[[int, bytes], None] | None = None,
    ) -> tuple[dict[str, Any], bytes, bytes]:
        """Run one command; (fields of ExecResult, stdout, stderr)."""
        loop = asyncio.get_running_loop()
        async with self.turn():
            start = loop.time()
            before = self.processes()
            captures, report, pid, exited = self._execute(argv, cwd, stdin, tell)
            failure, timed_out, out_of_memory, leftovers = b"", False, False, True
            try:
                try:
                    async with asyncio.timeout(timeout):
                        failure = await read_pipe(report)
                        out_of_memory = not await self.ends_within_memory(pid, exited)
                except TimeoutError:
                    timed_out = True
                leftovers = timed_out or out_of_memory or (not background and bool(self.new_since(before)))
            finally:  # also where this is cancelled: nothing of the command may stay
                os.close(report)
                if out_of_memory:
                    await self.kill_everything()
                elif leftovers:
                    await self.kill_new(before, pid)
                if leftovers:
                    await asyncio.shield(exited)
                self._watch_on()
                (out, out_dropped), (err, err_dropped) = (capture.take() for capture in captures)
                for capture in captures:
                    capture.close()
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

    async def run_session(self, name: str, command: str, timeout: float) -> tuple[dict[str, Any], bytes, bytes]:
        """Run a command in a session's shell; as `exec`."""
        async with self.turn():
            if name not in self._shells:
                if len(self._shells) >= _MAX_SHELLS:
                    raise LimitExceeded("session", f"there are {_MAX_SHELLS} sessions already")
                self._shells[name] = Shell(self)
            try:
                result = await self._shells[name].run(command, timeout)
            finally:
                self._watch_on()
            if self.lost is not None:
                raise SandboxLost(f"sandbox {self.id} is gone: {self.lost}")
            return result

    async def close_session(self, name: str) -> None:
        """End a session's shell and forget its state."""
        async with self.turn():
            if (shell := self._shells.pop(name, None)) is not None:
                await shell.stop()

    def _execute(
        self, argv: list[str], cwd: str, stdin: bytes, tell: Callable[[int, bytes], None] | None
    ) -> tuple[list[Capture], int, int, asyncio.Future[int]]:
        """Fork the command into the sandbox: its output, report pipe (empty: it was executed), pid and exit status."""
        source = os.memfd_create("stdin", os.MFD_CLOEXEC) if stdin else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if stdin:
                archive.write_all(source, stdin)
                os.lseek(source, 0, os.SEEK_SET)
        except BaseException:
            os.close(source)
            raise
        return self._launch(argv, cwd, source, tell=tell)

    def launch_shell(self, argv: list[str]) -> tuple[list[Capture], int, int, int, asyncio.Future[int]]:
        """Fork a shell into the sandbox: its output, our ends of its input and control pipe, pid and exit status."""
        source, ours = os.pipe2(os.O_CLOEXEC)
        control, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            captures, report, pid, exited = self._launch(argv, WORKSPACE, source, theirs)
        except BaseException:
            os.close(ours)
            os.close(control)
            raise
        os.close(report)
        return captures, ours, control, pid, exited

    def _launch(
        self,
        argv: list[str],
        cwd: str,
        source: int,
        control: int | None = None,
        tell: Callable[[int, bytes], None] | None = None,
    ) -> tuple[list[Capture], int, int, asyncio.Future[int]]:
        """As `_execute`, with standard input (and file descriptor 4) from here; both are closed here."""
        loop = asyncio.get_running_loop()
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        theirs = [source, *(w for _, w in pipes), *([] if control is None else [control])]
        try:
            pid, exited = self._inside(self.nursery.porter.execute, argv, cwd, self._environment, self._rlimits, theirs)
        except BaseException:
            for r, _ in pipes:
                os.close(r)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        captures = [
            Capture(loop, r, self.limits.output_bytes, functools.partial(tell, i) if tell else None)
            for i, (r, _) in enumerate(pipes[:2], 1)
        ]
        return captures, pipes[2][0], pid, exited

    def _inside(self, fork: Callable[..., int], *args: Any) -> tuple[int, asyncio.Future[int]]:
        """Let the porter fork something into the sandbox: (pid as seen here, exit status)."""
        try:
            pid = fork(self.pidfd, *args)
        except OSError as error:  # the namespace is dead
            raise SandboxLost(f"sandbox {self.id} is gone: {error.strerror}") from error
        return pid, self.nursery.children.watch(pid)

    def processes(self) -> set[int]:
        """Every process but the first, a command that runs now, and the dead; as the nursery numbers them."""
        roots = [self.init, *(shell.pid for shell in self._shells.values() if shell.alive)]
        found = {pid for root in roots for pid, state in linux.descendants(root).items() if state not in "ZX"}
        return found | set(roots[1:])

    def new_since(self, before: set[int], shell: int | None = None) -> set[int]:
        """Processes that were not there before, nor come from one that was; `shell` is one whose children do count."""
        known = set(before)
        for pid in before - {shell}:
            known |= linux.descendants(pid).keys()
        return self.processes() - known

    async def ends_within_memory(self, pid: int, end: asyncio.Future[Any]) -> bool:
        """Wait for a command's end; False as soon as the sandbox holds more memory than its limit."""
        while True:
            done, _ = await asyncio.wait([end], timeout=max(_LOOK_S, self.nursery.busy / _LOOKS))
            if done:
                return True
            inside = {pid, *linux.descendants(pid), *self.processes()}
            if sum(map(linux.resident, inside)) > self.limits.memory_mb << 20:
                return False

    def _watch_on(self) -> None:
        """Look at memory between commands too, as long as more than idle shells is there: services, jobs of a shell."""
        if self.lost is None and not self._watching and self._more_than_shells():
            self._watching = True
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        self.nursery.watching += 1
        try:
            while self.lost is None and (inside := self._more_than_shells()):
                if not self._lock.locked() and sum(map(linux.resident, inside)) > self.limits.memory_mb << 20:
                    async with self._lock:
                        if self.lost is None:
                            await self.kill_everything()
                await asyncio.sleep(max(_LOOK_S, self.nursery.busy / _LOOKS))
        finally:
            self.nursery.watching -= 1
            self._watching = False

    def _more_than_shells(self) -> set[int]:
        """Every process where there is one besides the first and the shells; else none."""
        inside = self.processes()
        return inside if inside - {shell.pid for shell in self._shells.values()} else set()

    async def kill_everything(self) -> None:
        """Kill every process but the first."""
        await self._signal_all(signal.SIGKILL)

    async def kill_new(self, before: set[int], command: int | None = None, shell: int | None = None) -> None:
        """Kill what is `new_since` (and `command` with what it started); the others go on."""
        if not before:
            return await self.kill_everything()
        for _ in range(_KILL_ROUNDS):
            await self._signal_all(signal.SIGSTOP)  # nothing forks while this looks
            new = self.new_since(before, shell)
            if command is not None:
                new |= {pid for pid, state in linux.descendants(command).items() if state not in "ZX"}
            for pid in new | ({command} if command is not None else set()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not new:
                break
            command = None
            await asyncio.sleep(0.001)
        await self._signal_all(signal.SIGCONT)

    async def _signal_all(self, number: int) -> None:
        """Signal every process of the sandbox at once, except its first."""
        with contextlib.suppress(SandboxLost):
            await asyncio.shield(self._inside(self.nursery.porter.signal_all, number)[1])

    # ------------------------------------------------------------------------------------------------- standing still

    async def quiesce(self) -> tuple[dict[str, str], bool]:
        """State of the sessions, and whether nothing but idle shells (now ended) was running."""
        sessions = {name: await shell.state() for name, shell in self._shells.items()}
        shells = {shell.pid for shell in self._shells.values() if shell.alive}
        quiet = self.processes() == shells
        if quiet and self.nursery.overlay:
            for shell in self._shells.values():
                await shell.stop()
        return sessions, quiet

    @contextlib.asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """All processes stopped where they are, and going on afterwards."""
        frozen = bool(self.processes())
        try:
            if frozen:
                await self._stop_all()
            yield
        finally:
            if frozen:
                await self._signal_all(signal.SIGCONT)

    async def pause(self) -> None:
        """Stop every process; refuse commands."""
        async with self.turn():
            await self._stop_all()
            self._paused = True

    async def resume(self) -> None:
        """Let every process go on."""
        async with self._lock:
            if self._paused:
                self._paused = False
                await self._signal_all(signal.SIGCONT)

    async def _stop_all(self) -> None:
        await self._signal_all(signal.SIGSTOP)
        for _ in range(int(_FREEZE_S / 0.005)):
            inside = self.processes()
            if all(linux.state(pid) in "TZtX" for pid in inside):
                return
            await asyncio.sleep(0.005)
        raise SandboxUnavailable(f"sandbox {self.id}: processes did not stop within {_FREEZE_S:g} s")
