"""A checkpoint is a folder with a manifest of hashes, written last, renamed into place.

The old ones stay until the new one verifies; `latest` skips what does not verify and says why.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl import disk

MANIFEST = "manifest.json"
FORMAT = 2
"""Raised when the layout changes; a checkpoint of another format is refused with both numbers."""


class CheckpointError(RuntimeError):
    """A checkpoint that is missing, torn or altered; the message names the file."""


def save(root: Path, step: int, write: Callable[[Path], None], state: dict[str, Any], keep: int = 2) -> Path:
    """Write `root/step_{step}`: `write(folder)` puts the learners' files there, `state` is stored as state.json.

    Only after the new folder has been renamed into place and verified are the oldest beyond `keep` deleted. Raises
    OSError (ENOSPC), before anything is written, where the disk has no room for one as large as the last.
    """
    root.mkdir(parents=True, exist_ok=True)
    text = json.dumps(state)
    need = len(text) + sum(_size(folder) for folder in _folders(root)[-1:])
    if (left := disk.free(root)) < need:
        raise OSError(errno.ENOSPC, f"a checkpoint takes {need:,} bytes, and {left:,} are free", str(root))
    final = root / f"step_{step:06d}"
    tmp = root / f".tmp-{final.name}-{os.getpid()}"
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir()
    try:
        write(tmp)
        (tmp / "state.json").write_text(text)
        files = {}
        for path in sorted(p for p in tmp.rglob("*") if p.is_file()):
            files[str(path.relative_to(tmp))] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
            _fsync(path)
        (tmp / MANIFEST).write_text(json.dumps({"format": FORMAT, "step": step, "files": files}, indent=1))
        _fsync(tmp / MANIFEST)
        verify(tmp)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)  # where the disk is full, the log can still say so
        raise
    if final.exists():  # a resumed run passes the same step again: the newer attempt wins
        os.rename(final, root / f".tmp-old-{final.name}")
    os.rename(tmp, final)
    _fsync(root)
    for old in _folders(root)[:-keep] if keep > 0 else []:
        shutil.rmtree(old)
    for torn in root.glob(".tmp-*"):
        shutil.rmtree(torn, ignore_errors=True)
    return final


def verify(folder: Path) -> dict[str, Any]:
    """Check every file's size and hash; returns the manifest. Raises CheckpointError naming the file at fault."""
    path = folder / MANIFEST
    if not path.exists():
        raise CheckpointError(f"{folder} has no {MANIFEST}: it was not finished")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        said = manifest["format"]
        files = {name: (want["bytes"], want["sha256"]) for name, want in manifest["files"].items()}
    except (ValueError, AttributeError, KeyError, TypeError) as e:
        raise CheckpointError(f"{path} is not readable: {e!r}") from e
    if said != FORMAT:
        raise CheckpointError(f"{folder} has format {said}; this version reads format {FORMAT}")
    for name, (size, digest) in files.items():
        file = folder / name
        if not file.exists():
            raise CheckpointError(f"{file} is missing")
        if file.stat().st_size != size:
            raise CheckpointError(f"{file} has {file.stat().st_size} bytes, the manifest says {size}")
        if _sha256(file) != digest:
            raise CheckpointError(f"{file} does not have the manifest's sha256")
    return manifest


def latest(root: Path, fits: Callable[[Path], None] = lambda folder: None) -> tuple[Path | None, list[str]]:
    """The newest folder that verifies (None if there is none), and a sentence for each newer one that was skipped.

    fits: raises CheckpointError for a whole folder that cannot be used for another reason.
    """
    skipped: list[str] = []
    for folder in reversed(_folders(root)):
        try:
            verify(folder)
            fits(folder)
            return folder, skipped
        except CheckpointError as e:
            skipped.append(str(e))
    return None, skipped


def load_state(folder: Path) -> dict[str, Any]:
    """The state that `save` stored."""
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return state


def _folders(root: Path) -> list[Path]:
    """Oldest first; a folder that someone renamed (step_000007.old) is not one."""
    return sorted((p for p in root.glob("step_*") if p.name[5:].isdecimal()), key=lambda p: int(p.name[5:]))


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.iterdir() if p.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
