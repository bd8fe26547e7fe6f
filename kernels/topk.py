"""The k best keys of each query by the indexer's scores, streamed over the keys: exact, in O(queries x k) memory.

    I[t, s] = sum_j w[t, j] ReLU(q[t, j] . k[s])        ties go to the smaller s, as in `model.dsa.select_topk`

Scores are made tile by tile and looked at once. A query remembers its best keys and the k-th value: of a later tile
only what exceeds that value is kept, and as keys come in ascending order an equal score never displaces an earlier
one. Candidates collect in a buffer of 4 k places; when one is full all are cut back to their k best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

GROUP = 64
"""Scores whose maximum is compared first: nearly all groups of a long sequence hold no candidate."""
ROWS = {True: 256, False: 4096}
"""Queries of a tile, on a CPU or elsewhere."""
CELLS = {True: 2**20, False: 2**28}
"""Values of a tile before the sum over heads: 4 MiB of float32 on a CPU, so that they stay in its cache; else 1 GiB."""
PLACES = 4
"""Length of a query's buffer in multiples of k: a longer one is cut less often, but by a value that is older."""
NONE = 2**30
"""Places without a key hold this index plus their column: more than any key's, and no two alike."""


class _Best:
    """The best keys that each of R queries has seen: values and Int indices [R, 4 k], of which `fill` [R] count."""

    def __init__(self, rows: int, k: int, like: Tensor) -> None:
        self.k, self.places = k, PLACES * k
        self.value = like.new_full((rows, self.places), -torch.inf)
        self.index = self._nothing(rows)
        self.fill = torch.zeros(rows, dtype=torch.int64, device=like.device)
        self.least = like.new_full((rows, 1), -torch.inf)

    def _nothing(self, rows: int) -> Tensor:
        places = torch.arange(NONE, NONE + self.places, dtype=torch.int32, device=self.value.device)
        return places.repeat(rows, 1)

    def see(self, scores: Tensor, first: int) -> None:
        """Look at scores [R, S] of the keys from `first` on; -inf where a query may not look."""
        # A tile that is large beside what came before it holds more candidates than the buffer.
        if first < 4 * self.k or not (self._collect(scores, first) or self._collect(scores, first)):
            keys = torch.arange(first, first + scores.shape[1], dtype=torch.int32, device=scores.device)
            self._cut(torch.cat((self.value, scores), 1), torch.cat((self.index, keys.expand(len(scores), -1)), 1))

    def _collect(self, scores: Tensor, first: int) -> bool:
        """Add the scores above the k-th value; False, with a cut buffer, if they do not fit."""
        rows, width = scores.shape
        size = math.gcd(width, GROUP)
        groups = scores.view(-1, size)
        hit = (groups.amax(1).view(rows, -1) > self.least).flatten().nonzero().squeeze(1)
        row = hit // (width // size)
        values = groups.index_select(0, hit)
        which, column = (values > self.least[row]).nonzero().unbind(1)
        row = row[which]
        count = torch.bincount(row, minlength=rows)
        after = self.fill + count
        if int(after.max()) > self.places:
            self._cut(self.value, self.index)
            return False
        start = row * self.places + self.fill[row] - (count.cumsum(0) - count)[row]
        place = start + torch.arange(len(row), device=row.device)
        keys = first + (hit[which] * size + column) % width
        self.value.view(-1)[place] = values[which, column]
        self.index.view(-1)[place] = keys.to(torch.int32)
        self.fill = after
        return True

    def _cut(self, value: Tensor, index: Tensor) -> None:
        """Keep the k best of [R, S]."""
        best, at = torch.topk(value, self.k, sorted=False)
        least = best.amin(1, keepdim=True)
        # Which of the tied ones topk took is not defined.
        crowded = ((value >= least).sum(1) > self.k).nonzero().squeeze(1)
        if len(crowded):
            at[crowded] = _first_of_ties(value[crowded], index[crowded], least[crowded], self.k)
        rows = value.shape[0]
        value, index = value.gather(1, at), index.gather(1, at)
        self.value.fill_(-torch.inf)[:, : self.k] = value
        # Places without a key, the kept ones included, get indices that differ from one another.
        self.index = self._nothing(rows)
        self.index[:, : self.k] = torch.where(value > -torch.inf, index, self.index[:, : self.k])
        self.fill.fill_(self.k)
        self.least = least

    def indices(self) -> Tensor:
        """Int [R, k], ascending, -1 behind a query's last key."""
        self._cut(self.value, self.index)
        kept = self.index[:, : self.k].sort(1).values
        return torch.where(kept < NONE, kept, -1)


def _first_of_ties(value: Tensor, index: Tensor, least: Tensor, k: int) -> Tensor:
    """Long [R, k]: places of what exceeds `least` [R, 1], then of the smallest indices among what equals it."""
    above, tied = value > least, value == least
    room = k - above.sum(1, keepdim=True)
    ordered = torch.where(tied, index, torch.iinfo(torch.int32).max).sort(1).values
    last = ordered.gather(1, (room - 1).clamp_min_(0))
    return (above | (tied & (index <= last))).nonzero()[:, 1].view(-1, k)


@torch.no_grad()
def select_keys(q: Tensor, weights: Tensor, keys: Tensor, start: int, k: int) -> Tensor:
    """Int [T, min(k, n)]: each query's best keys, ascending, -1 behind the last; query t sees keys 0 .. start + t.

    q [T, J, d] and weights [T, J] (scores' scale included) of the indexer's heads, keys [n, d], n >= start + T.
    """
    tokens, heads, d = q.shape
    end = start + tokens
    if end <= k:
        index = torch.arange(end, dtype=torch.int32, device=q.device)
        return torch.where(index <= start + torch.arange(tokens, device=q.device).unsqueeze(1), index, -1)
    on_cpu = q.device.type == "cpu"
    rows = ROWS[on_cpu]
    width = max(GROUP, CELLS[on_cpu] // (rows * heads) // GROUP * GROUP)
    out = torch.empty(tokens, k, dtype=torch.int32, device=q.device)

    @torch.no_grad()
    def block(a: int) -> None:
        b = min(a + rows, tokens)
        queries, mix = q[a:b].reshape(-1, d), weights[a:b].unsqueeze(1)
        best = _Best(b - a, k, q)
        seen = torch.arange(start + a, start + b, device=q.device).unsqueeze(1)
        for first in range(0, start + b, width):
            last = min(first + width, start + b)
            dots = torch.mm(queries, keys[first:last].mT).relu_().view(b - a, heads, -1)
            scores = torch.bmm(mix, dots).squeeze(1)
            if last > start + a + 1:
                scores.masked_fill_(torch.arange(first, last, device=q.device) > seen, -torch.inf)
            best.see(scores, first)
        out[a:b] = best.indices()

    _each(block, range(0, tokens, rows), torch.get_num_threads() if on_cpu else 1)
    return out


def _each(f: Callable[[int], None], items: Iterable[int], threads: int) -> None:
    """f(item) for every item, each in one thread: operations on a tile are too short to be shared by several."""
    if threads == 1:
        for item in items:
            f(item)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(f, items))
    finally:
        torch.set_num_threads(
            threads
        )  # threads that start later take the number that was set last, here that of a worker
