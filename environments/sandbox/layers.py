"""Frozen contents of /workspace in a nursery: stacks of memory filesystems that sandboxes share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from dataclasses import dataclass, field

from environments.sandbox import api, archive, linux
from environments.sandbox.children import Children


@dataclass(eq=False)
class Layer:
    """One frozen content: a folder, and what it lies on."""

    name: str
    """Snapshot id, or a LayerId."""
    folder: str
    mount: str
    """The memory filesystem that holds the folder."""
    below: Layer | None = None
    sessions: dict[str, str] = field(default_factory=dict)
    """State of the shell sessions, by name."""
    users: set[str] = field(default_factory=set)
    """Names of the sandboxes, layers and snapshots in progress that need it."""
    snapshot: str | None = None
    """Its content's digest, once that is in the store."""

    def stack(self) -> list[str]:
        """Folders, topmost first, as an overlay takes them."""
        return [self.folder, *(self.below.stack() if self.below else [])]


class Layers:
    """All layers of one nursery, each as long as it has users."""

    def __init__(self, folder: str, store: str, children: Children) -> None:
        self._folder, self._store, self._children = folder, store, children
        self._all: dict[str, Layer] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._numbers = itertools.count()

    async def open(self, name: str, user: str, limits: api.Limits) -> Layer:
        """The layer of a snapshot id (unpacked if it is not yet) or of a LayerId; raises SandboxUnavailable."""
        if name not in self._all:
            if name.startswith(api.LAYER):
                raise api.SandboxUnavailable(
                    f"{name} is gone: its sandbox was frozen again or closed; take a snapshot to keep a content"
                )
            self._all[name] = Layer(name, *self._place(limits), snapshot=name)
            self._opening[name] = asyncio.create_task(self._unpack(self._all[name]))
        layer = self._all[name]
        layer.users.add(user)
        if (opening := self._opening.get(name)) is not None:
            await asyncio.shield(opening)
        return layer

    async def _unpack(self, layer: Layer) -> None:
        layer.sessions = await self.unpack_into(layer.folder, layer.name)
        del self._opening[layer.name]

    async def unpack_into(self, folder: str, snapshot: str) -> dict[str, str]:
        """Unpack a stored snapshot into an empty folder; its sessions. Raises SandboxUnavailable if it is not whole."""
        archive_path = f"{self._store}/snapshots/{os.path.basename(snapshot)}.tar"
        return await self._children.run(_unpack, archive_path, folder, snapshot)

    async def copy(self, root: int, user: str, limits: api.Limits) -> Layer:
        """A layer with a copy of the tree below a directory fd."""
        layer = Layer(_name(), *self._place(limits), users={user})
        self._all[layer.name] = layer
        try:
            await self._children.run(copy_tree, root, layer.folder, 2 * limits.disk_mb << 20)
        except BaseException:
            self.release(user, layer)
            raise
        return layer

    def keep(self, folder: str, mount: str, below: Layer | None, user: str) -> Layer:
        """Make a layer of a folder that is written to no more; its mount is now the layer's."""
        layer = Layer(_name(), folder, mount, below, users={user})
        if below is not None:
            below.users.add(layer.name)
        self._all[layer.name] = layer
        return layer

    def release(self, user: str, layer: Layer) -> None:
        """A user is gone; what has no user left is unmounted."""
        layer.users.discard(user)
        if not layer.users and self._all.pop(layer.name, None) is not None:
            self._opening.pop(layer.name, None)
            discard(layer.mount)
            if layer.below is not None:
                self.release(layer.name, layer.below)

    def release_all(self, user: str) -> None:
        """A user of any layers is gone."""
        for layer in list(self._all.values()):
            if user in layer.users:
                self.release(user, layer)

    def _place(self, limits: api.Limits) -> tuple[str, str]:
        """(folder, mount) of a new, empty memory filesystem; larger than a sandbox's: restored sparse files count."""
        folder = f"{self._folder}/{next(self._numbers)}"
        memory_filesystem(folder, 3 * limits.disk_mb)
        return folder, folder


def _name() -> str:
    """A new LayerId that nobody can guess: clients of one sandboxd share its nursery."""
    return f"{api.LAYER}{os.urandom(16).hex()}"


def memory_filesystem(folder: str, mb: int, files: int | None = None) -> None:
    """Mount an empty one of at most `mb` MB (and so many files) on a new folder."""
    os.mkdir(folder, 0o755)
    size = f"size={mb}m,mode=755" + (f",nr_inodes={files}" if files is not None else "")
    linux.mount("sandbox", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, size)


def discard(folder: str) -> None:
    """Undo `memory_filesystem`, also where it failed half-way."""
    with contextlib.suppress(OSError):
        linux.unmount(folder)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def copy_tree(root: int, folder: str, max_bytes: int) -> None:
    """Copy a (hostile) tree below a directory fd into an empty folder."""
    directory = linux.open_beneath(root, ".", os.O_RDONLY | os.O_DIRECTORY)
    with open(os.memfd_create("copy", os.MFD_CLOEXEC), "w+b") as file:
        digest = archive.pack(directory, file, max_bytes)
        file.seek(0)
        archive.unpack(file, os.open(folder, os.O_RDONLY | os.O_DIRECTORY), digest)


def _unpack(path: str, folder: str, snapshot: str) -> dict[str, str]:
    if not os.path.exists(path):
        raise api.SandboxUnavailable(f"snapshot {snapshot} is not in the store")
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with open(path, "rb") as file:
        return archive.unpack(file, root, snapshot)
