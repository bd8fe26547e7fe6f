"""What may be started now, and what first: room in the engines' context and in the workers' sandboxes, longest first.

A group that waits here costs nothing; one that waits in an engine uses up its deadline, and its place there is that of
its beginning. So groups are let in as fast as there is room for what they are expected to grow to.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from rollout.trajectory import Group, GroupOrder, StopReason

_MEMORY = 0.9
"""Memory of an expected length per group: about the last ten groups, since the policy moves."""


class Lengths:
    """Expected tokens (prompt and output) of a sample, per environment and effort; `longest` where none was seen."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._seen: dict[tuple[str, str], float] = {}

    def expect(self, order: GroupOrder) -> float:
        """Tokens of one sample of this order."""
        return self._seen.get(self._cell(order), float(self.longest))

    def observe(self, group: Group) -> None:
        """Learn from a finished group. A sample that was cut was at least as long as it is; one that failed says
        nothing."""
        cell, lengths = self._cell(group.order), []
        expected = self._seen.get(cell, 0.0)
        for t in group.trajectories:
            tokens = sum(len(n) for n in t.nodes)
            if t.stop in (StopReason.ABORTED, StopReason.SPARE):
                lengths.append(max(tokens, expected))
            elif t.stop is not StopReason.ERROR:
                lengths.append(tokens)
        if lengths:
            mean = sum(lengths) / len(lengths)
            self._seen[cell] = _MEMORY * expected + (1 - _MEMORY) * mean if cell in self._seen else mean

    @staticmethod
    def _cell(order: GroupOrder) -> tuple[str, str]:
        return order.task.environment, str(order.effort)


class Line:
    """Orders that wait: what is due first, then the longest, then as they came.

    Whoever is first and finds no room holds the place: nobody who needs the same passes. Only what needs no sandbox
    passes one that waits for sandboxes alone. So every order is let in some time, and no kind is starved.
    """

    def __init__(self) -> None:
        self._heaps: dict[bool, list[tuple[tuple[float, ...], Any]]] = {False: [], True: []}
        self._entered = 0

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values()))

    def __iter__(self) -> Iterator[Any]:
        return (item for heap in self._heaps.values() for _, item in heap)

    def put(self, item: Any, boxed: bool, due: float, expected: float) -> None:
        """Enter; boxed: whether it needs sandboxes; due: smaller ones go first; expected: among those, larger ones."""
        self._entered += 1
        heapq.heappush(self._heaps[boxed], ((due, -expected, self._entered), item))

    def first(self, boxed: bool | None = None) -> Any | None:
        """Who is next, of all or of one kind; None if nobody waits."""
        heaps = [h for kind, h in self._heaps.items() if h and boxed in (None, kind)]
        return min(heaps, key=lambda h: h[0][0])[0][1] if heaps else None

    def pop(self, boxed: bool) -> Any:
        """Take out the next one of this kind."""
        return heapq.heappop(self._heaps[boxed])[1]
