"""States kept between the turns of a conversation, so that the next turn only adds its new tokens."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_BYTES = 256 << 20
"""Memory of kept states at most."""

_PER_ROW = 4
"""Kept states per row of the batch at most: conversations wait for their environments about as long as they decode."""


@dataclass(eq=False)
class _Kept:
    """One state: how many tokens it has seen, and its row in the pool."""

    length: int
    slot: int


class Sessions:
    """A pool of state rows, the least recently used evicted; a state serves only the tokens and weights that made it.

    The key is (version, 128-bit hash of what the sequence is: `rollout.images.identity`). Recurrent states
    cannot be cut, so a prompt profits only from a state that ends exactly at one of its prefixes.
    """

    def __init__(self, policy: Any, batch: int, max_len: int, max_bytes: int = _BYTES) -> None:
        self._policy, self._batch, self._max_len, self._max_bytes = policy, batch, max_len, max_bytes
        self._pool: Any = None
        self._free: list[int] = []
        self._kept: OrderedDict[tuple[int, bytes], _Kept] = OrderedDict()
        self._lengths: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, version: int, entries: Sequence[tuple[np.ndarray, int]], state: Any) -> None:
        """Copy rows of the state into the pool; entries: (identity int64 [T, 2] of what the row has been fed, row)."""
        if self._pool is None:
            rows = int(min(_PER_ROW * self._batch, self._max_bytes // max(1, state.nbytes // self._batch)))
            if rows == 0:
                return
            self._pool = self._policy.new_state(rows, self._max_len)
            self._free = list(range(rows))
        slots: list[int] = []
        rows_: list[int] = []
        for ids, row in entries:
            key = (version, _hash(ids))
            if key in self._kept:
                self._drop(key)
            if not self._free:
                self._drop(next(iter(self._kept)))
            slot = self._free.pop()
            if slot in slots:  # more entries than the pool has rows: the last ones stay
                at = slots.index(slot)
                del slots[at], rows_[at]
            self._kept[key] = _Kept(len(ids), slot)
            self._lengths[len(ids)] += 1
            slots.append(slot)
            rows_.append(row)
        self._pool.copy_rows(torch.tensor(slots), state, torch.tensor(rows_))

    def take(self, version: int, prompt: np.ndarray, state: Any, row: int) -> int:
        """Give a row the longest kept state of a proper prefix of the prompt (its identity int64 [T, 2]); returns its
        length, 0 if there is none.

        The state leaves the pool: a conversation goes on from it once.
        """
        if not self._kept:
            return 0
        found: tuple[int, bytes] | None = None
        running, at = hashlib.blake2b(digest_size=16), 0
        for length in sorted(n for n in self._lengths if n < len(prompt)):
            running.update(prompt[at:length].tobytes())
            at = length
            key = (version, running.copy().digest())
            if key in self._kept:
                found = key
        if found is None:
            return 0
        kept = self._kept[found]
        state.copy_rows(torch.tensor([row]), self._pool, torch.tensor([kept.slot]))
        self._drop(found)
        return kept.length

    def clear(self) -> None:
        """Forget every state (the weights have changed)."""
        for key in list(self._kept):
            self._drop(key)

    def _drop(self, key: tuple[int, bytes]) -> None:
        kept = self._kept.pop(key)
        self._free.append(kept.slot)
        self._lengths[kept.length] -= 1
        if not self._lengths[kept.length]:
            del self._lengths[kept.length]


def _hash(ids: np.ndarray) -> bytes:
    return hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
