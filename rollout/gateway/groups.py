"""Sessions on disk, and groups of them: what a learner takes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from rollout.trajectory import Group, GroupOrder, Trajectory


def groups_of(trajectories: Iterable[Trajectory], name: str = "gateway") -> list[Group]:
    """Trajectories of the same task and effort together, in the order given.

    Those without a grade, or with a masked one, are in them too: they do not vote, and are counted by the batch. Seeds
    are 0: each call has its own, which its nodes hold.
    """
    alike: dict[tuple[str, str], list[Trajectory]] = {}
    for t in trajectories:
        alike.setdefault((t.task.id, str(t.effort)), []).append(t)
    out = []
    for (task, effort), members in alike.items():
        heat = {n.sampling.temperature for t in members for n in t.nodes if n.sampling is not None}
        order = GroupOrder(
            f"{name}/{task}/{effort}",
            members[0].task,
            members[0].effort,
            (0,) * len(members),
            heat.pop() if len(heat) == 1 else 1.0,
        )
        out.append(Group(order, members, name))
    return out


class Shelf:
    """A folder of trajectories, one file each, there whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, owner: str, trajectory: Trajectory) -> Path:
        """Write a trajectory; an earlier one of the same owner and id is kept beside it."""
        stem = hashlib.blake2b(f"{owner}/{trajectory.id}".encode(), digest_size=12).hexdigest()
        text = json.dumps(trajectory.to_json(), separators=(",", ":"), allow_nan=False)
        count = 0
        while (path := self._folder / f"{stem}.{count}.json").exists():
            count += 1
        half = path.with_suffix(f".{os.getpid()}.tmp")
        with half.open("w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        half.rename(path)
        return path

    def read(self) -> list[Trajectory]:
        """Everything in the folder, the oldest first."""
        files = sorted(self._folder.glob("*.json"), key=lambda f: (f.stat().st_mtime_ns, f.name))
        return [Trajectory.from_json(json.loads(f.read_text(encoding="utf-8"))) for f in files]
