"""Between the mixture and the learner: plans groups, waits for them, and hands out one step's batch.

One rule serves synchronous and asynchronous training (rollout/buffer.py): groups are started only while they can
still be trained within `max_staleness`, and before a step is trained every group that would otherwise become too old is
waited for; with max_staleness 0 these are all of them. Nothing is thrown away for being slow, so slow tasks are trained
as often as they are drawn. What a synchronous step trains does not depend on the order in which its groups finish.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from rl.assess import Assessed
from rl.config import Config
from rl.errors import UserError
from rl.ledger import GroupState, Ledger, LedgerError
from rl.mixture import Mixture
from rollout.buffer import RolloutBuffer
from rollout.controls import refuse
from rollout.trajectory import Group, GroupOrder

_QUIET_S = 5.0
"""Without a finished group for this long, in seconds, engines are asked whether they still have their weights."""


_CHECK_S = 5.0
"""While groups are waited for, the learners are asked this often, in seconds, whether they live: they have no call in
flight then that could fail."""


_LEARN = 0.01
"""Weight of one group in the share of those with a signal: the last hundred or so count."""

_LEAST = 0.85
"""Share of groups_per_step with which a step goes on where more groups were drawn than are expected to have a signal:
those come in numbers that vary, and the next step draws what was missing."""

_FIRST = -1
"""`due` of evaluation: nothing goes on until it is done."""

_MAX_EMPTY_ROUNDS = 7
"""Rounds without a single signal after which a step is given up: everything is solved, or nothing can be."""


class Rollout(Protocol):
    """What the collector needs of the scheduler."""

    def submit(self, orders: list[GroupOrder], due: int = 0) -> None:
        """Queue orders; they are dispatched as there is room, those with a smaller `due` first."""

    def completed(self, timeout: float) -> list[Group]:
        """Groups that finished since the last call; waits up to `timeout` seconds for the first."""

    def lost(self) -> list[tuple[GroupOrder, str]]:
        """Orders that were given up since the last call, with the reason."""


class StarvedError(UserError):
    """No step could be filled; the message says what was drawn and why none of it was usable."""


class Collector:
    """Holds what is pending. `assess(group, step)` turns a group that finished in a step into numbers and says whether
    it has a signal; `heal` is called when nothing has finished for a while: a restarted engine may be waiting for its
    weights. `check` is called every few seconds of waiting, and raises what must end the run. now: the clock, in
    seconds.
    """

    def __init__(
        self,
        config: Config,
        mixture: Mixture,
        ledger: Ledger,
        rollout: Rollout,
        assess: Callable[[Group, int], Assessed],
        version: int = 0,
        heal: Callable[[], object] = lambda: None,
        check: Callable[[], object] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self.mixture, self.ledger, self.rollout, self.assess = config, mixture, ledger, rollout, assess
        self.heal, self.check, self.now = heal, check, now
        a = config.algorithm
        self._rounds = a.max_sampling_rounds * a.groups_per_step
        self._ahead = a.max_staleness * a.groups_per_step
        self._allowance = self._rounds + self._ahead
        """Groups that may still be drawn in this step."""
        self.buffer = RolloutBuffer(a.groups_per_step, a.max_staleness, config.rollout.min_group, version)
        self.waiting: dict[str, Assessed] = {}
        self.seen: list[Assessed] = []
        """Everything assessed for this step, with and without a signal: what the metrics and the mixture look at."""
        self.retired: Counter[str] = Counter()
        self.drawn = 0
        self._share = 1.0
        """Share of the assessed groups that had a signal, of late."""
        self._begun = False
        """Whether this version's groups were drawn."""
        self._healed = self._checked = 0.0

    def batch(self) -> list[Assessed]:
        """The groups of one optimizer step, oldest weights first, then by id; call `advance` when it is trained.

        Returns fewer than `groups_per_step` when the groups of `max_sampling_rounds` are in and too few of them have a
        signal; and somewhat fewer or more where an asynchronous step draws what it expects to need. If none has one,
        more rounds are drawn; raises StarvedError after _MAX_EMPTY_ROUNDS of them, and TimeoutError if nothing finishes
        within three group deadlines (dispatch, re-dispatch, margin).
        """
        a = self.config.algorithm
        last_news = self.now()
        empty_rounds = 0
        while True:
            self._fill()
            if not self.buffer.in_flight and not len(self.buffer) and empty_rounds < _MAX_EMPTY_ROUNDS:
                empty_rounds += 1
                self._allowance += self._rounds
                continue
            settled = len(self.seen) >= self._rounds and len(self.buffer) > 0
            some = min(len(self.buffer), a.groups_per_step)
            share = self._expected
            least = a.groups_per_step if share == 1.0 else math.ceil(_LEAST * a.groups_per_step)
            if not self.buffer.in_flight or self.buffer.ready(least, share):
                break
            if settled and self.buffer.ready(some, share):
                break
            done, lost = self._news()
            for group in done:
                self._settle(group)
            for order, reason in lost:
                self._give_up(order.id, reason)
            last_news = self._watch(last_news, bool(done or lost), self.buffer.in_flight)
        self.seen.sort(key=lambda x: x.group.order.id)
        for x in self.seen:
            if x.solve_rate is not None:
                self.mixture.observe(x.group.order.task, x.group.order.effort, x.solve_rate, int(x.valid.sum()))
        chosen = sorted(self.buffer.take(), key=lambda g: g.order.id)
        if not chosen:
            raise StarvedError(
                f"none of {self.drawn} groups has a signal ({dict(self.retired)}): choose other levels (envs.levels), "
                "more environments (envs.names), or a better start (policy.init)"
            )
        return [self.waiting.pop(g.order.id) for g in chosen]

    def advance(self, version: int) -> None:
        """The step is trained and the engines serve `version`: a new step begins."""
        self.buffer.advance(version)
        self.seen, self.retired, self.drawn = [], Counter(), 0
        pending = self.buffer.in_flight + len(self.buffer)
        self._allowance = self._rounds + max(0, self._ahead - pending)
        self._begun = False

    def evaluate(self, orders: list[GroupOrder]) -> tuple[list[Group], list[tuple[GroupOrder, str]]]:
        """Run evaluation orders to the end: finished groups, and lost orders with their reasons.

        Training groups that finish meanwhile are kept for the next step.
        """
        pending = {o.id for o in orders}
        done: list[Group] = []
        gone: list[tuple[GroupOrder, str]] = []
        self.rollout.submit(orders, _FIRST)
        last_news = self.now()
        while pending:
            groups, lost = self._news()
            for group in groups:
                if group.order.id in pending:
                    pending.discard(group.order.id)
                    done.append(group)
                else:
                    self._settle(group)
            for order, reason in lost:
                if order.id in pending:
                    pending.discard(order.id)
                    gone.append((order, reason))
                else:
                    self._give_up(order.id, reason)
            last_news = self._watch(last_news, bool(groups or lost), len(pending))
        return done, gone

    def metrics(self) -> dict[str, float]:
        """What was drawn, retired and is pending in this step."""
        out = {"groups/drawn": float(self.drawn), "groups/in_flight": float(self.buffer.in_flight)}
        out["groups/waiting"] = float(len(self.buffer))
        if self.mixture.left_out:
            out["controls/tasks_left_out"] = float(self.mixture.left_out.total())
        return out | {f"groups/retired/{reason}": float(n) for reason, n in self.retired.items()}

    def state_dict(self) -> dict[str, Any]:
        """Between two steps: the waiting groups, the steps that shaped them, and how many may be drawn next; orders in
        flight are the ledger's."""
        shaped = {id: x.step for id, x in self.waiting.items()}
        return {
            "buffer": self.buffer.state_dict(),
            "shaped": shaped,
            "allowance": self._allowance,
            "share": self._share,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore, and dispatch again what was in flight: as drawn before, not in this step.

        Raises LedgerError unless the waiting groups are exactly those that the ledger calls finished, and those in
        flight those that it has planned.
        """
        self.buffer.load_state_dict(state["buffer"])
        started: dict[str, int] = state["buffer"]["started"]
        held = {g.order.id: g for g in (Group.from_json(row) for row in state["buffer"]["waiting"])}
        flying = {e.id: GroupOrder.from_json(e.order) for e in self.ledger.having(GroupState.PLANNED)}
        finished = {e.id for e in self.ledger.having(GroupState.FINISHED)}
        for what, ours, booked in (("finished", set(held), finished), ("open", set(started), set(flying))):
            if ours != booked:
                raise LedgerError(f"checkpoint and ledger disagree on {what} groups: {sorted(ours ^ booked)[:5]}")
        self.waiting = {id: self.assess(g, state["shaped"][id]) for id, g in held.items()}
        self._allowance, self._share = state["allowance"], state["share"]
        self._start([(order, started[id]) for id, order in flying.items()])

    @property
    def _expected(self) -> float:
        """Share of the groups in flight that are expected to have a signal, where this decides how many are drawn.

        A synchronous step replaces what has none as it is heard of. An asynchronous one would wait for replacements
        that were drawn late on their version; it draws as many more at once.
        """
        a = self.config.algorithm
        replaces = a.max_staleness > 0 and a.max_sampling_rounds > 1 and a.dynamic_sampling
        return max(self._share, 1 / a.max_sampling_rounds) if replaces else 1.0

    def _fill(self) -> None:
        a = self.config.algorithm
        share = self._expected
        if share < 1.0 and self._begun and self.buffer.expected(share) >= _LEAST * a.groups_per_step:
            return
        self._begun = True
        room = min(self.buffer.capacity(share), self._allowance - self.drawn)
        orders = [self.mixture.order(a.group_size) for _ in range(max(0, room))]
        for order in orders:
            self.ledger.plan(order.id, order.to_json())
        self.drawn += len(orders)
        self._start([(order, self.buffer.version) for order in orders])

    def _start(self, orders: list[tuple[GroupOrder, int]]) -> None:
        """Orders, and the versions from which they count as generated."""
        for order, version in orders:
            refuse(order, self.config.controls.exclude_tags)
            self.ledger.dispatch(order.id)
            self.buffer.start(order, version)
        for due in sorted({version for _, version in orders}):
            self.rollout.submit([order for order, version in orders if version == due], due)

    def _news(self) -> tuple[list[Group], list[tuple[GroupOrder, str]]]:
        if self.now() - self._checked > _CHECK_S:
            self.check()
            self._checked = self.now()
        return self.rollout.completed(1.0), self.rollout.lost()

    def _settle(self, group: Group) -> None:
        id = group.order.id
        self.ledger.finish(id)
        x = self.assess(group, self.buffer.version)
        self.seen.append(x)
        self._share += _LEARN * ((not x.retired) - self._share)
        if x.retired:
            self._give_up(id, str(x.retired))
            return
        refused = self.buffer.put(group)
        if refused:
            self._retire(id, refused)
        else:
            self.waiting[id] = x

    def _give_up(self, id: str, reason: str) -> None:
        self.buffer.give_up(id)
        self._retire(id, reason)

    def _retire(self, id: str, reason: str) -> None:
        self.ledger.retire(id, reason)
        self.retired[reason.split(":")[0]] += 1

    def _watch(self, last_news: float, news: bool, pending: int) -> float:
        now = self.now()
        if not news and now - max(last_news, self._healed) > _QUIET_S:
            self.heal()
            self._healed = now
        if not news and now - last_news > 3 * self.config.rollout.group_timeout_s:
            raise TimeoutError(f"nothing finished for {now - last_news:.0f} s while {pending} groups are pending")
        return now if news else last_news
