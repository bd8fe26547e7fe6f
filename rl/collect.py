"""Between the mixture and the learner: plans groups, waits for them, and hands out one step's batch.

One rule serves synchronous and asynchronous training. At most (max_staleness + 1) steps' worth of groups are pending, and
before a step is trained every group that would otherwise become too old is waited for: with max_staleness 0 these are all
of them. Nothing is thrown away for being slow, so slow tasks are trained as often as they are drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from rl.assess import Assessed, Retired
from rl.config import Config
from rl.ledger import Ledger
from rl.mixture import Mixture
from rollout.trajectory import Group, GroupOrder


class Rollout(Protocol):
    """What the collector needs of the scheduler."""

    def submit(self, orders: list[GroupOrder]) -> None:
        """Queue orders; they are dispatched as workers have room."""

    def completed(self, timeout: float) -> list[Group]:
        """Groups that finished since the last call; waits up to `timeout` seconds for the first."""

    def lost(self) -> list[tuple[GroupOrder, str]]:
        """Orders that were given up since the last call, with the reason."""


class StarvedError(RuntimeError):
    """No step could be filled; the message says what was drawn and why none of it was usable."""


class Collector:
    """Holds what is pending. `assess` turns a finished group into numbers and says whether it has a signal."""

    def __init__(
        self,
        config: Config,
        mixture: Mixture,
        ledger: Ledger,
        rollout: Rollout,
        assess: Callable[[Group, int], Assessed],
        on_event: Callable[[dict[str, Any]], None],
    ) -> None:
        self.config, self.mixture, self.ledger, self.rollout = config, mixture, ledger, rollout
        self.assess, self.on_event = assess, on_event
        self.redo = [GroupOrder.from_json(e.order) for e in ledger.outstanding()]
        self.in_flight: dict[str, int] = {}
        """Group id -> weight version when it was dispatched."""
        self.usable: list[Assessed] = []
        self.seen: list[Assessed] = []
        """Everything assessed in this step, with and without a signal: what the metrics and the mixture look at."""
        self.retired: dict[str, int] = {}
        self.drawn = 0

    def batch(self, step: int, version: int) -> list[Assessed]:
        """The groups of one optimizer step, oldest weights first, then by id.

        Returns fewer than `groups_per_step` when `max_sampling_rounds` is used up. Raises StarvedError if there are none,
        and TimeoutError if nothing finishes for `rollout.group_timeout_s` x 3 (dispatch, re-dispatch, margin).
        """
        a = self.config.algorithm
        self.seen, self.retired, self.drawn = [], {}, 0
        last_news = time.monotonic()
        while True:
            self._fill(version)
            if not self._must_wait(version) and (len(self.usable) >= a.groups_per_step or not self.in_flight):
                break
            if self.pump(step, version):
                last_news = time.monotonic()
            elif time.monotonic() - last_news > 3 * self.config.rollout.group_timeout_s:
                raise TimeoutError(f"no group finished; waiting for {sorted(self.in_flight)[:8]} of {len(self.in_flight)}")
        self.usable.sort(key=lambda x: (_oldest(x.group), x.group.order.id))
        chosen, self.usable = self.usable[: a.groups_per_step], self.usable[a.groups_per_step :]
        if not chosen:
            raise StarvedError(
                f"step {step}: none of {self.drawn} groups has a signal ({self.retired}): "
                "choose easier levels (envs.levels), more environments, or a better start (policy.init)"
            )
        for x in sorted(self.seen, key=lambda x: x.group.order.id):
            if x.solve_rate is not None:
                self.mixture.observe(x.group.order.task, x.group.order.effort, x.solve_rate)
        return chosen

    def pump(self, step: int, version: int, timeout: float = 1.0) -> int:
        """Take in what finished; returns how many training groups were settled. Evaluation groups are not expected here."""
        groups = self.rollout.completed(timeout)
        for group in groups:
            self._settle(group, step, version)
        lost = self.rollout.lost()
        for order, reason in lost:
            self.in_flight.pop(order.id)
            self._retire(order.id, reason)
        return len(groups) + len(lost)

    def evaluate(self, orders: list[GroupOrder], step: int, version: int) -> tuple[list[Group], list[GroupOrder]]:
        """Run evaluation orders to the end (training groups that finish meanwhile are kept); groups and lost orders."""
        waiting = {o.id for o in orders}
        done: list[Group] = []
        lost: list[GroupOrder] = []
        self.rollout.submit(orders)
        last_news = time.monotonic()
        while waiting:
            news = self.rollout.completed(1.0)
            for group in news:
                if group.order.id in waiting:
                    waiting.discard(group.order.id)
                    done.append(group)
                else:
                    self._settle(group, step, version)
            for order, reason in self.rollout.lost():
                if order.id in waiting:
                    waiting.discard(order.id)
                    lost.append(order)
                    self.on_event({"event": "lost_evaluation", "order": order.id, "reason": reason})
                else:
                    self.in_flight.pop(order.id)
                    self._retire(order.id, reason)
            if news:
                last_news = time.monotonic()
            elif time.monotonic() - last_news > 3 * self.config.rollout.group_timeout_s:
                raise TimeoutError(f"evaluation stands still; waiting for {sorted(waiting)[:8]} of {len(waiting)}")
        return done, lost

    def _fill(self, version: int) -> None:
        a = self.config.algorithm
        room = (a.max_staleness + 1) * a.groups_per_step - len(self.usable) - len(self.in_flight)
        room = min(room, a.max_sampling_rounds * a.groups_per_step - self.drawn)
        orders = []
        for _ in range(max(0, room)):
            if self.redo:
                order = self.redo.pop(0)
            else:
                order = self.mixture.order(a.group_size)
                self.ledger.plan(order.id, order.to_json())
            orders.append(order)
        self.drawn += len(orders)
        for order in orders:
            self.in_flight[order.id] = version
            self.ledger.dispatch(order.id)
        if orders:
            self.rollout.submit(orders)

    def _must_wait(self, version: int) -> bool:
        oldest_allowed = version + 1 - self.config.algorithm.max_staleness
        return any(v < oldest_allowed for v in self.in_flight.values())

    def _settle(self, group: Group, step: int, version: int) -> None:
        id = group.order.id
        if self.in_flight.pop(id, None) is None:
            self.on_event({"event": "unexpected_group", "group": id})
            return
        self.ledger.finish(id)
        x = self.assess(group, step)
        self.seen.append(x)
        oldest = _oldest(group)
        if oldest >= 0 and version - oldest > self.config.algorithm.max_staleness:
            x.retired = Retired.STALE
        if x.retired:
            self._retire(id, str(x.retired))
        else:
            self.usable.append(x)

    def _retire(self, id: str, reason: str) -> None:
        self.ledger.retire(id, reason)
        self.retired[reason] = self.retired.get(reason, 0) + 1


def _oldest(group: Group) -> int:
    return min((t.version_range()[0] for t in group.trajectories), default=-1)
