"""Batches of rows as packed real tokens: everything but the mixers runs on [N, ...], pads never exist there.

A row may continue another one, its parent: samples of one prompt name the prompt's row and hold only what follows it,
so that the prompt is computed once, forwards and backwards. What the mixers need is index tensors, built here: tiles of
16 tokens for KDA, hanging together as a forest, and blocks of rows of similar lengths for attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from kernels.kda import TILE, Tiles
from kernels.rows import gather_rows, scatter_rows

FILL = 0.6
"""The shortest row of a block has at least this share of the longest one's queries and keys: padding is work too."""


@dataclass(frozen=True)
class Blocks:
    """Rows of similar lengths whose attention is computed together, padded to b rows, T queries and S keys: a row's
    keys are those of its parent, then its own.
    """

    queries: Tensor
    """Long [sum b T]: packed index of each query, one block after the other; a row's last token at its pads."""
    keys: Tensor
    """Long [sum b S]: packed index of each key; any token behind a row's end, where only pads look."""
    visible: list[Tensor]
    """Bool [b, T, S] of each block: causal."""
    place: Tensor
    """Long [N]: each token's query cell."""

    @property
    def longest(self) -> int:
        """The largest S."""
        return max(v.shape[2] for v in self.visible)

    def split(self, x: Tensor) -> list[Tensor]:
        """Packed [N, ...] as queries [b, T, ...] of each block."""
        return self._split(x, self.queries, [v.shape[:2] for v in self.visible])

    def split_keys(self, x: Tensor) -> list[Tensor]:
        """Packed [N, ...] as keys [b, S, ...] of each block."""
        return self._split(x, self.keys, [v.shape[::2] for v in self.visible])

    def _split(self, x: Tensor, index: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
        parts = x.index_select(0, index).split([b * t for b, t in shapes])
        return [part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True)]

    def join(self, parts: list[Tensor]) -> Tensor:
        """[b, T, ...] of each block as packed [N, ...]."""
        return gather_rows(torch.cat([part.flatten(0, 1) for part in parts]), self.place)


@dataclass(frozen=True)
class Generation:
    """Rows whose recurrences are computed together: those that start from nothing, or those that continue them."""

    rows: Tensor
    """Long [n]: which of the batch."""
    parents: Tensor
    """Long [n]: each row's parent among the rows of the generation before; empty in the first one."""
    tokens: Tensor
    """Long: packed indices of their tokens, row after row."""
    bounds: list[int]
    """n + 1 positions in `tokens` between the rows."""


class Packing:
    """Where the N real tokens of B rows lie: row after row, in [0, N).

    row and pos Long [N]: each token's row and its position in that row; last Long [B]: each row's last token.
    """

    def __init__(self, lengths: Tensor, width: int, parents: Tensor | None = None) -> None:
        """lengths Long [B] of rows of a [B, width] batch; parents Long [B]: the row that each continues, or -1.

        Raises ValueError unless 1 <= lengths <= width and every parent is a row that continues none itself.
        """
        host = lengths.tolist()
        if not host or min(host) < 1 or max(host) > width:
            raise ValueError(
                f"lengths must lie in 1..{width}, got {min(host, default=None)}..{max(host, default=None)}"
            )
        self.device, self.batch, self.tokens = lengths.device, len(host), sum(host)
        self.time = max(host)
        self._lengths, rows = lengths.cpu(), torch.arange(len(host))
        self._parents = None if parents is None else parents.cpu()
        if self._parents is not None:
            named = self._parents[self._parents >= 0]
            if len(self._parents) != len(host) or bool((named >= len(host)).any() or (self._parents[named] >= 0).any()):
                raise ValueError("every row's parent must be a row of the batch that continues none itself, or -1")
        ends = self._lengths.cumsum(0)
        self._first = ends - self._lengths
        self._row = torch.repeat_interleave(rows, self._lengths, output_size=self.tokens)
        self._pos = torch.arange(self.tokens) - self._first[self._row]
        self.row, self.pos, self.last = (x.to(self.device) for x in (self._row, self._pos, ends - 1))

    @cached_property
    def copies(self) -> Tensor | None:
        """Long [N]: rows that a token stands for (a parent's: its children, at least one); None without parents."""
        if self._parents is None:
            return None
        children = torch.bincount(self._parents[self._parents >= 0], minlength=self.batch)
        return children.clamp_min_(1)[self._row].to(self.device)

    @cached_property
    def position(self) -> Tensor:
        """Long [N]: each token's place in its sequence, a parent's tokens counted."""
        if self._parents is None:
            return self.pos
        past = torch.where(self._parents >= 0, self._lengths[self._parents], 0)
        return (past[self._row] + self._pos).to(self.device)

    # --- padded rows --------------------------------------------------------------------------------------------------

    @cached_property
    def _padded(self) -> Tensor | None:
        full = self.tokens == self.batch * self.time
        return None if full else self.row * self.time + self.pos

    def unpack(self, x: Tensor) -> Tensor:
        """Packed [N, ...] as [B, time, ...]: zeros at pads."""
        if self._padded is not None:
            x = scatter_rows(x, self._padded, self.batch * self.time)
        return x.view(self.batch, self.time, *x.shape[1:])

    def pack(self, x: Tensor) -> Tensor:
        """Padded [B, time, ...] as [N, ...], pads dropped."""
        x = x.flatten(0, 1)
        return x if self._padded is None else gather_rows(x, self._padded)

    # --- tiles --------------------------------------------------------------------------------------------------------

    @cached_property
    def _counts(self) -> Tensor:
        return (self._lengths + TILE - 1) // TILE

    @cached_property
    def _forest(self) -> tuple[Tiles, Tensor, Tensor, Tensor]:
        """(tiles, row and index in its row of each tile, place of each tile counted row after row)."""
        counts = self._counts
        row = torch.repeat_interleave(torch.arange(self.batch), counts)
        last = counts.cumsum(0) - 1
        index = torch.arange(len(row)) - (last + 1 - counts)[row]
        parent = torch.full_like(counts, -1) if self._parents is None else self._parents
        level = index + torch.where(parent >= 0, counts[parent], 0)[row]
        order = torch.argsort(level, stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        before = torch.where(parent >= 0, self.batch + place[last[parent]], torch.arange(self.batch))[row]
        before = torch.where(index > 0, self.batch + place[torch.arange(len(row)) - 1], before)
        tiles = Tiles(
            self.batch,
            torch.bincount(level).tolist(),
            before[order].to(self.device),
            (self.batch + place[last]).to(self.device),
        )
        return tiles, row[order], index[order], place

    @property
    def tiles(self) -> Tiles:
        """The tiles of all rows, for the KDA kernel; a child's first one follows its parent's last one."""
        return self._forest[0]

    @cached_property
    def _cell(self) -> Tensor:
        start = self._counts.cumsum(0) - self._counts
        place = self._forest[3][start[self._row] + self._pos // TILE]
        return (place * TILE + self._pos % TILE).to(self.device)

    def to_tiles(self, x: Tensor) -> Tensor:
        """Packed [N, ...] as [tiles, 16, ...]: zeros at pads."""
        tiles = len(self._forest[1])
        return scatter_rows(x, self._cell, tiles * TILE).view(tiles, TILE, *x.shape[1:])

    def from_tiles(self, x: Tensor) -> Tensor:
        """[tiles, 16, ...] as packed [N, ...]."""
        return gather_rows(x.flatten(0, 1), self._cell)

    def _history(self, row: Tensor, pos: Tensor, before: int) -> Tensor:
        """Index of position `pos` of `row` in [N tokens | one zero | `before` carried ones of each row].

        Positions below 0 are the parent's last ones, or carried ones; the zero stands behind a row's end.
        """
        inside = self._first[row] + pos
        start = self.tokens + 1 + row * before + before + pos
        if self._parents is not None:
            parent = self._parents[row]
            back = self._lengths[parent] + pos
            of_parent = torch.where(back >= 0, self._first[parent] + back, self.tokens)
            start = torch.where(parent >= 0, of_parent, start)
        index = torch.where(pos < 0, start, inside)
        return torch.where(pos < self._lengths[row], index, self.tokens).to(self.device)

    @cached_property
    def generations(self) -> list[Generation]:
        """All rows without parents; then, if there are any, those with."""
        parents = torch.full_like(self._lengths, -1) if self._parents is None else self._parents
        place = torch.empty_like(parents)
        out: list[Generation] = []
        for rows in ((parents < 0).nonzero().squeeze(1), (parents >= 0).nonzero().squeeze(1)):
            if len(rows):
                place[rows] = torch.arange(len(rows))
                firsts, counts = self._first[rows].tolist(), self._lengths[rows].tolist()
                spans = [torch.arange(first, first + n) for first, n in zip(firsts, counts, strict=True)]
                before = place[parents[rows]] if out else rows[:0]
                bounds = [0, *accumulate(counts)]
                rows, before, tokens = (x.to(self.device) for x in (rows, before, torch.cat(spans)))
                out.append(Generation(rows, before, tokens, bounds))
        return out

    def windows(self, before: int) -> tuple[Tensor, Tensor]:
        """Indices into [N tokens | one zero | `before` carried tokens of each of the B rows].

        Long [tiles, before + 16]: every tile's tokens behind the `before` tokens that precede them; and Long [B,
        before]: the last `before` tokens of every row.
        """
        if before not in self._windows:
            _, row, index, _ = self._forest
            steps, back = torch.arange(-before, TILE), torch.arange(-before, 0)
            tiles = self._history(row.unsqueeze(1), index.unsqueeze(1) * TILE + steps, before)
            tails = self._history(torch.arange(self.batch).unsqueeze(1), self._lengths.unsqueeze(1) + back, before)
            self._windows[before] = (tiles, tails)
        return self._windows[before]

    @cached_property
    def _windows(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {}

    # --- blocks -------------------------------------------------------------------------------------------------------

    @cached_property
    def blocks(self) -> Blocks:
        """The rows' attention in blocks."""
        past = torch.zeros_like(self._lengths)
        if self._parents is not None:
            past = torch.where(self._parents >= 0, self._lengths[self._parents], 0)
        place, at = torch.empty(self.tokens, dtype=torch.int64), 0
        all_queries, all_keys, all_visible = [], [], []
        for rows in _alike(self._lengths.tolist(), past.tolist()):
            which = torch.tensor(rows)
            n, p = self._lengths[which].unsqueeze(1), past[which].unsqueeze(1)
            first = self._first[which].unsqueeze(1)
            t, s = torch.arange(int(n.max())), torch.arange(int((n + p).max()))
            keys = (first + s - p).clamp_(max=self.tokens - 1)
            if self._parents is not None:
                keys = torch.where(s < p, self._first[self._parents[which]].unsqueeze(1) + s, keys)
            queries, real = (first + torch.minimum(t, n - 1)).flatten(), (t < n).flatten()
            place[queries[real]] = torch.arange(at, at + len(real))[real]
            at += len(real)
            all_queries.append(queries)
            all_keys.append(keys.flatten())
            all_visible.append((s <= p.unsqueeze(-1) + t.unsqueeze(-1)).to(self.device))
        queries, keys, place = (x.to(self.device) for x in (torch.cat(all_queries), torch.cat(all_keys), place))
        return Blocks(queries, keys, all_visible, place)


def _alike(lengths: Sequence[int], past: Sequence[int]) -> list[list[int]]:
    """Rows in lists, the longest first, such that in a padded list FILL of every row is no pad."""
    out: list[list[int]] = []
    longest = most = 0
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], -past[i])):
        keys = past[i] + lengths[i]
        if out and lengths[i] >= FILL * longest and FILL * most <= keys <= most / FILL:
            out[-1].append(i)
            most = max(most, keys)
        else:
            out.append([i])
            longest, most = lengths[i], keys
    return out
