"""A directory tree as one tar file, addressed by its content.

The digest covers names, types, modes, link targets, user extended attributes and bytes, in sorted order. Times are kept
(to a microsecond) but are not part of it: equal content has equal ids on every run and machine, and where it already is
in the store, the first times stay. Hard links become separate files; sockets (dead without their process) are left out.
The tree may be hostile: every step is relative to a directory fd and follows no symbolic link.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from typing import BinaryIO
from urllib.parse import quote, unquote_to_bytes

from environments.sandbox.api import LimitExceeded, SandboxUnavailable
from environments.sandbox.linux import open_beneath

_MAX_DEPTH = 64
_CHUNK = 1 << 20
_XATTR = "SCHILY.xattr."  # the key that GNU tar and bsdtar use in pax headers; names are percent-encoded as they do
_OWNER = 1000  # uid and gid of every file, as the sandbox sees them
_KINDS = {stat.S_IFREG: tarfile.REGTYPE, stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE}
_KINDS[stat.S_IFIFO] = tarfile.FIFOTYPE


class _Digest:
    """The content address, fed member by member; the same when packing and when unpacking."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def member(self, m: tarfile.TarInfo) -> None:
        xattrs = sorted((k, v) for k, v in m.pax_headers.items() if k.startswith(_XATTR))
        row = [m.name, m.type.decode(), m.mode, m.linkname, m.size, xattrs]
        text = json.dumps(row, ensure_ascii=True).encode()
        self._hash.update(len(text).to_bytes(8, "big") + text)

    def data(self, chunk: bytes) -> None:
        self._hash.update(chunk)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class _Tee:
    """A reader that feeds what is read to the digest."""

    def __init__(self, file: BinaryIO, digest: _Digest) -> None:
        self._file, self._digest = file, digest

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._digest.data(data)
        return data


def pack(root: int, out: BinaryIO, max_bytes: int) -> str:
    """Write the tree below directory fd `root` as a tar file; returns its content digest (hex).

    Raises LimitExceeded("snapshot") beyond `max_bytes` of file content (sparse files count in full) or 64 levels.
    """
    digest = _Digest()
    total = 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for name, fd, member in _walk(root, ".", 0):
            total += member.size
            if total > max_bytes:
                raise LimitExceeded("snapshot", f"/workspace holds more than {max_bytes} bytes at {name!r}")
            digest.member(member)
            if member.isreg():
                with open(fd, "rb", closefd=False) as file:
                    tar.addfile(member, _Tee(file, digest))
            else:
                tar.addfile(member)
    return digest.hexdigest()


def _walk(directory: int, name: str, depth: int) -> Iterator[tuple[str, int, tarfile.TarInfo]]:
    """(path, open fd or -1, member) of a directory and everything below it, sorted; fds are closed after each step."""
    if depth > _MAX_DEPTH:
        raise LimitExceeded("snapshot", f"/workspace is deeper than {_MAX_DEPTH} levels at {name!r}")
    yield name, directory, _member(name, os.fstat(directory), directory)
    for entry in sorted(os.listdir(directory)):
        path = f"{name}/{entry}" if name != "." else entry
        info = os.stat(entry, dir_fd=directory, follow_symlinks=False)
        kind = stat.S_IFMT(info.st_mode)
        if kind in (stat.S_IFREG, stat.S_IFDIR):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(entry, flags | (os.O_DIRECTORY if kind == stat.S_IFDIR else 0), dir_fd=directory)
            try:
                if kind == stat.S_IFDIR:
                    yield from _walk(fd, path, depth + 1)
                else:
                    yield path, fd, _member(path, os.fstat(fd), fd)
            finally:
                os.close(fd)
        elif kind in _KINDS:
            member = _member(path, info, -1)
            if kind == stat.S_IFLNK:
                member.linkname = os.readlink(entry, dir_fd=directory)
            yield path, -1, member


def _member(name: str, info: os.stat_result, fd: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = _KINDS[stat.S_IFMT(info.st_mode)]
    member.mode = stat.S_IMODE(info.st_mode) if member.type != tarfile.SYMTYPE else 0o777
    member.size = info.st_size if member.type == tarfile.REGTYPE else 0
    member.mtime = info.st_mtime_ns / 1e9
    member.uid = member.gid = _OWNER
    names = [key for key in os.listxattr(fd) if key.startswith("user.")] if fd >= 0 else []
    member.pax_headers = {
        _XATTR + quote(os.fsencode(key)): os.getxattr(fd, key).decode("utf-8", "surrogateescape") for key in names
    }
    return member


def unpack(file: BinaryIO, root: int, expected: str) -> None:
    """Recreate a packed tree below the EMPTY directory fd `root` and verify its digest.

    Raises SandboxUnavailable if the archive is damaged or is not the expected content: nothing runs on such a tree.
    """
    digest = _Digest()
    directories: list[tarfile.TarInfo] = []
    try:
        with tarfile.open(fileobj=file, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                digest.member(member)
                if member.isdir():
                    directories.append(member)
                _create(tar, member, root, digest)
    except (tarfile.TarError, EOFError, FileExistsError, FileNotFoundError, NotADirectoryError) as error:
        raise SandboxUnavailable(f"snapshot {expected}: damaged archive ({error})") from error
    if digest.hexdigest() != expected:
        raise SandboxUnavailable(f"snapshot {expected}: content has digest {digest.hexdigest()}")
    for member in reversed(directories):  # last, because creating entries changes a directory's time
        fd = os.dup(root) if member.name == "." else open_beneath(root, member.name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _finish(fd, member)
        finally:
            os.close(fd)


def _create(tar: tarfile.TarFile, member: tarfile.TarInfo, root: int, digest: _Digest) -> None:
    if member.name == ".":
        return
    parent, _, name = member.name.rpartition("/")
    directory = open_beneath(root, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        if member.isdir():
            os.mkdir(name, 0o700, dir_fd=directory)
        elif member.issym():
            os.symlink(member.linkname, name, dir_fd=directory)
            os.utime(name, ns=_times(member), dir_fd=directory, follow_symlinks=False)
        elif member.isfifo():
            os.mkfifo(name, member.mode, dir_fd=directory)
        elif member.isreg():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600, dir_fd=directory)
            try:
                source = tar.extractfile(member)
                while source is not None and (chunk := source.read(_CHUNK)):
                    digest.data(chunk)
                    if chunk.count(0) == len(chunk):
                        os.lseek(fd, len(chunk), os.SEEK_CUR)  # sparse stays sparse: the limit counts blocks
                    else:
                        write_all(fd, chunk)
                os.ftruncate(fd, member.size)
                _finish(fd, member)
            finally:
                os.close(fd)
        else:
            raise SandboxUnavailable(f"snapshot holds {member.name!r} of type {member.type!r}")
    finally:
        os.close(directory)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes to a file descriptor, however many calls it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _finish(fd: int, member: tarfile.TarInfo) -> None:
    for key, value in member.pax_headers.items():
        if key.startswith(_XATTR):
            os.setxattr(fd, unquote_to_bytes(key.removeprefix(_XATTR)), value.encode("utf-8", "surrogateescape"))
    os.fchmod(fd, member.mode)
    os.utime(fd, ns=_times(member))


def _times(member: tarfile.TarInfo) -> tuple[int, int]:
    ns = round(float(member.mtime) * 1e9)
    return ns, ns
