"""Trajectories on disk: groups as JSON lines, and the turns of unfinished episodes, which survive their worker."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from rollout.trajectory import Group, Trajectory


def write_groups(path: Path, groups: Iterable[Group]) -> int:
    """Write groups to a new file, one JSON line each; returns the bytes. It is there whole or not at all.

    Raises FileExistsError: what was written stays as it is.
    """
    if path.exists():
        raise FileExistsError(f"{path} was already written")
    lines = "".join(json.dumps(g.to_json(), ensure_ascii=False, separators=(",", ":")) + "\n" for g in groups)
    return _replace(path, lines)


def read_groups(path: Path) -> Iterator[Group]:
    """The groups of a file of `write_groups`, bit for bit."""
    with path.open(encoding="utf-8") as f:
        for line in f:
            yield Group.from_json(json.loads(line))


class EpisodeJournal:
    """The turns of episodes in flight of one run, one small file each, with the snapshot of their sandbox.

    Runs may share a store: they number their groups alike, so each has a folder of its own, named by `run`.
    An episode that is dispatched again after its worker died is taken up after its last whole turn: the same tokens,
    the same files, one turn's work lost at most.
    """

    def __init__(self, store: str | Path, run: str) -> None:
        self._folder = Path(store) / "episodes" / run
        self._folder.mkdir(parents=True, exist_ok=True)

    def save(self, trajectory: Trajectory) -> None:
        """Keep an unfinished trajectory after one of its turns."""
        _replace(self._path(trajectory.id), json.dumps(trajectory.to_json(), ensure_ascii=False))

    def load(self, begun: Trajectory) -> Trajectory | None:
        """The kept turns of the same episode (same id, task and effort); None if there are none."""
        path = self._path(begun.id)
        if not path.exists():
            return None
        kept = Trajectory.from_json(json.loads(path.read_text(encoding="utf-8")))
        same = (kept.id, kept.task, kept.effort) == (begun.id, begun.task, begun.effort)
        return kept if same else None

    def forget(self, trajectory_id: str) -> None:
        """The episode has ended."""
        self._path(trajectory_id).unlink(missing_ok=True)

    def prune(self, version: int) -> int:
        """Drop episodes with tokens of weights newer than `version` (of a future that was lost); returns how many."""
        dropped = 0
        for path in self._folder.glob("*.json"):
            kept = Trajectory.from_json(json.loads(path.read_text(encoding="utf-8")))
            if kept.version_range()[1] > version:
                path.unlink()
                dropped += 1
        return dropped

    def _path(self, trajectory_id: str) -> Path:
        return self._folder / f"{hashlib.blake2b(trajectory_id.encode(), digest_size=12).hexdigest()}.json"


def _replace(path: Path, text: str) -> int:
    data = text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    with partial.open("wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    partial.rename(path)
    return len(data)
