"""Speculative decoding without a second model: what the sequence or a sibling said after the same words is a draft.

The policy reads a draft in one piece, and samples after each of its tokens as it always does (`sampling.py`): the token
of a uniform number that is fixed by seed and position. A draft holds as far as it says just that. This is rejection
sampling from a proposal that is sure of its token d: d is accepted with its probability p(d), and what is sampled
otherwise has the distribution p given that it is not d. So the tokens are those of plain decoding, seed by seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

WORDS = (3, 2)
"""Tokens that must agree before a draft begins: what follows three is likelier right than what follows two, which is
asked next."""


class Drafts:
    """What followed which words in a prompt [T] and in what its samples said so far; the last time counts."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        self._tail: list[int] = []
        self._tails: dict[int, list[int]] = {}
        for token in prompt:
            self._add(self._tail, int(token))

    def add(self, sample: int, tokens: Iterable[int]) -> None:
        """Sample number `sample` went on with these tokens."""
        tail = self._tails.setdefault(sample, list(self._tail))
        for token in tokens:
            self._add(tail, int(token))

    def draft(self, sample: int, most: int) -> list[int]:
        """At most so many tokens that may come next."""
        tail = list(self._tails.get(sample, self._tail))
        out: list[int] = []
        while len(out) < most:
            found = (self._next.get(tuple(tail[-n:])) for n in WORDS if len(tail) >= n)
            token = next((x for x in found if x is not None), None)
            if token is None:
                break
            out.append(token)
            tail.append(token)
        return out

    def _add(self, tail: list[int], token: int) -> None:
        for n in WORDS:
            if len(tail) >= n:
                self._next[tuple(tail[-n:])] = token
        tail.append(token)
        del tail[: -max(WORDS)]


@dataclass(frozen=True, eq=False)
class Reading:
    """What the policy says of n rows' next tokens, each the last one and a draft: fed Long [n, T], lengths [n]."""

    fed: Tensor
    lengths: np.ndarray
    logits: Tensor
    """[n, T, V] after each token."""
    routes: Tensor
    """Long [n, T, L, K]."""
    picks: Tensor | None
    """int32 [n, T, L_full, k]."""
    before: tuple[Tensor, Tensor, Tensor]
    """Recurrent and convolution state and lengths of rows 0..n-1 without the tokens."""

    @classmethod
    def of(cls, policy: Any, state: Any, tokens: list[list[int]], picks: bool) -> Reading:
        """Feed tokens to rows 0..n-1 of the state."""
        n, lengths = len(tokens), np.array([len(t) for t in tokens])
        fed = torch.zeros(n, int(lengths.max()), dtype=torch.int64)
        for i, t in enumerate(tokens):
            fed[i, : len(t)] = torch.tensor(t)
        before = (state.recurrent[:, :n].clone(), state.conv[:, :n].clone(), state.lengths[:n].clone())
        keys = policy.new_picks(*fed.shape) if picks else None
        rows = torch.arange(n)
        logits, routes = policy.extend(fed, torch.from_numpy(lengths), state, rows, picks=keys, every=True)
        return cls(fed, lengths, logits, routes, keys, before)

    def keep(self, policy: Any, state: Any, taken: np.ndarray) -> None:
        """Leave only the first `taken` [n] >= 1 tokens in the state.

        Latents and index keys beyond a length are never read; recurrent states go back, and read those tokens again.
        """
        short = torch.from_numpy(np.flatnonzero(taken < self.lengths))
        if len(short) == 0:
            return
        recurrent, conv, lengths = self.before
        there = short.to(state.device)
        state.recurrent[:, there] = recurrent[:, there]
        state.conv[:, there] = conv[:, there]
        state.lengths[short] = lengths[short]
        again = torch.from_numpy(taken)[short]
        policy.extend(self.fed[short, : int(again.max())], again, state, short)


def accepted(fed: np.ndarray, said: np.ndarray, length: int, stops: np.ndarray) -> int:
    """Tokens of one row that count: those said while the draft held, up to a stop. fed and said [T], stops [S]."""
    for i in range(length - 1):
        if said[i] != fed[i + 1] or said[i] in stops:
            return i + 1
    return length
