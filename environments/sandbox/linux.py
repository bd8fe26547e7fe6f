"""System calls that Python 3.11 does not wrap. All raise OSError with the call's name."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
# the same numbers on every architecture (asm-generic/unistd.h)
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_CLOSE_RANGE, _SYS_OPENAT2 = 428, 429, 436, 437
_AT_FDCWD, _OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = -100, 1, 4

_SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine, -1)
_CLONE_PARENT = 0x8000

_libc = ctypes.CDLL(None, use_errno=True)
_python = ctypes.PyDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """setns(2); a pidfd with several flags joins several namespaces at once (Linux 5.8)."""
    _check(_libc.setns(fd, flags), "setns")


def fork_sibling() -> int:
    """A fork whose parent is this process's own: its pid, or 0 in the child. Only for a process of one thread.

    The C library's fork has no such flag. `PyDLL` keeps the interpreter's lock, which the child then holds as well.
    """
    return _check(_python.syscall(_SYS_CLONE, ctypes.c_ulong(_CLONE_PARENT | signal.SIGCHLD), 0, 0, 0, 0), "clone")


def prctl(option: int, value: int = 0, pointer: object = 0) -> None:
    """prctl(2) with up to two arguments."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), pointer, 0, 0), f"prctl({option})")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    _check(
        _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()),
        f"mount {target}",
    )


def unmount(target: str) -> None:
    """Detach a mount: it disappears at once and is freed when nothing uses it."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), "umount2")


def detached_overlay(lower: Sequence[str], upper: str | None, work: str | None, folder: str) -> int:
    """An overlay that is mounted nowhere, as a directory fd (O_PATH); without `upper` it is read-only.

    lower: topmost first. folder: an empty one, used on the way.
    """
    options = f"lowerdir={':'.join(lower)},userxattr"
    if upper is not None:
        options += f",upperdir={upper},workdir={work}"
    mount("workspace", folder, "overlay", MS_NOSUID | MS_NODEV, options)
    try:
        flags = ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC)
        return _check(_libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, folder.encode(), flags), "open_tree")
    finally:
        unmount(folder)


def attach(detached: int, folder: str) -> None:
    """Mount a detached mount on a folder of this process's mount namespace."""
    _check(
        _libc.syscall(_SYS_MOVE_MOUNT, detached, b"", _AT_FDCWD, folder.encode(), _MOVE_MOUNT_F_EMPTY_PATH),
        "move_mount",
    )


def open_beneath(directory: int, path: str | bytes, flags: int, mode: int = 0) -> int:
    """openat2(2) below a directory fd: no `..` beyond it, no absolute path, and no symbolic link anywhere.

    Raises OSError: ELOOP for a symbolic link, EXDEV for a path that leaves the directory.
    """
    how = (ctypes.c_uint64 * 3)(
        flags | os.O_CLOEXEC, mode, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    )
    call = _libc.syscall
    call.restype = ctypes.c_long
    raw = os.fsencode(path)
    return _check(call(_SYS_OPENAT2, directory, ctypes.c_char_p(raw), ctypes.byref(how), ctypes.sizeof(how)), "openat2")


def close_from(first: int) -> None:
    """Close every file descriptor from `first` on (close_range(2), Linux 5.9)."""
    _check(_libc.syscall(_SYS_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), 0), "close_range")


class SeccompFilter:
    """An assembled filter, kept ready: `install` is called between fork and exec."""

    def __init__(self, program: bytes) -> None:
        self._steps = ctypes.create_string_buffer(program, len(program))

        class Header(ctypes.Structure):  # struct sock_fprog
            _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]

        self._header = Header(len(program) // 8, ctypes.addressof(self._steps))

    def install(self) -> None:
        """Filter this process and what it executes; needs no_new_privs."""
        prctl(PR_SET_SECCOMP, 2, ctypes.byref(self._header))  # SECCOMP_MODE_FILTER


def drop_capability_bounds() -> None:
    """Empty the capability bounding set: nothing executed later can gain one."""
    capability = 0
    while _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:  # EINVAL: past the last one of this kernel
        capability += 1


def children(pid: int) -> list[int]:
    """Child pids of a process, as this process's /proc numbers them."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:  # the process is gone, or a kernel without CONFIG_PROC_CHILDREN
        return [other for other in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _stat(other)[1] == str(pid)]


def descendants(pid: int) -> dict[int, str]:
    """Every process below `pid` and its state letter (man 5 proc: R, S, D, T stopped, Z zombie)."""
    found: dict[int, str] = {}
    todo = children(pid)
    while todo:
        child = todo.pop()
        found[child] = _stat(child)[0]
        todo += children(child)
    return found


def resident(pid: int) -> int:
    """Bytes of memory that a process holds (shared ones count for each); 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def state(pid: int) -> str:
    """State letter of a process; Z if it is gone."""
    return _stat(pid)[0]


def _stat(pid: int) -> tuple[str, str]:
    """(state, parent pid) of a process; ("Z", "") if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
            return state, parent
    except (FileNotFoundError, ProcessLookupError):
        return "Z", ""


_SINGLE_ID_BASE = 1_900_000_001  # outside /etc/subuid ranges and systemd's (systemd docs/UIDS-GIDS.md)


def unprivileged_id(map_text: str) -> int:
    """A host uid (gid) for sandboxes when the owner is root, from /proc/self/uid_map's (gid_map's) text.

    The preferred id where it is mapped, else the last mapped id that is neither 0 nor `nobody` (65534).
    Raises ValueError if the map holds none.
    """
    ranges = [(int(a), int(n)) for a, _, n in (line.split() for line in map_text.splitlines())]
    if any(a <= _SINGLE_ID_BASE < a + n for a, n in ranges):
        return _SINGLE_ID_BASE
    last = [i for a, n in ranges for i in (a + n - 1, a + n - 2) if i >= a and i not in (0, 65534)]
    if not last:
        raise ValueError("this user namespace maps no id except 0")
    return max(last)
