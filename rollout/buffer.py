"""Groups wait here between rollout and learner: admission by staleness, k-of-n, oldest first.

Staleness is counted in weight versions: the version that the learner is about to improve, minus the oldest version
among a group's sampled tokens. The bound is kept by admission, not by throwing finished work away: discarding stale
groups would train on quick tasks only (slow ones are always the stale ones).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from rollout.trajectory import Group, GroupOrder


class RolloutBuffer:
    """Finished groups of training, and the count of those that may still be started.

    groups_per_step: groups of one optimizer step; max_staleness: versions (0 = synchronous); min_group: valid samples
    below which a group is refused. Raises ValueError for numbers that could never give a batch.
    """

    def __init__(self, groups_per_step: int, max_staleness: int, min_group: int = 2, version: int = 0) -> None:
        if groups_per_step < 1 or max_staleness < 0 or min_group < 1:
            raise ValueError(
                f"a buffer needs groups_per_step >= 1, max_staleness >= 0 and min_group >= 1, "
                f"got {groups_per_step}, {max_staleness}, {min_group}"
            )
        self.groups_per_step = groups_per_step
        self.max_staleness = max_staleness
        self.min_group = min_group
        self.version = version
        self._consumed = version * groups_per_step
        """Slots used by steps so far: a step uses groups_per_step of them, also where it trained on fewer groups."""
        self._waiting: list[tuple[int, Group]] = []
        """In order of arrival, each with its oldest version."""
        self._started: dict[str, int] = {}
        """Groups in flight and the version that was served when they were started."""
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """Groups that were started and have neither arrived nor been given up."""
        return len(self._started)

    def capacity(self, share: float = 1.0) -> int:
        """Groups that may be started now without ever exceeding the staleness bound (AReaL's staleness manager).

        (max_staleness + version + 1) x groups_per_step - accepted, where accepted = consumed + waiting + in flight.
        share: of what is started, in (0, 1), that is expected to be accepted: then it is so many more. What is due in
        the present step takes no more than its slots there, since the step takes all of it (`take`): what comes beyond
        the expectation makes one batch larger, and does not let the next one shrink. The bound holds either way.
        """
        n = self.groups_per_step
        if share == 1.0:
            accepted = self._consumed + len(self._waiting) + len(self._started)
            return max(0, (self.max_staleness + self.version + 1) * n - accepted)
        due = self.version - self.max_staleness
        waiting = sum(version <= due for version, _ in self._waiting)
        started = sum(version <= due for version in self._started.values())
        now = waiting + share * started
        return max(0, int((self.max_staleness * n + max(0.0, n - now) - (self.expected(share) - now)) / share))

    def expected(self, share: float) -> float:
        """Groups that wait, and those in flight that are expected to be accepted."""
        return len(self._waiting) + share * len(self._started)

    def start(self, order: GroupOrder, version: int | None = None) -> None:
        """A group of this order is being generated from the present version on. Raises ValueError if it already is.

        version: where the group was in flight when the run was killed, the one from which it was generated then: it is
        waited for in the step that would have waited for it.
        """
        if order.id in self._started or any(g.order.id == order.id for _, g in self._waiting):
            raise ValueError(f"group {order.id} was already started")
        self._started[order.id] = self.version if version is None else version

    def give_up(self, group_id: str) -> None:
        """The group will not arrive (retired by the scheduler): its slot is free again."""
        self._started.pop(group_id, None)

    def put(self, group: Group) -> str | None:
        """Accept a finished group, or return the reason for which it is refused; its slot is then free again.

        Raises ValueError for a group that was not started, so that nothing can be trained twice.
        """
        if self._started.pop(group.order.id, None) is None:
            raise ValueError(f"group {group.order.id} is not in flight: it arrived twice, or was never started")
        reason = self._refusal(group)
        self.counts["accepted" if reason is None else reason.split(":")[0]] += 1
        if reason is None:
            self._waiting.append((oldest_version(group), group))
        return reason

    def ready(self, groups: int | None = None, share: float = 1.0) -> bool:
        """Whether `take` can serve `groups` (groups_per_step by default) and all others can still be trained in time.

        A group must be trained at most max_staleness versions after the oldest one it was sampled on. If after this
        step more of them were due by some version than the steps up to it can take, slow groups in flight are waited
        for; their deadline bounds the wait. When all have arrived the test holds, by the admission rule. With a share
        below 1 (see `capacity`) only what is due now is waited for: a later step takes all that is due by then.
        """
        n = self.groups_per_step if groups is None else groups
        if len(self._waiting) < n:
            return False
        if share < 1.0:
            return min(self._started.values(), default=self.version) + self.max_staleness > self.version
        ages = sorted(version for version, _ in self._waiting)[n:] + list(self._started.values())
        due = [v + self.max_staleness for v in ages]
        return all(
            sum(d <= self.version + steps for d in due) <= steps * self.groups_per_step
            for steps in range(self.max_staleness + 1)
        )

    def take(self, groups: int | None = None) -> list[Group]:
        """Remove and return up to `groups` groups, oldest version first, then in order of arrival: one step's batch.

        More than that only if more are due now: they would be too old in the next step. The step's slots count as used
        until `advance`; nothing is started on their behalf in between.
        """
        due = sum(version + self.max_staleness <= self.version for version, _ in self._waiting)
        n = max(due if self.max_staleness else 0, self.groups_per_step if groups is None else groups)
        order = sorted(range(len(self._waiting)), key=lambda i: (self._waiting[i][0], i))[:n]
        batch = [self._waiting[i][1] for i in order]
        taken = set(order)
        self._waiting = [pair for i, pair in enumerate(self._waiting) if i not in taken]
        self._consumed = max(self._consumed, (self.version + 1) * self.groups_per_step)
        return batch

    def staleness(self, group: Group) -> int:
        """Versions between the oldest sampled token of the group and the version that is being improved."""
        return self.version - oldest_version(group)

    def advance(self, version: int) -> None:
        """The engines serve this version now. Raises ValueError if it goes backwards (use `load_state_dict`)."""
        if version < self.version:
            raise ValueError(f"the weight version cannot go back from {self.version} to {version}")
        self.version = version
        self._consumed = max(self._consumed, version * self.groups_per_step)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: waiting groups and counters, and since when groups are in flight; their orders are
        the ledger's, and they are started again."""
        return {
            "version": self.version,
            "groups_per_step": self.groups_per_step,
            "counts": dict(self.counts),
            "waiting": [g.to_json() for _, g in self._waiting],
            "started": dict(self._started),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; the accepted count follows from the version, so no burst comes after a recovery.

        Raises ValueError if groups_per_step differs: versions would no longer count the same slots.
        """
        if state["groups_per_step"] != self.groups_per_step:
            raise ValueError(
                f"the checkpoint's buffer has groups_per_step {state['groups_per_step']}, "
                f"this run {self.groups_per_step}"
            )
        self.version = state["version"]
        self._consumed = self.version * self.groups_per_step
        self._waiting = [(oldest_version(g), g) for g in map(Group.from_json, state["waiting"])]
        self._started = {}
        self.counts = Counter(state["counts"])

    def _refusal(self, group: Group) -> str | None:
        valid = sum(t.grade is not None and t.grade.valid for t in group.trajectories)
        if valid < self.min_group:
            return f"too_small: {valid} valid of {len(group.trajectories)}, at least {self.min_group} needed"
        if self.staleness(group) > self.max_staleness:
            return f"stale: sampled on version {oldest_version(group)}, now {self.version}"
        return None


def oldest_version(group: Group) -> int:
    """Oldest weight version among the sampled tokens of the group's valid trajectories; a large number if none."""
    ranges = [t.version_range()[0] for t in group.trajectories if t.grade is not None and t.grade.valid]
    return min((v for v in ranges if v >= 0), default=1 << 60)
