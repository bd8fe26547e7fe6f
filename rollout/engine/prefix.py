"""Checkpoints of decode states at the ends of prompts and turns: what begins with the same tokens is run once.

A recurrent state cannot be cut, so that a prompt profits only from a checkpoint that ends exactly where it goes on. The
engine takes them there: at the end of a prompt, for its siblings, and at the end of a turn, for the next one. Latents
and index keys are held once for each token: a checkpoint that continues another one holds its own tokens' alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rollout.engine.base import Key

_REMEMBERED = 4096
"""Keys of checkpoints that are gone: they tell a token that is run again from one that is run for the first time."""


@dataclass(frozen=True, eq=False)
class End:
    """What a prompt's next sibling needs besides the state: the logits [V] after the prompt, and routes and picks of
    the prompt's tokens from `begin` on, as in `Generation`."""

    logits: Tensor
    routes: np.ndarray | None
    picks: np.ndarray | None
    begin: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all three."""
        return _bytes([self.logits]) + sum(a.nbytes for a in (self.routes, self.picks) if a is not None)


@dataclass(eq=False)
class Checkpoint:
    """The state after a sequence's first `length` tokens."""

    key: Key
    length: int
    parent: Checkpoint | None
    """The checkpoint that holds the latents of the tokens before `start`."""
    fixed: list[Tensor]
    """Recurrent and convolution state; empty once it was evicted."""
    grown: list[Tensor]
    """Latents and index keys [L_full, length - start, .] of its own tokens; empty once nobody needs them."""
    end: End | None = None
    heirs: int = 0
    """Checkpoints that continue this one."""

    @property
    def nbytes(self) -> int:
        """Bytes of what it holds itself."""
        return _bytes([*self.fixed, *self.grown]) + (0 if self.end is None else self.end.nbytes)

    @property
    def start(self) -> int:
        """The first token whose latents are its own."""
        return 0 if self.parent is None else self.parent.length


class PrefixCache:
    """Checkpoints of at most `max_bytes` in all, the least recently used evicted; 0: none are kept.

    A checkpoint serves only the tokens and the weights that made it, any number of times.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.bytes = max_bytes, 0
        self._held: OrderedDict[Key, Checkpoint] = OrderedDict()
        self._gone: OrderedDict[Key, int] = OrderedDict()
        """Lengths of what was evicted, or too large."""
        self._lengths: Counter[int] = Counter()
        """How many keys there are of each length, held or gone."""
        self.counts: Counter[str] = Counter()
        """lookups, hits, evictions, and `distinct` tokens: of prompts, beyond all checkpoints there are or were."""
        self.newest: Checkpoint | None = None
        """What `keep` took last, and did not have already."""

    def __len__(self) -> int:
        return len(self._held)

    def find(self, version: int, prompt: np.ndarray) -> Checkpoint | None:
        """The longest checkpoint of a prompt (its identity int64 [T, 2]): of the whole, if it says how the prompt ends,
        or of a proper prefix."""
        found, known = self._longest(version, prompt)
        self.counts["lookups"] += 1
        self.counts["distinct"] += len(prompt) - known
        if found is None:
            return None
        self.counts["hits"] += 1
        self._held.move_to_end(found)
        return self._held[found]

    def reach(self, version: int, prompt: np.ndarray) -> int:
        """Tokens of a prompt that `find` would spare; nothing is counted, and nothing used."""
        found, _ = self._longest(version, prompt)
        return 0 if found is None else self._held[found].length

    def _longest(self, version: int, prompt: np.ndarray) -> tuple[Key | None, int]:
        """The key that `find` wants, and how many tokens any checkpoint, held or gone, is of."""
        found: Key | None = None
        known, at = 0, 0
        running = hashlib.blake2b(digest_size=16)
        for length in sorted(n for n in self._lengths if n <= len(prompt)):
            running.update(prompt[at:length].tobytes())
            at = length
            key = (version, running.copy().digest())
            held = self._held.get(key)
            if held is not None and (length < len(prompt) or held.end is not None):
                found = key
            if held is not None or key in self._gone:
                known = length
        return found, known

    def give(self, checkpoint: Checkpoint, state: Any, row: int, there: Checkpoint | None = None) -> None:
        """Write a checkpoint that `find` gave into a row of a decode state.

        there: a checkpoint whose latents are in this row already, but for the first token's: what continues it adds
        its own alone, so that the turns of one long sequence do not copy all of it each time.
        """
        state.own()
        for mine, theirs in zip((state.recurrent, state.conv), checkpoint.fixed, strict=True):
            mine[:, row] = theirs
        chain = [checkpoint]
        while chain[-1].parent is not None:
            chain.append(chain[-1].parent)
        whole = chain.index(there) if there is not None and there in chain else None
        parts = [(part.start, part.length, part) for part in chain[:whole]]
        if whole is not None:
            parts.append((0, 1, chain[-1]))
        for start, end, part in parts:
            for mine, theirs in zip(_growing(state), part.grown, strict=True):
                mine[:, row, start:end] = theirs[:, : end - start]
        state.lengths[row] = checkpoint.length

    def keep(
        self,
        version: int,
        ids: np.ndarray,
        state: Any,
        row: int,
        base: Checkpoint | None = None,
        end: End | None = None,
    ) -> Checkpoint | None:
        """Take a checkpoint of a row; returns it, or the same one that is held already, None if it is not kept.

        ids: identity int64 [T, 2] of what the row has been fed; base: the checkpoint that the row went on from; end: if
        this is the end of a prompt. Raises ValueError if the row has not been fed T tokens.
        """
        if int(state.lengths[row]) != len(ids):
            raise ValueError(f"row {row} was fed {int(state.lengths[row])} tokens, not the {len(ids)} of its key")
        key = (version, hashlib.blake2b(ids.tobytes(), digest_size=16).digest())
        same = self._held.get(key)
        if same is not None:
            self._held.move_to_end(key)
            if same.end is None and end is not None:
                same.end, self.bytes = end, self.bytes + end.nbytes
                self._evict()
            return same
        parent = base if base is not None and base.grown else None
        start = 0 if parent is None else parent.length
        fixed = [state.recurrent[:, row], state.conv[:, row]]
        grown = [x[:, row, start : len(ids)] for x in _growing(state)]
        size = _bytes([*fixed, *grown]) + (0 if end is None else end.nbytes)
        self._forget(key)
        self._lengths[len(ids)] += 1
        if size > self.max_bytes:
            self._remember(key, len(ids))
            return None
        made = Checkpoint(key, len(ids), parent, [x.clone() for x in fixed], [x.clone() for x in grown], end)
        if parent is not None:
            parent.heirs += 1
        self.newest = made
        self._hold(made)
        return made

    def get(self, key: Key) -> Checkpoint | None:
        """A checkpoint that is held, by its key."""
        return self._held.get(key)

    def adopt(self, made: Checkpoint) -> bool:
        """Hold a checkpoint that was made elsewhere, with all its latents its own; False if it is too large."""
        if made.key in self._held or made.nbytes > self.max_bytes:
            return made.key in self._held
        self._forget(made.key)
        self._lengths[made.length] += 1
        self._hold(made)
        return made.key in self._held

    def _hold(self, made: Checkpoint) -> None:
        self._held[made.key] = made
        self.bytes += made.nbytes
        self._evict()

    def clear(self) -> None:
        """Forget every checkpoint (the weights have changed)."""
        while self._held:
            self._release(self._held.popitem()[1])
        self._gone.clear()
        self._lengths.clear()

    def _evict(self) -> None:
        while self.bytes > self.max_bytes:
            key, oldest = self._held.popitem(last=False)
            self.counts["evictions"] += 1
            self._remember(key, oldest.length)
            self._release(oldest)

    def _release(self, checkpoint: Checkpoint) -> None:
        """Free what is held for a checkpoint that is not found any more, and latents that only it needed."""
        self.bytes -= _bytes(checkpoint.fixed) + (0 if checkpoint.end is None else checkpoint.end.nbytes)
        checkpoint.fixed, checkpoint.end = [], None
        part: Checkpoint | None = checkpoint
        while part is not None and not part.fixed and not part.heirs:
            self.bytes -= _bytes(part.grown)
            part.grown, above, part.parent = [], part.parent, None
            if above is not None:
                above.heirs -= 1
            part = above

    def _remember(self, key: Key, length: int) -> None:
        self._gone[key] = length
        if len(self._gone) > _REMEMBERED:
            self._forget(next(iter(self._gone)))

    def _forget(self, key: Key) -> None:
        length = self._gone.pop(key, None)
        if length is not None:
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]


def _growing(state: Any) -> tuple[Tensor, ...]:
    """What of a decode state has a place for every token: [L_full, capacity, max_len, .]."""
    return (state.latent,) if state.index is None else (state.latent, state.index)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)
