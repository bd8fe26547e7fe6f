"""What was sampled, step by step: one write for all rows, cut into columns only when a row moves or ends."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rollout.picks import nothing
from rollout.trajectory import NO_ROUTE

_STEPS = 64
"""Decode steps held as one block."""

Piece = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]


class Tape:
    """Columns ids, logps, versions, routes, picks of the rows of a batch. Row numbers are those of the decode state."""

    def __init__(self, rows: int) -> None:
        self._ids = np.zeros((_STEPS, rows), np.int32)
        self._logps = np.zeros((_STEPS, rows), np.float32)
        self._versions = np.zeros(_STEPS, np.int32)
        self._routes: np.ndarray | None = None
        """uint16 [steps, rows, L, K] of the token that was FED in a step, the one sampled a step before."""
        self._picks: np.ndarray | None = None
        """[steps, rows, L_full, k] (`rollout.picks`) of the same token."""
        self._at = 0
        self._since = np.zeros(rows, np.int64)
        """Per row: the first step of the block that is not in its pieces yet."""
        self._pieces: list[list[Piece]] = [[] for _ in range(rows)]

    def begin(self, rows: Iterable[int], ids: np.ndarray, logps: np.ndarray, version: int) -> None:
        """New sequences in these rows, with their first tokens [n], sampled at the end of the prompt."""
        for i, row in enumerate(rows):
            one = slice(i, i + 1)
            column = (ids[one].astype(np.int32), logps[one].astype(np.float32), np.full(1, version, np.int32))
            self._pieces[row] = [(*column, None, None)]
            self._since[row] = self._at

    def append(
        self,
        routes: np.ndarray | None,
        ids: np.ndarray,
        logps: np.ndarray,
        version: int,
        picks: np.ndarray | None = None,
    ) -> None:
        """One decode step of the first n rows: routes [n, L, K] and picks [n, L_full, k] of the tokens fed, ids [n] and
        logps [n] sampled. Without picks no token of this step has any to record.
        """
        n, at = len(ids), self._at
        self._ids[at, :n], self._logps[at, :n], self._versions[at] = ids, logps, version
        self._open(routes, picks)
        if routes is not None and self._routes is not None:
            self._routes[at, :n] = routes
        if picks is not None and self._picks is not None:
            self._picks[at, :n] = picks
        elif self._picks is not None:
            self._picks[at] = nothing(self._picks.shape[1:], self._picks.dtype)
        self._at += 1
        if self._at == _STEPS:
            for row in range(n):
                self._cut(row)
            self._at = 0
            self._since[:] = 0

    def add(
        self,
        row: int,
        routes: np.ndarray | None,
        ids: np.ndarray,
        logps: np.ndarray,
        version: int,
        picks: np.ndarray | None = None,
    ) -> None:
        """Several steps of one row: as `append`, with the row's tokens on the first axis."""
        self._cut(row)
        self._open(routes, picks)
        column = (ids.astype(np.int32), logps.astype(np.float32), np.full(len(ids), version, np.int32))
        self._pieces[row].append((*column, None if routes is None else routes.astype(np.uint16), picks))

    def _open(self, routes: np.ndarray | None, picks: np.ndarray | None) -> None:
        """Make the blocks of what is recorded, at the first record."""
        if routes is not None and self._routes is None:
            self._routes = np.zeros((*self._ids.shape, *routes.shape[1:]), np.uint16)
        if picks is not None and self._picks is None:
            self._picks = nothing((*self._ids.shape, *picks.shape[1:]), picks.dtype)

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
        """A sequence so far: ids int32 [T], logps float32 [T], versions int32 [T], routes uint16 [T, L, K] or None, and
        picks [T, L_full, k] or None.
        """
        self._cut(row)
        pieces = self._pieces[row]
        ids, logps, versions = (np.concatenate([p[i] for p in pieces]) for i in range(3))
        routes = None
        if self._routes is not None:
            last = np.full((1, *self._routes.shape[2:]), NO_ROUTE, np.uint16)
            routes = np.concatenate([*(p[3] for p in pieces if p[3] is not None), last])
        return ids, logps, versions, routes, self._chosen(pieces)

    def _chosen(self, pieces: list[Piece]) -> np.ndarray | None:
        """Picks of a sequence's tokens; the last one was not fed, and the first piece is no step."""
        if self._picks is None or all(p[4] is None for p in pieces):
            return None
        tail, kind = self._picks.shape[2:], self._picks.dtype
        parts = [nothing((len(p[0]), *tail), kind) if p[4] is None else p[4] for p in pieces[1:]]
        return np.concatenate([*parts, nothing((1, *tail), kind)])

    def _cut(self, row: int) -> None:
        start, end = int(self._since[row]), self._at
        if start < end:
            block = slice(start, end)
            routes = None if self._routes is None else self._routes[block, row].copy()
            picks = None if self._picks is None else self._picks[block, row].copy()
            column = (self._ids[block, row].copy(), self._logps[block, row].copy(), self._versions[block].copy())
            self._pieces[row].append((*column, routes, picks))
            self._since[row] = end
