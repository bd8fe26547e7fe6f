"""The porter: a small process that forks whatever is to run in a sandbox, straight into the sandbox's namespaces.

A fork copies the tables of memory pages and of file descriptors, and the child gives both back. The nursery of a
thousand sandboxes holds several thousand descriptors; the porter is forked before there is any sandbox, and holds two.
What it forks are children of the nursery (CLONE_PARENT), to which the kernel tells how they end. A child joins the
sandbox, drops everything it has, and is then executed; what it costs is the pages that it touches until then.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from environments.sandbox import linux
from environments.sandbox.api import Limits

_NAMESPACES = linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
if os.path.exists("/proc/self/ns/cgroup"):
    _NAMESPACES |= linux.CLONE_NEWCGROUP
_SIZE = struct.Struct(">I")  # bytes of a JSON request
_PID = struct.Struct(">i")  # of the child, or minus an errno
_MAX_FDS = 8  # the namespace and at most five that the command gets


class Porter:
    """The nursery's side. Its process ends with the nursery, and the nursery with it."""

    def __init__(self, program: bytes) -> None:
        self._socket, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(theirs.fileno(), 3)
                linux.close_from(4)
                _serve(socket.socket(fileno=3), linux.SeccompFilter(program))
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(1)
        theirs.close()

    def execute(
        self,
        sandbox: int,
        argv: Sequence[str],
        cwd: str,
        environment: Mapping[str, str],
        rlimits: Mapping[int, int],
        fds: Sequence[int],
    ) -> int:
        """Execute a command with `fds` as its 0, 1, 2, a report and perhaps a 4; its pid here.

        sandbox: pidfd of its first process. The report gets what went wrong before the command could be executed, and
        ends when it is. Raises OSError: ESRCH, EINVAL, ENOMEM where the sandbox is dead.
        """
        what = {"argv": argv, "cwd": cwd, "env": environment, "rlimits": list(rlimits.items())}
        return self._fork(sandbox, what, fds)

    def signal_all(self, sandbox: int, number: int) -> int:
        """Signal every process of the sandbox at once, except its first; pid of the child that does it.

        kill(-1) is atomic against forks. Raises as `execute`.
        """
        return self._fork(sandbox, {"signal": number})

    def _fork(self, sandbox: int, what: dict[str, Any], fds: Sequence[int] = ()) -> int:
        text = json.dumps(what).encode()
        data = _SIZE.pack(len(text)) + text
        sent = socket.send_fds(self._socket, [data], [sandbox, *fds])
        self._socket.sendall(memoryview(data)[sent:])
        answer = self._socket.recv(_PID.size, socket.MSG_WAITALL)
        if not answer:
            raise BrokenPipeError("the porter has ended")
        (pid,) = _PID.unpack(answer)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid


def rlimits(limits: Limits) -> dict[int, int]:
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


# ------------------------------------------------------------------------------------------------------------- porter


def _serve(control: socket.socket, filter_: linux.SeccompFilter) -> None:
    """Fork for each request, until the nursery is gone. What its children inherit is set once."""
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY)
    os.umask(0o022)
    for name in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, and that would survive exec
        signal.signal(name, signal.SIG_DFL)
    while (request := _receive(control)) is not None:
        what, (sandbox, *fds) = request
        try:
            linux.setns(sandbox, linux.CLONE_NEWPID)  # of children only
            pid = linux.fork_sibling()
            if pid == 0:
                _run(what, sandbox, fds, filter_)
        except OSError as error:
            pid = -(error.errno or 1)
        finally:
            linux.setns(own_pids, linux.CLONE_NEWPID)
        control.sendall(_PID.pack(pid))
        for fd in (sandbox, *fds):
            os.close(fd)


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    data, fds, _, _ = socket.recv_fds(control, 1 << 16, _MAX_FDS)
    if not data:
        return None
    (size,) = _SIZE.unpack_from(data)
    parts, missing = [data[_SIZE.size :]], size + _SIZE.size - len(data)
    while missing > 0:
        parts.append(control.recv(missing))
        missing -= len(parts[-1]) or missing
    return json.loads(b"".join(parts)), fds


def _run(what: dict[str, Any], sandbox: int, fds: list[int], filter_: linux.SeccompFilter) -> None:
    """In the child; does not return. It cannot be traced until it is executed."""
    try:
        if "signal" in what:
            os.kill(-1, what["signal"])
        else:
            _become(what, sandbox, fds, filter_)
    except ProcessLookupError:  # nobody to signal
        pass
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(0)


def _become(what: dict[str, Any], sandbox: int, fds: list[int], filter_: linux.SeccompFilter) -> None:
    """Join the sandbox, give up everything, execute."""
    argv, report = what["argv"], fds[3]
    where = "inside: setns"
    try:
        linux.setns(sandbox, _NAMESPACES)
        fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, 8) for fd in fds]  # above what they become: none overwrites another
        for target, fd in enumerate(fds):
            os.dup2(fd, target, inheritable=target != 3)
        report = 3
        linux.close_from(len(fds))
        where = "inside: limits"
        os.setsid()
        for kind, value in what["rlimits"]:
            resource.setrlimit(kind, (value, value))
        linux.drop_capability_bounds()
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        filter_.install()
        where = "cwd"
        os.chdir(what["cwd"])
        where = "command"
        _execute(argv, what["env"])
    except (OSError, ValueError) as error:  # ValueError: an argument with a NUL or a lone surrogate
        text = error.strerror if isinstance(error, OSError) else "not a possible argument"
        os.write(report if where.startswith("inside") else 2, f"{where}: {text}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _execute(argv: list[str], environment: dict[str, str]) -> None:
    """As `os.execvpe`, which touches 106 more pages of memory (296, not 190), and each is a fault of every child."""
    folders = [] if "/" in argv[0] else environment["PATH"].split(":")
    for path in [f"{folder}/{argv[0]}" for folder in folders]:
        if os.access(path, os.X_OK):
            try:
                os.execve(path, argv, environment)
            except OSError:
                break
    os.execvpe(argv[0], argv, environment)
