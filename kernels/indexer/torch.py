"""The k best keys of each query by the indexer's scores, streamed over the keys: exact, in O(queries x k) memory.

Scores are made tile by tile, and looked at once a span of tiles: first at the maximum over the tiles of each column, as
nearly all columns hold no candidate. A query remembers its best keys and a bound below their k-th value: of a later
span only what exceeds it is kept, and as keys come in ascending order an equal score never displaces an earlier one.
Candidates collect in a buffer of 4 k places; when one is full, or when a sequence has doubled, all are cut back to
their k best.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

WIDTH = {True: 2048, False: 8192}
"""Keys of a tile, on a CPU or not; at least 2 k, so that the k-th of a span's maxima is close to its k-th score."""
CELLS = {True: 2**18, False: 2**27}
"""Values of a tile before the sum over heads: 1 MiB of float32 on a CPU, half of its second cache; else 512 MiB."""
TILES = 16
"""Tiles of a span: so many times fewer maxima than scores are compared, and so many scores are read of a column."""
PLACES = 4
"""Length of a query's buffer in multiples of k: a longer one is cut less often, but by a value that is older."""
GATHERED = 2**24
"""Values of gathered keys held at once by `index_scores` (64 MiB in float32)."""
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
        """A later key is among the best only if its score exceeds this."""
        self.due = 0
        """Keys after which the buffers are cut, full or not."""

    def _nothing(self, rows: int) -> Tensor:
        places = torch.arange(NONE, NONE + self.places, dtype=torch.int32, device=self.value.device)
        return places.repeat(rows, 1)

    def see(self, scores: Tensor, first: int) -> None:
        """Look at scores [tiles, R, W] of the keys from `first` on; -inf where a query may not look."""
        tiles, rows, width = scores.shape
        last = first + tiles * width
        maxima = scores.amax(0)
        fits = first > 0
        if 0 < first < TILES * width:  # what came before is short beside this span, which bounds itself better
            self._raise(maxima)
        if fits and not self._collect(scores, maxima, first):
            self._cut(self.value, self.index)
            self._raise(maxima)
            fits = self._collect(scores, maxima, first)
        if not fits:
            keys = torch.arange(first, last, dtype=torch.int32, device=scores.device).expand(rows, -1)
            together = torch.cat((self.value, scores.transpose(0, 1).reshape(rows, -1)), 1)
            self._cut(together, torch.cat((self.index, keys), 1))
        elif last >= self.due:
            self._cut(self.value, self.index)
        else:
            return
        self.due = 2 * last

    def _raise(self, maxima: Tensor) -> None:
        """Raise `least` to just below the k-th of these maxima [R, W], each of another key's score."""
        bound = torch.topk(maxima, self.k, sorted=False).values.amin(1, keepdim=True)
        self.least = torch.maximum(self.least, torch.nextafter(bound, bound.new_full((), -torch.inf)))

    def _collect(self, scores: Tensor, maxima: Tensor, first: int) -> bool:
        """Add the scores that exceed `least`; False if they do not fit."""
        tiles, rows, width = scores.shape
        hit = (maxima > self.least).flatten().nonzero().squeeze(1)
        row = hit // width
        values = scores.take(hit.unsqueeze(1) + torch.arange(tiles, device=hit.device) * (rows * width))
        which, tile = (values > self.least[row]).nonzero().unbind(1)
        row = row[which]
        count = torch.bincount(row, minlength=rows)
        after = self.fill + count
        if int(after.max()) > self.places:
            return False
        start = row * self.places + self.fill[row] - (count.cumsum(0) - count)[row]
        place = start + torch.arange(len(row), device=row.device)
        keys = first + tile * width + hit[which] % width
        self.value.view(-1)[place] = values[which, tile]
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
def select_keys(q: Tensor, weights: Tensor, keys: Tensor, start: int, k: int, bounds: list[int]) -> Tensor:
    """See `kernels.indexer.select_keys`."""
    if len(bounds) == 2:
        return _select(q, weights, keys, start, k)
    width = min(k, max(b - a for a, b in pairwise(bounds)))
    parts = [_select(q[a:b], weights[a:b], keys[a:b], 0, k) for a, b in pairwise(bounds)]
    shifted = [torch.where(x < 0, x, x + a) for x, a in zip(parts, bounds[:-1], strict=True)]
    return torch.cat([pad(x, (0, width - x.shape[1]), value=-1) for x in shifted])


def _select(q: Tensor, weights: Tensor, keys: Tensor, start: int, k: int) -> Tensor:
    """`select_keys` of one sequence."""
    tokens, heads, d = q.shape
    end = start + tokens
    if end <= k:
        index = torch.arange(end, dtype=torch.int32, device=q.device)
        return torch.where(index <= start + torch.arange(tokens, device=q.device).unsqueeze(1), index, -1)
    on_cpu = q.device.type == "cpu"
    width = max(WIDTH[on_cpu], 2 * k)
    rows = min(tokens, max(1, CELLS[on_cpu] // (width * heads)))
    tiles = [tile.mT for tile in keys[:end].split(width)]
    tiles[-1] = pad(tiles[-1], (0, -end % width))
    out = torch.empty(tokens, k, dtype=torch.int32, device=q.device)
    threads = torch.get_num_threads() if on_cpu else 1
    inference = torch.is_inference_mode_enabled()  # a thread of its own is in none, and may not write what is of one

    @torch.no_grad()
    @torch.inference_mode(inference)
    def share(thread: int) -> None:
        dots = q.new_empty(rows * heads, width)
        scores = q.new_empty(min(TILES, len(tiles)), rows, width)
        for a in range(thread * rows, tokens, threads * rows):
            b = min(a + rows, tokens)
            queries, mix = q[a:b].reshape(-1, d), weights[a:b].unsqueeze(1)
            own, by_head = dots[: len(queries)], dots[: len(queries)].view(b - a, heads, width)
            seen = torch.arange(start + a, start + b, device=q.device).unsqueeze(1)
            best, last = _Best(b - a, k, q), (start + b - 1) // width + 1
            for first, stop in _spans(last):
                some = scores.view(-1)[: (stop - first) * (b - a) * width].view(-1, b - a, 1, width)
                for tile, sums in zip(range(first, stop), some.unbind(0), strict=True):
                    torch.mm(queries, tiles[tile], out=own).relu_()
                    torch.bmm(mix, by_head, out=sums)
                    if (tile + 1) * width > start + a + 1:
                        at = torch.arange(tile * width, (tile + 1) * width, device=q.device)
                        sums.squeeze(1).masked_fill_(at > seen, -torch.inf)
                best.see(some.squeeze(2), first * width)
            out[a:b] = best.indices()

    _each(share, threads)
    return out


def _spans(tiles: int) -> list[tuple[int, int]]:
    """First tile and last (exclusive) of each span: one tile, whose best bound what follows, then as many as can be."""
    starts = [0, *range(1, tiles, TILES), tiles]
    return list(pairwise(starts))


def _each(f: Callable[[int], None], threads: int) -> None:
    """f(0), .., f(threads - 1), each in one thread: operations on a tile are too short to be shared by several."""
    if threads == 1:
        f(0)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(f, range(threads)))
    finally:
        torch.set_num_threads(
            threads
        )  # threads that start later take the number that was set last, here that of a worker


def index_scores(q: Tensor, weights: Tensor, keys: Tensor, index: Tensor, scale: float) -> Tensor:
    """See `kernels.indexer.index_scores`. The gathered keys are made piece by piece, and again in the backward pass."""

    def piece(q: Tensor, weights: Tensor, keys: Tensor, index: Tensor) -> Tensor:
        own = keys.index_select(0, index.clamp_min(0).flatten()).view(*index.shape, -1)
        dots = torch.relu(torch.bmm(q, own.mT)) * scale
        return torch.bmm(weights.unsqueeze(1), dots).squeeze(1)

    size = max(1, GATHERED // (index.shape[1] * q.shape[2]))
    parts = zip(q.split(size), weights.split(size), index.split(size), strict=True)
    return torch.cat([checkpoint(piece, a, b, keys, i, use_reentrant=False) for a, b, i in parts])
