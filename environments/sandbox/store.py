"""The store folder: snapshots by content, and who owns what else in it.

    snapshots/<id>.tar     written tmp + fsync + rename, never changed
    owners/<owner>.jsonl   one worker's journal: a line before every creation, one after every end
    tmp/<owner>.<...>      unfinished snapshots of that owner

An owner is alive as long as its worker or its nursery holds the lock of its journal; the kernel lets go of it when the
last of them is dead, however they died. A live sandbox has no files here and no process outside its nursery.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from environments.sandbox import linux
from environments.sandbox.api import SnapshotId


@dataclass(frozen=True)
class Reaped:
    """What was left by owners that are dead."""

    owners: int = 0
    sandboxes: int = 0
    """Sandboxes that they had begun and not ended (the kernel has killed them)."""
    files: int = 0
    """Unfinished snapshots removed."""


def prepare(store: Path) -> None:
    """Create the store's folders; where root runs, for the unprivileged id that sandboxes run as."""
    for folder in (store, store / "snapshots", store / "owners", store / "tmp"):
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            uid, gid = (linux.unprivileged_id(Path(f"/proc/self/{kind}_map").read_text()) for kind in ("uid", "gid"))
            os.chown(folder, uid, gid)


def open_journal(store: Path, owner: str) -> int:
    """Create and lock an owner's journal; the returned file descriptor holds the lock."""
    path = store / "owners" / f"{owner}.jsonl"
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        fcntl.flock(fd, fcntl.LOCK_EX)
        # Until it was locked it was a dead owner's: another worker that started may have removed it.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        os.close(fd)


def reap(store: Path) -> Reaped:
    """Remove what dead owners left; living owners' things are not touched. Safe to run at any time, by anybody."""
    owners = sandboxes = files = 0
    for journal in sorted((store / "owners").glob("*.jsonl")):
        try:
            fd = os.open(journal, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # another reaper was faster
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            live: set[str] = set()
            for line in journal.read_text().splitlines():
                try:
                    row = json.loads(line)
                except ValueError:  # the line that the owner died in
                    continue
                live.add(row["create"]) if "create" in row else live.discard(row["close"])
            for leftover in (store / "tmp").glob(f"{journal.stem}.*"):
                leftover.unlink(missing_ok=True)
                files += 1
            journal.unlink(missing_ok=True)
            owners, sandboxes = owners + 1, sandboxes + len(live)
        finally:
            os.close(fd)
    return Reaped(owners, sandboxes, files)


def living(store: Path) -> set[str]:
    """Owners whose worker is alive."""
    found = set()
    for journal in (store / "owners").glob("*.jsonl"):
        try:
            fd = os.open(journal, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found.add(journal.stem)
        finally:
            os.close(fd)
    return found


def prune(store: Path, keep: Collection[SnapshotId]) -> int:
    """Delete all snapshots except `keep` (those that live trajectories and checkpoints name); returns how many."""
    doomed = [path for path in (store / "snapshots").glob("*.tar") if path.stem not in keep]
    for path in doomed:
        path.unlink(missing_ok=True)
    return len(doomed)
