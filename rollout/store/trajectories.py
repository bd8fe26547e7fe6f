"""The trajectories of a run: `rollouts/trajectories.arrow`, `rollouts/tokens.arrow` and `images/` in its folder.

A group's tokens are written first, its trajectories last, and these say where those are: a group is there when its last
row is, and whole. What a killed writer left of another is cut off by the next one; readers never see it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from environments.images import without_data
from rewards.grade import Grade
from rollout.store import rows
from rollout.store.stream import Appender, StoreError, Stream
from rollout.trajectory import Group, GroupOrder, Node, StopReason, Trajectory

_ALWAYS = ("attempt", "step")
"""Columns that tell which rows are superseded."""


class TrajectoryWriter:
    """The one writer of a run's trajectories; a context manager. Holds `rows.BATCH_BYTES` of a trajectory at once.

    Raises StoreError as `Appender` does; no group that was written is ever lost by it.
    """

    def __init__(self, run_dir: Path) -> None:
        self._images = run_dir / "images"
        folder = run_dir / "rollouts"
        self._table = Appender(folder / "trajectories.arrow", rows.TRAJECTORIES)
        try:
            self._tokens = Appender(folder / "tokens.arrow", rows.TOKENS)
        except BaseException:
            self._table.close()
            raise
        self._cut()

    def append(
        self,
        group: Group,
        step: int,
        attempt: int = 1,
        shaped: Sequence[float | None] | None = None,
        advantages: Sequence[float | None] | None = None,
        retired: str | None = None,
    ) -> None:
        """Add a group as it was seen in a step, with what the learner makes of its samples (None: not valid).

        Its nodes are read once, in their order, and may be made while they are read. Raises ValueError for a trajectory
        that is of another task or effort than its group.
        """
        begin = self._tokens.end
        order = _order(group)
        rows.keep_images(group.order.task.prompt, self._images)
        nothing = [None] * len(group.trajectories)
        table = []
        try:
            gathered = rows.TokenRows()
            for i, t in enumerate(group.trajectories):
                if (t.task, t.effort) != (group.order.task, group.order.effort):
                    raise ValueError(f"{t.id} is of another task or effort than its group {group.order.id}")
                rows.keep_images(t.conversation, self._images)
                counts = _Counts()
                for index, node in enumerate(t.nodes):
                    counts.add(node)
                    for batch in gathered.add(t.id, attempt, index, node):
                        self._tokens.append(batch)
                row = _row(group, i, counts) | {"order": order, "step": step, "attempt": attempt, "retired": retired}
                row["shaped_reward"] = (shaped or nothing)[i]
                row["advantage"] = (advantages or nothing)[i]
                table.append(row)
            if len(gathered):
                self._tokens.append(gathered.take())
            where = {"tokens_begin": begin, "tokens_end": self._tokens.end}
            table = [row | where for row in table]
            self._table.append(pa.RecordBatch.from_pylist(table, rows.TRAJECTORIES))
        except BaseException:
            self._tokens.cut(begin)
            raise

    def sync(self) -> None:
        """Return when the disk has all of it: tokens first, so that no row is without its own."""
        self._tokens.sync()
        self._table.sync()

    def close(self) -> None:
        """Give the files free."""
        self._tokens.close()
        self._table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _cut(self) -> None:
        """Take off tokens without their rows, and rows whose tokens a power loss took."""
        table = Stream(self._table.path, rows.TRAJECTORIES)
        whole, tokens = table.bounds[0], Stream(self._tokens.path, rows.TOKENS).bounds[0]
        for end, batch in zip(table.bounds[1:], table.reader(["tokens_end"]), strict=True):
            needed = batch.column(0)[-1].as_py() if len(batch) else tokens
            if needed > self._tokens.end:
                break
            whole, tokens = end, needed
        self._table.cut(whole)
        self._tokens.cut(tokens)


class TrajectoryReader:
    """A run's trajectories as they are now; any number may read while one writes. StoreError as `Stream` raises it."""

    def __init__(self, run_dir: Path) -> None:
        self._images = run_dir / "images"
        self._tokens_path = run_dir / "rollouts" / "tokens.arrow"
        path = run_dir / "rollouts" / "trajectories.arrow"
        if not path.exists():
            raise StoreError(f"{path} is not there: the run has written no trajectories (logging.rollouts)")
        self._stream = Stream(path, rows.TRAJECTORIES)

    def table(self, columns: Sequence[str] | None = None, newest: bool = True) -> pa.Table:
        """These columns of all trajectories (all by default), in the order of writing; nothing else is read.

        newest: of a step that was run again after a resume, the rows of its newest attempt alone.
        """
        if not self._stream.end:
            return rows.TRAJECTORIES.empty_table().select(columns or rows.TRAJECTORIES.names)
        wanted = rows.TRAJECTORIES.names if columns is None else [*columns]
        found = self._stream.reader([*{*wanted, *_ALWAYS}]).read_all()
        if newest:
            found = found.filter(newest_rows(found))
        return found.select(wanted)

    def batches(self, mask: pa.Array) -> Iterator[pa.RecordBatch]:
        """All columns of these of all rows, a group at once."""
        at = 0
        for index, n in enumerate(self._lengths()):
            here = mask.slice(at, n)
            if here.true_count:
                yield self._stream.batch(index).filter(here)
            at += n

    def rows(self, columns: Sequence[str] | None = None, newest: bool = True) -> list[dict[str, Any]]:
        """As `table`, one dict a row: conversations as messages, what is JSON as its values."""
        return said(self.table(columns, newest).to_pylist())

    def row(self, id: str) -> dict[str, Any]:
        """The row of this trajectory that was written last. Raises KeyError if there is none."""
        (row,) = (r for r in self._batch("id", id).to_pylist() if r["id"] == id)
        return said([row])[0]

    def groups(self, newest: bool = True) -> Iterator[Group]:
        """Every group, to the bit, in the order of writing."""
        keep = newest_rows(self.table(_ALWAYS, newest=False)) if newest else pa.array([True] * sum(self._lengths()))
        for batch in self.batches(keep):
            yield self._group(batch)

    def group(self, id: str) -> Group:
        """The group of this id, as it was last written. Raises KeyError if there is none."""
        return self._group(self._batch("group", id))

    def pieces(self, id: str) -> Iterator[tuple[int, Node]]:
        """(number of the node, a piece of it) of a trajectory, in their order: at most `rows.BATCH_BYTES` at once.

        Raises KeyError for an id that is not there.
        """
        row = self._batch("id", id)
        for name, number, _, piece in self._pieces(row):
            if name == id:
                yield number, piece

    def sampled(self, newest: bool = True) -> Iterator[tuple[str, list[int], list[float]]]:
        """(trajectory, token ids, log-probs) of what the policy sampled, in the order of `rows`."""
        for group in self.groups(newest):
            for t in group.trajectories:
                mask = t.column("loss_mask").astype(bool)
                yield t.id, t.column("token_ids")[mask].tolist(), t.column("logprobs")[mask].tolist()

    def _lengths(self) -> list[int]:
        """Rows of each batch."""
        return [len(batch) for batch in self._stream.reader(["step"])] if self._stream.end else []

    def _batch(self, column: str, value: str) -> pa.RecordBatch:
        """The newest batch with this value."""
        if self._stream.end:
            batches = self._stream.reader([column])
            held = [i for i, batch in enumerate(batches) if value in batch.column(0).to_pylist()]
            if held:
                return self._stream.batch(held[-1])
        raise KeyError(value)

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[tuple[str, int, int, Node]]:
        begin, end = (batch.column(c)[0].as_py() for c in ("tokens_begin", "tokens_end"))
        with pa.OSFile(str(self._tokens_path)) as source:
            if source.size() < end:
                raise StoreError(f"{self._tokens_path} has lost its end, byte {source.size():,} of {end:,}")
            source.seek(begin)
            while source.tell() < end:
                yield from rows.pieces(pa.ipc.read_record_batch(pa.ipc.read_message(source), rows.TOKENS))

    def _group(self, batch: pa.RecordBatch) -> Group:
        table = batch.to_pylist()
        order = json.loads(table[0]["order"])
        restored = [rows.with_images(m, self._images) for m in order["order"]["task"]["prompt"]]
        order["order"]["task"]["prompt"] = restored
        group = Group(GroupOrder.from_json(order["order"]), [], order["worker"], order["dispatches"])
        nodes: dict[str, list[Node]] = {}
        for (name, _), parts in itertools.groupby(self._pieces(batch), key=lambda piece: piece[:2]):
            nodes.setdefault(name, []).append(rows.joined([part[3] for part in parts]))
        for row in table:
            rest, grade = json.loads(row["rest"]), json.loads(row["grade"])
            messages = [rows.with_images(rows.message_of(m), self._images) for m in row["conversation"]]
            group.trajectories.append(
                Trajectory(
                    rest["id"],
                    group.order.task,
                    group.order.effort,
                    nodes.get(row["id"], []),
                    rest["segments"],
                    messages,
                    StopReason(rest["stop"]),
                    None if grade is None else Grade.from_json(grade),
                    rest["seconds"],
                    rest["error"],
                )
            )
        return group


class _Counts:
    """What the columns say of nodes that are seen once."""

    def __init__(self) -> None:
        self.sampled = self.all = self.turns = 0
        self.versions: list[int] = []

    def add(self, node: Node) -> None:
        mask = node.loss_mask.astype(bool)
        self.sampled += int(mask.sum())
        self.all += len(node)
        self.turns += node.sampling is not None
        if mask.any():
            own = node.versions[mask]
            self.versions += [int(own.min()), int(own.max())]


def _order(group: Group) -> str:
    """What the trajectories of a group share, as JSON."""
    order = group.order.to_json()
    order["task"]["prompt"] = [without_data(m) for m in group.order.task.prompt]
    return rows.exact({"order": order, "worker": group.worker, "dispatches": group.dispatches})


def _row(group: Group, i: int, counts: _Counts) -> dict[str, Any]:
    order, t = group.order, group.trajectories[i]
    task = order.task
    return {
        "id": t.id,
        "group": order.id,
        "sample": i,
        "environment": task.environment,
        "task_id": rows.text(task.id),
        "level": task.level,
        "effort": str(t.effort),
        "seed": order.seeds[i],
        "stop": str(t.stop),
        "status": str(t.grade.status) if t.grade else None,
        "reward": t.grade.reward if t.grade else None,
        "tokens": counts.sampled,
        "all_tokens": counts.all,
        "turns": counts.turns,
        "oldest_version": min(counts.versions, default=-1),
        "newest_version": max(counts.versions, default=-1),
        "error": rows.text(t.error),
        "conversation": [rows.message_row(m) for m in t.conversation],
        "grade": rows.exact(t.grade.to_json() if t.grade else None),
        "rest": rows.exact(rows.rest_of(t)),
    }


def said(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `trajectories` with messages as messages, and with the values of what is JSON in the columns."""
    for row in table:
        if "conversation" in row:
            row["conversation"] = [rows.message_of(m) for m in row["conversation"]]
        row |= {name: json.loads(row[name]) for name in ("grade", "order", "rest") if name in row}
    return table


def newest_rows(table: pa.Table) -> pa.Array:
    """Bool [rows]: whether no later attempt did the same step; a table with `step` and `attempt`."""
    steps, attempts = (table.column(c).to_numpy() for c in ("step", "attempt"))
    best = np.zeros(int(steps.max(initial=-1)) + 1, np.int64)
    np.maximum.at(best, steps, attempts)
    return pa.array(attempts == best[steps], pa.bool_())
