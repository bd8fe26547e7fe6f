"""The /workspace of one sandbox, as its nursery sees it: files, what is frozen, and what lies on what.

Changes go to an own memory filesystem, `upper`, on the layers below. Freezing makes that a layer too and goes on in a
new one, where nothing runs inside; else the content is copied while everything stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from environments.sandbox import archive, linux
from environments.sandbox.api import LAYER, WORKSPACE, LimitExceeded, SandboxLost
from environments.sandbox.layers import Layer, copy_tree, discard, memory_filesystem

if TYPE_CHECKING:
    from environments.sandbox.box import Box

_DEPTH = 16  # layers under a workspace: each lookup of a missing name asks them all
_REFUSED = (errno.ELOOP, errno.EXDEV, errno.ENXIO)  # a symbolic link, a path that leaves /workspace, a fifo or socket


class Workspace:
    """`begin` once, then `attach`, then the operations one at a time, then `end`."""

    def __init__(self, box: Box) -> None:
        self._box, self._nursery = box, box.nursery
        self.limits, self.live = box.limits, box.live
        self._fd = -1
        self._numbers = itertools.count(1)
        self._upper = self._upper_mount = ""
        self._base: Layer | None = None
        """What lies below `_upper`."""
        self._frozen: Layer | None = None
        """The content of the last freeze."""

    async def begin(self, content: str | None) -> tuple[list[str], dict[str, str]]:
        """Lay out the folders for a snapshot or layer (or empty); the layers below, and the sessions' states."""
        limits, layers = self.limits, self._nursery.layers
        memory_filesystem(self.live, limits.disk_mb, limits.files)
        for name, mode in (("w", 0o755), ("k", 0o700), ("t", 0o1777), ("s", 0o1777)):
            os.mkdir(f"{self.live}/{name}", mode)
        self._upper, self._upper_mount = f"{self.live}/w", self.live
        if content is None:  # on an overlay too: without one, the agent could write its marks into what is frozen later
            return [self._nursery.empty] if self._nursery.overlay else [], {}
        if not self._nursery.overlay and not content.startswith(LAYER):
            return [], await layers.unpack_into(self._upper, content)
        base = await layers.open(content, self._box.id, limits)
        if self._nursery.overlay:
            self._base = base
            _liken(self._upper, base.folder)
            return base.stack(), base.sessions
        with self._merged(base) as root:
            await self._nursery.children.run(copy_tree, root, self._upper, 2 * limits.disk_mb << 20)
        layers.release(self._box.id, base)
        return [], base.sessions

    def attach(self, init: int, fds: contextlib.ExitStack) -> None:
        """Open it, as the process `init` sees it."""
        self._fd = os.open(f"/proc/{init}/root{WORKSPACE}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        fds.callback(os.close, self._fd)

    def end(self) -> None:
        """Give back the folder of changes; of what is frozen, the layers dispose."""
        discard(self._upper_mount or self.live)

    async def read(self, path: str) -> bytes:
        """Bytes of a regular file below /workspace."""
        async with self._box.turn():
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
        async with self._box.turn():
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

    async def freeze(self) -> Layer:
        """The content of now as a layer, which stays until the next freeze or the end of this box."""
        async with self._box.turn():
            return await self._freeze_content()

    async def snapshot(self) -> str:
        """Freeze, store, continue; the content's digest. Where nothing runs inside, commands go on meanwhile."""
        name = f"{self._box.id}.{next(self._numbers)}"
        layers = self._nursery.layers
        async with self._box.turn():
            sessions, quiet = await self._box.quiesce()
            if not (quiet and self._nursery.overlay):
                async with self._box.stopped():
                    return await self._store(self._fd, name, sessions)
            layer = await self._freeze_content((sessions, quiet))
            layer.users.add(name)
        try:
            if layer.snapshot is None:
                with self._merged(layer) as root:
                    layer.snapshot = await self._store(root, name, sessions)
            return layer.snapshot
        finally:
            layers.release(name, layer)

    async def _store(self, root: int, name: str, sessions: dict[str, str]) -> str:
        limit = 2 * self.limits.disk_mb << 20  # of content; sparse files count in full
        store = self._nursery.store
        try:
            return await self._nursery.children.run(store_snapshot, root, store, name, limit, sessions)
        finally:
            with contextlib.suppress(FileNotFoundError):  # also of one that was killed half-way
                os.unlink(f"{store}/tmp/{name}")

    async def _freeze_content(self, quiesced: tuple[dict[str, str], bool] | None = None) -> Layer:
        sessions, quiet = quiesced or await self._box.quiesce()
        base, layers = self._base, self._nursery.layers
        if base is not None and base.sessions == sessions and _untouched(self._upper, base.folder):
            return base
        if not quiet or not self._nursery.overlay:
            async with self._box.stopped():
                new = await layers.copy(self._fd, self._box.id, self.limits)
        elif self._own_bytes() > 2 * self.limits.disk_mb << 20 or len(base.stack() if base else ()) >= _DEPTH:
            new = await layers.copy(self._fd, self._box.id, self.limits)
            upper, mount = self._upper, self._upper_mount
            try:
                await self._rebase(new, upper)
            finally:
                discard(mount)
        else:
            new = layers.keep(self._upper, self._upper_mount, base, self._box.id)
            await self._rebase(new, self._upper)
        new.sessions = sessions
        for old in (self._frozen, base):
            if old is not None and old is not new and old is not self._base:
                layers.release(self._box.id, old)
        self._frozen = new
        return new

    async def _rebase(self, layer: Layer, like: str) -> None:
        """Go on upon a layer, with an empty folder for changes; nothing runs inside."""
        mount = f"{self.live}+{next(self._numbers)}"
        memory_filesystem(mount, self.limits.disk_mb, self.limits.files)
        self._base, self._upper, self._upper_mount = layer, f"{mount}/w", mount
        os.mkdir(self._upper)
        os.mkdir(f"{mount}/k", 0o700)
        _liken(self._upper, like)
        merged = linux.detached_overlay(layer.stack(), self._upper, f"{mount}/k", self._nursery.passage)

        def swap() -> None:
            linux.setns(self._box.pidfd, linux.CLONE_NEWNS)
            linux.unmount(WORKSPACE)
            linux.attach(merged, WORKSPACE)

        try:
            _, exited = self._nursery.children.fork(swap)
            cancelled: asyncio.CancelledError | None = None
            while not exited.done():  # milliseconds; half-way, the box would look at a folder that is no more
                try:
                    await asyncio.shield(exited)
                except asyncio.CancelledError as error:
                    cancelled = error
            if exited.result() != 0:
                self._box.lose("its workspace could not be exchanged")
                raise SandboxLost(f"sandbox {self._box.id} is gone: {self._box.lost}")
        finally:
            os.close(merged)
        fresh = os.open(f"/proc/{self._box.init}/root{WORKSPACE}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.dup2(fresh, self._fd, inheritable=False)
        os.close(fresh)
        if cancelled is not None:
            raise cancelled

    def _own_bytes(self) -> int:
        """Bytes of the layers that this box has frozen and lies on."""
        total, layer = 0, self._base
        while layer is not None and (layer.mount == self.live or layer.mount.startswith(f"{self.live}+")):
            info = os.statvfs(layer.mount)
            total += (info.f_blocks - info.f_bfree) * info.f_frsize
            layer = layer.below
        return total

    @contextlib.contextmanager
    def _merged(self, layer: Layer) -> Iterator[int]:
        """Directory fd of a layer's content."""
        stack = layer.stack()
        if len(stack) == 1:
            fd = os.open(stack[0], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            fd = linux.detached_overlay(stack, None, None, self._nursery.passage)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open(self, path: str, flags: int, mode: int = 0) -> int:
        """Open a regular file below /workspace, following no symbolic link."""
        try:
            fd = linux.open_beneath(self._fd, _relative(path), flags | os.O_NONBLOCK | os.O_NOFOLLOW, mode)
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
            fd = linux.open_beneath(self._fd, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _refusal(error, relative) from error
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=fd)
        finally:
            os.close(fd)

    def _check_size(self, path: str, size: int) -> None:
        if size > self.limits.file_mb << 20:
            raise LimitExceeded("file", f"{path}: {size} bytes are more than {self.limits.file_mb} MB")


def _liken(folder: str, other: str) -> None:
    """Give a folder the mode and the attributes of another: the root of an overlay has those of its upper folder."""
    for key in os.listxattr(other):
        if key.startswith("user.") and not key.startswith("user.overlay."):
            os.setxattr(folder, key, os.getxattr(other, key))
    os.chmod(folder, stat.S_IMODE(os.stat(other).st_mode))


def _untouched(upper: str, base: str) -> bool:
    """Whether the folder for changes holds none."""
    here, there = os.stat(upper), os.stat(base)
    attributes = [{k: os.getxattr(f, k) for k in os.listxattr(f) if "user.overlay." not in k} for f in (upper, base)]
    return not os.listdir(upper) and here.st_mode == there.st_mode and attributes[0] == attributes[1]


def store_snapshot(workspace: int, store: str, name: str, max_bytes: int, sessions: dict[str, str]) -> str:
    """Pack a directory (O_PATH fd) into the store: temporary file, fsync, rename; returns its id.

    Runs in a child that may be killed at any moment: its parent removes tmp/`name` where it is left.
    """
    root = linux.open_beneath(workspace, ".", os.O_RDONLY | os.O_DIRECTORY)
    temporary = f"{store}/tmp/{name}"
    with open(temporary, "wb") as file:
        digest = archive.pack(root, file, max_bytes, sessions)
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
