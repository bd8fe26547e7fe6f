"""The turns of unfinished episodes, which survive their worker: one small append-only file each."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments.task import Task
from rewards.efforts import Effort
from rewards.grade import Grade
from rollout.store import rows
from rollout.store.stream import Appender, Stream
from rollout.trajectory import Node, StopReason, Trajectory


@dataclass
class _Kept:
    """What a file holds of an episode."""

    end: int = 0
    """Its bytes."""
    messages: int = 0
    nodes: list[Node] = field(default_factory=list)
    """Its nodes, which never change: another object in the place of one may have other contents."""


class EpisodeJournal:
    """The turns of episodes in flight of one run, a file each, with the snapshot of their sandbox.

    Runs may share a store: they number their groups alike, so each has a folder of its own, named by `run`.
    An episode that is dispatched again after its worker died is taken up after its last whole turn: the same tokens,
    the same files, one turn's work lost at most. A turn adds what is new in it, nodes and messages: a long episode is
    not written again and again.
    """

    def __init__(self, store: str | Path, run: str) -> None:
        self._folder = Path(store) / "episodes" / run
        self._folder.mkdir(parents=True, exist_ok=True)
        self._kept: dict[str, _Kept] = {}

    def save(self, trajectory: Trajectory) -> None:
        """Keep an unfinished trajectory after one of its turns."""
        t, path = trajectory, self.file(trajectory.id)
        kept = self._kept.get(t.id)
        if kept is None or not path.exists() or path.stat().st_size != kept.end:
            kept = _Kept()  # nothing, or of another process
        note: dict[str, Any] = {
            "nodes": len(t.nodes),
            "rest": rows.rest_of(t),
            "messages": t.conversation[kept.messages :],
        }
        note["grade"] = t.grade.to_json() if t.grade else None
        target = path
        if not kept.end:
            note |= {"task": t.task.to_json(), "effort": str(t.effort)}
            target = path.with_suffix(".new")
            target.unlink(missing_ok=True)
        with Appender(target, rows.TOKENS, kept.end) as out:
            gathered = rows.TokenRows()
            for i, node in enumerate(t.nodes):
                if i >= len(kept.nodes) or _differ(kept.nodes[i], node):
                    for batch in gathered.add(t.id, 0, i, node):
                        out.append(batch)
            out.append(gathered.take(), rows.exact(note).encode())
            out.sync()
            end = out.end
        if target != path:
            target.rename(path)
        self._kept[t.id] = _Kept(end, len(t.conversation), list(t.nodes))

    def load(self, begun: Trajectory) -> Trajectory | None:
        """The kept turns of the same episode (same id, task and effort); None if there are none."""
        path = self.file(begun.id)
        if not path.exists():
            return None
        stream = Stream(path, rows.TOKENS)
        kept, whole = _replay(stream)
        if kept is None or (kept.id, kept.task, kept.effort) != (begun.id, begun.task, begun.effort):
            return None
        if whole:
            self._kept[kept.id] = _Kept(stream.end, len(kept.conversation), list(kept.nodes))
        return kept

    def forget(self, trajectory_id: str) -> None:
        """The episode has ended."""
        self._kept.pop(trajectory_id, None)
        self.file(trajectory_id).unlink(missing_ok=True)

    def prune(self, version: int) -> int:
        """Drop episodes with tokens of weights newer than `version` (of a future that was lost); returns how many."""
        dropped = 0
        for path in self._folder.glob("*.arrow"):
            kept, _ = _replay(Stream(path, rows.TOKENS))
            if kept is None or kept.version_range()[1] > version:
                path.unlink()
                dropped += 1
        return dropped

    def file(self, trajectory_id: str) -> Path:
        """Where the turns of an episode are; it may not be there."""
        return self._folder / f"{hashlib.blake2b(trajectory_id.encode(), digest_size=12).hexdigest()}.arrow"


def _replay(stream: Stream) -> tuple[Trajectory | None, bool]:
    """The trajectory after its last whole turn, and whether nothing is behind it: a turn ends with a note."""
    if not stream.end:
        return None, False
    first: dict[str, Any] = {}
    note: dict[str, Any] = {}
    messages: list[Any] = []
    nodes: dict[int, list[Node]] = {}
    new: dict[int, list[Node]] = {}
    reader = stream.reader()
    for _ in range(len(stream.bounds) - 1):
        batch, metadata = reader.read_next_batch_with_custom_metadata()
        for _, index, begin, piece in rows.pieces(batch):
            new.setdefault(index, []).append(piece)
            if begin == 0:
                new[index] = [piece]
        if metadata is not None:
            note = json.loads(metadata[b"note"])
            first = first or note
            messages += note["messages"]
            nodes |= new
            new = {}
    if not note:
        return None, False
    rest, grade = note["rest"], note["grade"]
    kept = Trajectory(
        rest["id"],
        Task.from_json(first["task"]),
        Effort(first["effort"]),
        [rows.joined(nodes[i]) for i in range(note["nodes"])],
        rest["segments"],
        messages,
        StopReason(rest["stop"]),
        None if grade is None else Grade.from_json(grade),
        rest["seconds"],
        rest["error"],
    )
    return kept, not new


def _differ(a: Node, b: Node) -> bool:
    return a is not b and _digest(a) != _digest(b)


def _digest(node: Node) -> bytes:
    """What tells a node from one with other contents."""
    out = hashlib.blake2b(digest_size=16)
    for name in ("token_ids", "logprobs", "loss_mask", "versions", "routes", "picks"):
        array = getattr(node, name)
        if array is not None:
            out.update(f"{name} {array.dtype} {array.shape}".encode())
            out.update(array.tobytes())
    out.update(rows.node_json(node).encode())
    return out.digest()
