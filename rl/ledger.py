"""Every group exactly once: planned -> dispatched -> finished -> trained | retired(reason).

An append-only JSON-lines file, flushed line by line, is the record; the state in memory is its replay. A resume from a
checkpoint appends a `rollback` to the sequence number that the checkpoint remembers: what came after it belongs to
weights that no longer exist. What was in flight then is planned again, with the same ids and seeds.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class GroupState(StrEnum):
    """Where a group is; every member is a metric `ledger/<state>`."""

    PLANNED = "planned"
    """Drawn from the mixture: its task, effort and seeds are fixed."""
    DISPATCHED = "dispatched"
    """Handed to a rollout worker (again, if the first one was lost)."""
    FINISHED = "finished"
    """All its trajectories are graded and wait for the learner."""
    TRAINED = "trained"
    """Its tokens were in exactly one optimizer step."""
    RETIRED = "retired"
    """It will not be trained, for a recorded reason."""


_BEFORE: dict[GroupState, tuple[GroupState | None, ...]] = {
    GroupState.PLANNED: (None,),
    GroupState.DISPATCHED: (GroupState.PLANNED, GroupState.DISPATCHED),
    GroupState.FINISHED: (GroupState.DISPATCHED,),
    GroupState.TRAINED: (GroupState.FINISHED,),
    GroupState.RETIRED: (GroupState.PLANNED, GroupState.DISPATCHED, GroupState.FINISHED),
}


class LedgerError(RuntimeError):
    """A transition or a replay that breaks the conservation law."""


@dataclass
class Entry:
    """One group's present state."""

    id: str
    state: GroupState
    order: dict[str, Any]
    """The serialised order: what is needed to dispatch it again with the same task and seeds."""
    dispatches: int = 0
    step: int | None = None
    """The optimizer step that trained it."""
    reason: str | None = None


class Ledger:
    """The books of one run.

    Raises LedgerError for an illegal transition, an unknown group, or a file whose replay breaks the law; a torn last
    line (the process was killed while writing) is cut off, anything else unreadable is an error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self._events: list[dict[str, Any]] = []
        self.seq = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._replay()
        self._file = path.open("a", encoding="utf-8")

    def plan(self, id: str, order: dict[str, Any]) -> None:
        """Enter a new group with everything that is needed to dispatch it."""
        self._write({"event": "planned", "group": id, "order": order})

    def dispatch(self, id: str) -> None:
        """The group was handed to a worker."""
        self._write({"event": "dispatched", "group": id})

    def finish(self, id: str) -> None:
        """The group's trajectories are complete."""
        self._write({"event": "finished", "group": id})

    def train(self, ids: list[str], step: int) -> None:
        """These groups were the batch of `step`; one line, so that a kill leaves all of them or none."""
        self._write({"event": "trained", "groups": ids, "step": step})

    def retire(self, id: str, reason: str) -> None:
        """The group will not be trained, and why."""
        self._write({"event": "retired", "group": id, "reason": reason})

    def rollback(self, seq: int) -> None:
        """Forget what came after `seq` (a checkpoint's), and plan again what was in flight then.

        Groups that were finished stay so: the checkpoint holds them. Raises LedgerError if seq is in the future.
        """
        if seq > self.seq:
            raise LedgerError(f"the checkpoint is at ledger line {seq}, but {self.path} has only {self.seq}")
        self._write({"event": "rollback", "to": seq})

    def having(self, state: GroupState) -> list[Entry]:
        """Groups in this state, in the order in which they were planned."""
        return [e for e in self.entries.values() if e.state is state]

    def unsettled(self) -> list[Entry]:
        """Groups that are neither trained nor retired."""
        return [e for e in self.entries.values() if e.state not in (GroupState.TRAINED, GroupState.RETIRED)]

    def counts(self) -> dict[str, int]:
        """Groups by state; they always add up to the groups planned."""
        c = Counter(str(e.state) for e in self.entries.values())
        return {str(s): c.get(str(s), 0) for s in GroupState}

    def reasons(self) -> dict[str, int]:
        """Retired groups by reason."""
        return dict(Counter(e.reason or "" for e in self.entries.values() if e.state is GroupState.RETIRED))

    def close(self) -> None:
        """Flush to disk and close."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def sync(self) -> int:
        """Force everything to disk and return the sequence number for a checkpoint."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self.seq

    def _write(self, event: dict[str, Any]) -> None:
        event = {"seq": self.seq + 1, **event}
        self._apply(event)
        self._file.write(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()

    def _apply(self, event: dict[str, Any]) -> None:
        if event["seq"] != self.seq + 1:
            raise LedgerError(f"{self.path}: line {self.seq + 1} carries sequence number {event['seq']}")
        kind = event["event"]
        if kind == "rollback":
            kept = [e for e in self._events if e["seq"] <= event["to"]]
            self._events, self.entries = [], {}
            for old in kept:
                self._apply_to_state(old)
        self._apply_to_state(event)
        self.seq = event["seq"]

    def _apply_to_state(self, event: dict[str, Any]) -> None:
        if event["event"] == "rollback":
            for entry in self.entries.values():  # what was in flight died with the process
                if entry.state is GroupState.DISPATCHED:
                    entry.state = GroupState.PLANNED
        else:
            self._step(event)
        self._events.append(event)

    def _step(self, event: dict[str, Any]) -> None:
        new = GroupState(event["event"])
        ids = event["groups"] if "groups" in event else [event["group"]]
        if len(set(ids)) != len(ids):
            raise LedgerError(f"step {event.get('step')} names a group twice: {ids}")
        for id in ids:
            entry = self.entries.get(id)
            old = entry.state if entry else None
            if old not in _BEFORE[new]:
                raise LedgerError(f"group {id} is {old or 'unknown'} and cannot become {new}")
        for id in ids:
            if new is GroupState.PLANNED:
                self.entries[id] = Entry(id, new, event["order"])
                continue
            entry = self.entries[id]
            entry.state = new
            entry.dispatches += new is GroupState.DISPATCHED
            entry.step = event.get("step", entry.step)
            entry.reason = event.get("reason", entry.reason)

    def _replay(self) -> None:
        raw = self.path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):
            with self.path.open("r+b") as f:
                f.truncate(whole)
        for number, line in enumerate(raw[:whole].splitlines(), 1):
            try:
                event = json.loads(line)
            except ValueError as e:
                raise LedgerError(f"{self.path}, line {number} is not readable: {e}") from e
            self._apply(event)
