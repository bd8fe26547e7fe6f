"""A directory tree as one tar file, addressed by its content.

The digest covers names, types, modes, link targets, user extended attributes and bytes, in sorted order. Times are kept
(to a microsecond) but are not part of it: equal content has equal ids on every run and machine, and where it already is
in the store, the first times stay. Hard links become separate files; sockets (dead without their process) are left out.
The overlay's own marks (`user.overlay.*`) are left out: unpacked below another overlay they would hide files.
The tree may be hostile: every step is relative to a directory fd and follows no symbolic link.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote_to_bytes

from environments.sandbox.api import LimitExceeded, SandboxUnavailable
from environments.sandbox.linux import open_beneath

_MAX_DEPTH = 64
_CHUNK = 1 << 20
_XATTR = "SCHILY.xattr."  # the key that GNU tar and bsdtar use in pax headers; names are percent-encoded as they do
_MARKS = "user.overlay."  # what an overlay with `userxattr` notes of its layers
_SESSIONS = "JOINTRL.sessions"  # of the root: state of the shell sessions, as JSON
_OWNER = 1000  # uid and gid of every file, as the sandbox sees them
_KINDS = {stat.S_IFREG: tarfile.REGTYPE, stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE}
_KINDS[stat.S_IFIFO] = tarfile.FIFOTYPE


class _Digest:
    """The content address, fed member by member; the same when packing and when unpacking."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def member(self, m: tarfile.TarInfo) -> None:
        xattrs = sorted((k, v) for k, v in m.pax_headers.items() if k.startswith(_XATTR) or k == _SESSIONS)
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


def pack(root: int, out: BinaryIO, max_bytes: int, sessions: dict[str, str] | None = None) -> str:
    """Write the tree below directory fd `root` (and shell sessions) as a tar file; returns its content digest (hex).

    Raises LimitExceeded("snapshot") beyond `max_bytes` of file content (sparse files count in full) or 64 levels.
    """
    digest = _Digest()
    total = 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        tar.copybufsize = _CHUNK  # type: ignore[attr-defined]
        for name, fd, member in _walk(root, ".", 0):
            if name == "." and sessions:
                member.pax_headers = {**member.pax_headers, _SESSIONS: json.dumps(sessions, sort_keys=True)}
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
    keys = os.listxattr(fd) if fd >= 0 else []
    names = [key for key in keys if key.startswith("user.") and not key.startswith(_MARKS)]
    member.pax_headers = {
        _XATTR + quote(os.fsencode(key)): os.getxattr(fd, key).decode("utf-8", "surrogateescape") for key in names
    }
    return member


def unpack(file: BinaryIO, root: int, expected: str) -> dict[str, str]:
    """Recreate a packed tree below the EMPTY directory fd `root` and verify its digest; its shell sessions.

    Raises SandboxUnavailable if the archive is damaged or is not the expected content: nothing runs on such a tree.
    """
    digest = _Digest()
    directories: list[tarfile.TarInfo] = []
    sessions: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=file, mode="r|", bufsize=_CHUNK, encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                digest.member(member)
                if member.isdir():
                    directories.append(member)
                    sessions = json.loads(member.pax_headers.get(_SESSIONS, "{}")) if member.name == "." else sessions
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
    return sessions


def canonical(source: BinaryIO, out: BinaryIO, max_bytes: int, sessions: dict[str, str] | None = None) -> str:
    """Rewrite a tar file of another system (uncompressed, seekable, hostile) as `pack` would; its content digest.

    Hard links become separate files, devices and sockets are left out. Raises LimitExceeded as `pack`, and
    SandboxUnavailable for a member outside the tree or a second one of a name.
    """
    digest = _Digest()
    members: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(fileobj=source, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        for found in tar:
            name = found.name.removeprefix("./").rstrip("/") or "."
            parts = name.split("/")
            if name.startswith("/") or ".." in parts or name in members or ("." in parts and name != "."):
                raise SandboxUnavailable(f"a snapshot's archive holds {found.name!r}")
            if len(parts) > _MAX_DEPTH:
                raise LimitExceeded("snapshot", f"/workspace is deeper than {_MAX_DEPTH} levels at {name!r}")
            members[name] = found
        if sum(m.size for m in members.values() if m.isreg()) > max_bytes:
            raise LimitExceeded("snapshot", f"/workspace holds more than {max_bytes} bytes")
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as packed:
            for name in sorted(members, key=lambda n: n.split("/") if n != "." else []):
                found = members[name]
                data = tar.extractfile(found) if found.isreg() or found.islnk() else None
                kinds = {tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE}
                if data is None and found.type not in kinds:
                    continue
                member = tarfile.TarInfo(name)
                member.type = found.type if data is None else tarfile.REGTYPE
                member.mode = stat.S_IMODE(found.mode) if not found.issym() else 0o777
                member.linkname = found.linkname if found.issym() else ""
                member.size = data.seek(0, os.SEEK_END) if data is not None else 0
                member.mtime, member.uid, member.gid = found.mtime, _OWNER, _OWNER
                member.pax_headers = (
                    {_SESSIONS: json.dumps(sessions, sort_keys=True)} if name == "." and sessions else {}
                )
                digest.member(member)
                if data is None:
                    packed.addfile(member)
                else:
                    data.seek(0)
                    packed.addfile(member, _Tee(data, digest))  # type: ignore[arg-type]
    return digest.hexdigest()


def read_sessions(path: Path) -> dict[str, str]:
    """The shell sessions that a packed tree holds."""
    with tarfile.open(path, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        root = tar.next()
    return json.loads(root.pax_headers.get(_SESSIONS, "{}")) if root is not None else {}


def verify(path: Path, expected: str) -> None:
    """Raise SandboxUnavailable unless a packed tree has this digest."""
    digest = _Digest()
    try:
        with tarfile.open(path, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                digest.member(member)
                source = tar.extractfile(member) if member.isreg() else None
                while source is not None and (chunk := source.read(_CHUNK)):
                    digest.data(chunk)
    except (tarfile.TarError, EOFError) as error:
        raise SandboxUnavailable(f"snapshot {expected}: damaged archive ({error})") from error
    if digest.hexdigest() != expected:
        raise SandboxUnavailable(f"snapshot {expected}: content has digest {digest.hexdigest()}")


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
        name = unquote_to_bytes(key.removeprefix(_XATTR))
        if key.startswith(_XATTR) and not name.startswith(_MARKS.encode()):
            os.setxattr(fd, name, value.encode("utf-8", "surrogateescape"))
    os.fchmod(fd, member.mode)
    os.utime(fd, ns=_times(member))


def _times(member: tarfile.TarInfo) -> tuple[int, int]:
    ns = round(float(member.mtime) * 1e9)
    return ns, ns
