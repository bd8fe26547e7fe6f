"""What was sampled, step by step: one write for all rows, cut into columns only when a row moves or ends."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rollout.trajectory import NO_ROUTE

_STEPS = 64
"""Decode steps held as one block."""

Piece = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]


class Tape:
    """Columns ids, logps, versions and routes of the rows of a batch. Row numbers are those of the decode state."""

    def __init__(self, rows: int) -> None:
        self._ids = np.zeros((_STEPS, rows), np.int32)
        self._logps = np.zeros((_STEPS, rows), np.float32)
        self._versions = np.zeros(_STEPS, np.int32)
        self._routes: np.ndarray | None = None
        """uint16 [steps, rows, L, K] of the token that was FED in a step, the one sampled a step before."""
        self._at = 0
        self._since = np.zeros(rows, np.int64)
        """Per row: the first step of the block that is not in its pieces yet."""
        self._pieces: list[list[Piece]] = [[] for _ in range(rows)]

    def begin(self, rows: Iterable[int], ids: np.ndarray, logps: np.ndarray, version: int) -> None:
        """New sequences in these rows, with their first tokens [n], sampled at the end of the prompt."""
        for i, row in enumerate(rows):
            one = slice(i, i + 1)
            first = (ids[one].astype(np.int32), logps[one].astype(np.float32), np.full(1, version, np.int32), None)
            self._pieces[row] = [first]
            self._since[row] = self._at

    def append(self, routes: np.ndarray | None, ids: np.ndarray, logps: np.ndarray, version: int) -> None:
        """One decode step of the first n rows: routes [n, L, K] of the tokens fed, ids [n] and logps [n] sampled."""
        n, at = len(ids), self._at
        self._ids[at, :n], self._logps[at, :n], self._versions[at] = ids, logps, version
        if routes is not None:
            if self._routes is None:
                self._routes = np.zeros((*self._ids.shape, *routes.shape[1:]), np.uint16)
            self._routes[at, :n] = routes
        self._at += 1
        if self._at == _STEPS:
            for row in range(n):
                self._cut(row)
            self._at = 0
            self._since[:] = 0

    def move(self, to: int, row: int) -> None:
        """The sequence of `row` is in row `to` from now on."""
        self._cut(row)
        self._pieces[to], self._pieces[row] = self._pieces[row], []
        self._since[to] = self._at

    def ids(self, row: int) -> np.ndarray:
        """int32 [T]: what a row's sequence sampled so far."""
        self._cut(row)
        return np.concatenate([p[0] for p in self._pieces[row]])

    def columns(self, row: int) -> Piece:
        """ids int32 [T], logps float32 [T], versions int32 [T], routes uint16 [T, L, K] or None: a sequence so far."""
        self._cut(row)
        pieces = self._pieces[row]
        ids, logps, versions = (np.concatenate([p[i] for p in pieces]) for i in range(3))
        if self._routes is None:
            return ids, logps, versions, None
        last = np.full((1, *self._routes.shape[2:]), NO_ROUTE, np.uint16)
        return ids, logps, versions, np.concatenate([*(p[3] for p in pieces if p[3] is not None), last])

    def _cut(self, row: int) -> None:
        start, end = int(self._since[row]), self._at
        if start < end:
            block = slice(start, end)
            routes = None if self._routes is None else self._routes[block, row].copy()
            self._pieces[row].append(
                (self._ids[block, row].copy(), self._logps[block, row].copy(), self._versions[block].copy(), routes)
            )
            self._since[row] = end
