"""Groups and advantages in; padded micro-batches for every rank out. numpy only.

The optimizer step does not depend on how rows are padded, ordered, cut into micro-batches or spread over ranks: every
shard carries ONE global token count, and every rank gets equally many micro-batches (dummies join the collectives).
Samples of one prompt share it: in a micro-batch it is one row that they continue, computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from rl.algorithms.advantage.reinforce_pp import whiten
from rl.algorithms.effort_scale import EffortScale
from rl.algorithms.env_scale import EnvScale
from rollout import picks as picked
from rollout.trajectory import Group, Node, StopReason, Trajectory

SLACK = 0.06
"""Imbalance of the ranks, as a share of their mean load, that is taken for keeping rows of one prompt together."""


@dataclass(frozen=True)
class Image:
    """An image of a row: its file, known by content hash, the index of its first token, and how many it has."""

    hash: str
    at: int
    tokens: int
    file: bytes = field(repr=False)


@dataclass(frozen=True, eq=False)
class Row:
    """One segment of one trajectory: what was sampled is what is trained.

    token_ids int32 [T]; mask bool [T] (sampled by the policy); behaviour float32 [T]; temperature float32 [T] (1 where
    not sampled); routes int16 [T, moe layers, top-k] (-1: not recorded, live routing) or None; picks [T, full layers,
    index_topk] as `Node.picks`, positions in the row, or None; advantage: one number, kept apart from the token grid,
    so that no token mask can take the reward away.
    """

    id: str
    token_ids: np.ndarray
    mask: np.ndarray
    behaviour: np.ndarray
    temperature: np.ndarray
    routes: np.ndarray | None
    advantage: float
    environment: int
    images: tuple[Image, ...] = ()
    """In order; none of their tokens is sampled."""
    picks: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @cached_property
    def prompt(self) -> int:
        """Tokens before the first sampled one; 0 if none is sampled."""
        return int(self.mask.argmax())

    @cached_property
    def family(self) -> bytes:
        """Equal for rows that may share their prompt: the same tokens and images, computed with the same routes and
        picks."""
        seen = " ".join(i.hash for i in self.images if i.at < self.prompt)
        out = bytes(f"{self.environment} {self.prompt} {seen} ", "ascii") + self.token_ids[: self.prompt].tobytes()
        if self.routes is not None:
            out += self.routes[: self.prompt].tobytes()
        if self.picks is not None and picked.recorded(self.picks[: self.prompt]).any():
            out += self.picks[: self.prompt].tobytes()
        return out

    def part(self, begin: int, end: int) -> Row:
        """The row's tokens from begin to end, under its name."""
        cut = {k: getattr(self, k)[begin:end] for k in ("token_ids", "mask", "behaviour", "temperature")}
        cut |= {k: None if x is None else x[begin:end] for k, x in (("routes", self.routes), ("picks", self.picks))}
        images = tuple(replace(i, at=i.at - begin) for i in self.images if begin <= i.at < end)
        return replace(self, images=images, **cut)


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Rows padded to the longest of them. Arrays [B, T]: input_ids int64, mask bool, behaviour, advantage and
    temperature float32; lengths int64 [B]; environment int64 [B]; routes int16 [B, T, moe layers, top-k] or None; picks
    [B, T, full layers, index_topk] or None, as `Row.picks`: positions behind a parent count its tokens.

    parents int64 [B], or None if no row has one: the row that comes before a row's own tokens, -1 for none. Such a
    parent is a shared prompt, trains nothing and has no name (""). `ids` names the rows.
    Column t of every stream belongs to TOKEN t, predicted from position t - 1, or from the parent's last one; column 0
    of a row without parent is never trained.
    """

    ids: tuple[str, ...]
    input_ids: np.ndarray
    lengths: np.ndarray
    mask: np.ndarray
    behaviour: np.ndarray
    advantage: np.ndarray
    temperature: np.ndarray
    environment: np.ndarray
    routes: np.ndarray | None
    parents: np.ndarray | None = None
    images: tuple[tuple[Image, ...], ...] | None = None
    """Those of each row; None if no row has one."""
    picks: np.ndarray | None = None

    @property
    def positions(self) -> int:
        """Token positions that are computed."""
        return int(self.lengths.sum())

    @property
    def dummy(self) -> bool:
        """Whether it trains nothing and is there for the collectives alone."""
        return not self.mask.any()

    @property
    def past(self) -> np.ndarray:
        """int64 [B]: tokens before each row's own, in its parent."""
        if self.parents is None:
            return np.zeros_like(self.lengths)
        return np.where(self.parents >= 0, self.lengths[self.parents], 0)

    @property
    def copies(self) -> np.ndarray:
        """int64 [B]: rows that each row stands for; a shared prompt stands for all that continue it."""
        if self.parents is None:
            return np.ones_like(self.lengths)
        return np.maximum(1, np.bincount(self.parents[self.parents >= 0], minlength=len(self.lengths)))

    @property
    def predictors(self) -> np.ndarray:
        """int64 [B, T]: flat position b T + t that predicts each token; -1 at the first one of a row without parent."""
        out = np.arange(-1, self.input_ids.size - 1, dtype=np.int64).reshape(self.input_ids.shape)
        out[:, 0] = -1
        if self.parents is not None:
            child, parent = self.parents >= 0, self.parents[self.parents >= 0]
            out[child, 0] = parent * self.input_ids.shape[1] + self.lengths[parent] - 1
        return out

    @staticmethod
    def of(rows: Sequence[Row], width: int | None = None, share: bool = False) -> MicroBatch:
        """Pad rows on the right to the longest of them (or to `width` tokens); `share` their prompts or not."""
        parents = None
        if share:
            rows, parents = _fold(rows)
        size = (len(rows), max(width or 0, *(len(r) for r in rows)))
        out = MicroBatch(
            ids=tuple(r.id for r in rows),
            input_ids=np.zeros(size, np.int64),
            lengths=np.array([len(r) for r in rows], np.int64),
            mask=np.zeros(size, bool),
            behaviour=np.zeros(size, np.float32),
            advantage=np.zeros(size, np.float32),
            temperature=np.ones(size, np.float32),
            environment=np.array([r.environment for r in rows], np.int64),
            routes=_stack_routes(rows, size[1]),
            parents=parents,
            images=tuple(r.images for r in rows) if any(r.images for r in rows) else None,
            picks=_stack_picks(rows, size[1]),
        )
        for i, row in enumerate(rows):
            n = len(row)
            out.input_ids[i, :n] = row.token_ids
            out.mask[i, :n] = row.mask
            out.behaviour[i, :n] = row.behaviour
            out.advantage[i, :n] = row.advantage
            out.temperature[i, :n] = row.temperature
        return out

    def head(self, positions: int) -> MicroBatch:
        """Its first rows, which compute at most so many positions (but one row that trains), at the same width."""
        trains = self.mask.sum(1) > 0
        n = max(int((self.lengths.cumsum() <= positions).sum()), int(trains.argmax()) + 1)
        n = int(trains[:n].nonzero()[0].max(initial=0)) + 1  # no prompt without a row that continues it
        first: dict[str, Any] = {name: part if part is None else part[:n] for name, part in vars(self).items()}
        return replace(self, **first)

    @staticmethod
    def idle() -> MicroBatch:
        """Two tokens that train nothing: a rank without work goes through the same collectives as the others."""
        zeros = np.zeros(2, np.float32)
        return MicroBatch.of(
            [Row("idle", np.zeros(2, np.int32), np.zeros(2, bool), zeros, np.ones(2, np.float32), None, 0.0, 0)]
        )


def _stack_routes(rows: Sequence[Row], width: int) -> np.ndarray | None:
    recorded = [r.routes for r in rows if r.routes is not None]
    if not recorded:
        return None
    out = np.full((len(rows), width, *recorded[0].shape[1:]), -1, np.int16)
    for i, row in enumerate(rows):
        if row.routes is not None:
            out[i, : len(row)] = row.routes
    return out


def _stack_picks(rows: Sequence[Row], width: int) -> np.ndarray | None:
    known = [r.picks for r in rows if r.picks is not None]
    if not known:
        return None
    out = picked.nothing((len(rows), width, *known[0].shape[1:]), known[0].dtype)
    for i, row in enumerate(rows):
        if row.picks is not None:
            out[i, : len(row)] = row.picks
    return out


def _families(rows: Iterable[Row], share: bool) -> list[list[Row]]:
    """Rows that share a prompt together, each in the order given; alone if nothing is shared."""
    out: dict[object, list[Row]] = {}
    for row in rows:
        out.setdefault(row.family if share and row.prompt else id(row), []).append(row)
    return list(out.values())


def _fold(rows: Sequence[Row]) -> tuple[list[Row], np.ndarray | None]:
    """The rows to compute, and their parents (None if there are none): a prompt of several rows once, before them."""
    out: list[Row] = []
    parents: list[int] = []
    for family in _families(rows, True):
        if len(family) == 1:
            out += family
            parents.append(-1)
        else:
            first, prompt = family[0], len(out)
            out += [replace(first.part(0, first.prompt), id="", advantage=0.0)]
            out += [row.part(row.prompt, len(row)) for row in family]
            parents += [-1] + [prompt] * len(family)
    return out, np.array(parents, np.int64) if max(parents) >= 0 else None


@dataclass(frozen=True, eq=False)
class Shard:
    """One rank's part of a batch. `tokens` and `environments` are global: the same in every shard of the batch."""

    micro_batches: list[MicroBatch]
    tokens: int
    """Trained tokens of the WHOLE batch, before any correction: the one denominator of the loss."""
    environments: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class TrainBatch:
    """The rows of one optimizer step, and the count of everything that was left out, by reason."""

    rows: list[Row]
    environments: tuple[str, ...]
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Trained tokens: the one denominator of the loss."""
        return int(sum(int(r.mask.sum()) for r in self.rows))

    def shards(self, ranks: int, micro_tokens: int, share: bool = True) -> list[Shard]:
        """Spread rows over ranks by the positions to compute, and cut them into micro-batches.

        A micro-batch computes at most `micro_tokens` positions (a longer row goes alone). `share`: the policy takes
        parents and computes no pads; rows that share a prompt stay together where balance and micro_tokens allow it,
        and it is computed once for those in the same micro-batch. Else every row is whole, and its pads count too.
        All shards have equally many micro-batches, at least one.
        """
        if ranks < 1 or micro_tokens < 1:
            raise ValueError(f"ranks {ranks} and micro_tokens {micro_tokens} must be at least 1")
        cut = [_cut(part, micro_tokens, share) for part in _spread(_families(self.rows, share), ranks)]
        count = max(1, *(len(c) for c in cut))
        return [
            Shard(
                [MicroBatch.of(m, share=share) for m in c] + [MicroBatch.idle()] * (count - len(c)),
                self.tokens,
                self.environments,
            )
            for c in cut
        ]


def _cost(family: Sequence[Row]) -> int:
    """Positions to compute for rows that share a prompt."""
    return sum(len(r) for r in family) - family[0].prompt * (len(family) - 1)


def _pieces(family: list[Row], limit: int) -> list[list[Row]]:
    """A family in pieces that compute at most `limit` positions each (or a row alone), the prompt in each of them."""
    out: list[list[Row]] = []
    for row in sorted(family, key=lambda r: (-len(r), r.id)):
        if out and _cost(out[-1]) + len(row) - row.prompt <= limit:
            out[-1].append(row)
        else:
            out.append([row])
    return out


def _spread(families: list[list[Row]], ranks: int) -> list[list[list[Row]]]:
    """Families for each rank: the largest first, to the lightest rank; whole, or in pieces if that unbalances them.

    No two ranks differ by more than the longest row or SLACK of a rank's mean, whichever is larger.
    """
    total = sum(map(_cost, families))
    limit = max(int(SLACK * total / ranks), *(len(r) for f in families for r in f), 0)
    for most in (total, limit):
        pieces = [(i, p) for i, f in enumerate(families) for p in _pieces(f, most)]
        load = [0] * ranks
        out: list[dict[int, list[Row]]] = [{} for _ in range(ranks)]
        for i, piece in sorted(pieces, key=lambda x: (-_cost(x[1]), x[1][0].id)):
            lightest = load.index(min(load))
            known = out[lightest].setdefault(i, [])
            load[lightest] += _cost(piece) - (piece[0].prompt if known else 0)
            known += piece
        if max(load) - min(load) <= limit:
            break
    return [list(part.values()) for part in out]


def _cut(families: list[list[Row]], micro_tokens: int, share: bool) -> list[list[Row]]:
    """Families into micro-batches of at most `micro_tokens` positions; those with the longest rows first."""
    out: list[list[Row]] = []
    used = 0
    pieces = [p for f in families for p in _pieces(f, micro_tokens)]
    for piece in sorted(pieces, key=lambda p: (-len(p[0]), p[0].id)):
        used += _cost(piece)
        if out and (used if share else (len(out[-1]) + 1) * len(out[-1][0])) <= micro_tokens:
            out[-1] += piece
        else:
            out.append(list(piece))
            used = _cost(piece)
    return out


def trainable(trajectory: Trajectory) -> bool:
    """Whether a trajectory votes in its group and enters the loss: graded, not aborted, and with sampled tokens."""
    graded = trajectory.grade is not None and trajectory.grade.valid
    return graded and trajectory.stop not in (StopReason.ABORTED, StopReason.ERROR) and trajectory.output_tokens > 0


def build_batch(
    groups: Sequence[Group],
    advantages: Sequence[np.ndarray],
    scale: EnvScale | None = None,
    outcomes: Sequence[np.ndarray] | None = None,
    whitened: bool = False,
    effort_scale: EffortScale | None = None,
) -> TrainBatch:
    """Flatten groups into rows; what trains nothing is left out and counted.

    advantages: one float [G] per group, 0 where the sample was invalid. `scale` divides them per environment by the
    size of `outcomes`, the advantages of the raw outcomes, which it takes in first; `effort_scale` gives back per
    effort what prices take from their size; `whitened` (reinforce_pp) normalises over the batch instead. A group whose
    advantages are all 0 is left out with its tokens, so that it does not dilute the denominator. Raises ValueError for
    advantages or outcomes that do not fit their group or are not finite, a scale without outcomes, and for a sampled
    first token or a temperature that is not positive.
    """
    if whitened and (scale is not None or effort_scale is not None):
        raise ValueError("advantages are normalised once: over the batch (whitened), or per environment and effort")
    if (scale is not None or effort_scale is not None) and outcomes is None:
        raise ValueError("a scale needs the advantages of the raw outcomes: shaped ones would cancel the price")
    valid = [np.array([trainable(t) for t in g.trajectories], dtype=bool) for g in groups]
    values = _checked(groups, advantages, valid)
    names = [g.order.task.environment for g in groups]
    silent = [not a.any() for a in values]
    if whitened:
        values = whiten(values, valid)
    raw = [] if outcomes is None else _checked(groups, outcomes, valid)
    if effort_scale is not None:
        efforts = [str(g.order.effort) for g in groups]
        effort_scale.update(zip(efforts, raw, values, strict=True))
        values = [a * effort_scale.factor(e) for e, a in zip(efforts, values, strict=True)]
    if scale is not None:
        scale.update(zip(names, raw, strict=True))
        values = [a / scale.scale(n) for n, a in zip(names, values, strict=True)]
    environments = tuple(sorted(set(names)))
    counts = {"groups": len(groups), "groups_without_signal": sum(silent), "samples": 0}
    counts |= {"samples_invalid": 0, "samples_without_signal": 0, "segments_without_tokens": 0}
    rows: list[Row] = []
    for group, a, v, quiet in zip(groups, values, valid, silent, strict=True):
        environment = environments.index(group.order.task.environment)
        for trajectory, advantage, ok in zip(group.trajectories, a, v, strict=True):
            counts["samples"] += 1
            if not ok or quiet:
                counts["samples_invalid" if not ok else "samples_without_signal"] += 1
                continue
            for row in _rows(trajectory, float(advantage), environment):
                if row.mask.any():
                    rows.append(row)
                else:
                    counts["segments_without_tokens"] += 1
    counts["rows"] = len(rows)
    counts["tokens"] = int(sum(int(r.mask.sum()) for r in rows))
    return TrainBatch(rows, environments, counts)


def _checked(groups: Sequence[Group], arrays: Sequence[np.ndarray], valid: list[np.ndarray]) -> list[np.ndarray]:
    """One float64 [G] per group, 0 where invalid; raises ValueError where they do not fit."""
    if len(groups) != len(arrays):
        raise ValueError(f"{len(groups)} groups but {len(arrays)} arrays of advantages")
    for group, a in zip(groups, arrays, strict=True):
        if np.shape(a) != (len(group.trajectories),) or not np.isfinite(a).all():
            raise ValueError(f"group {group.order.id} has {len(group.trajectories)} samples, advantages {a}")
    return [np.where(v, np.asarray(a, np.float64), 0.0) for a, v in zip(arrays, valid, strict=True)]


def _rows(trajectory: Trajectory, advantage: float, environment: int) -> list[Row]:
    """One row per segment."""
    ends = [*trajectory.segments[1:], len(trajectory.nodes)]
    out = []
    for begin, end in zip(trajectory.segments, ends, strict=True):
        nodes = trajectory.nodes[begin:end]
        if not nodes:
            continue
        name = f"{trajectory.id}#{begin}"
        mask = np.concatenate([n.loss_mask for n in nodes]).astype(bool)
        temperature = np.concatenate(
            [np.full(len(n), n.sampling.temperature if n.sampling else 1.0, np.float32) for n in nodes]
        )
        if mask.size and mask[0]:
            raise ValueError(f"{name}: its first token is sampled, but nothing predicts it")
        if (temperature[mask] <= 0).any():
            raise ValueError(f"{name}: sampled greedily; log-probs at temperature 0 cannot be trained on")
        out.append(
            Row(
                id=name,
                token_ids=np.concatenate([n.token_ids for n in nodes]).astype(np.int32),
                mask=mask,
                behaviour=np.concatenate([n.logprobs for n in nodes]).astype(np.float32),
                temperature=np.where(mask, temperature, 1.0).astype(np.float32),
                routes=_routes(trajectory.id, nodes),
                advantage=advantage,
                environment=environment,
                images=_images(nodes, trajectory.image_files(begin, end)),
                picks=_picks(trajectory.id, nodes),
            )
        )
    return out


def _images(nodes: list[Node], files: tuple[bytes, ...]) -> tuple[Image, ...]:
    """The nodes' images, counted from the first token of the first node; files in the order of the images."""
    starts = accumulate((len(n) for n in nodes), initial=0)
    places = [(p, start) for n, start in zip(nodes, starts, strict=False) for p in n.images]
    return tuple(Image(p.image, start + p.at, p.tokens, f) for (p, start), f in zip(places, files, strict=True))


def _routes(name: str, nodes: list) -> np.ndarray | None:
    """Recorded routes of all nodes, int16 [T, L, K]; nodes without a record route live (-1)."""
    shapes = {n.routes.shape[1:] for n in nodes if n.routes is not None}
    if not shapes:
        return None
    if len(shapes) > 1:
        raise ValueError(f"{name}: routes of different shapes {sorted(shapes)} in one sequence")
    tail = shapes.pop()
    parts = [
        np.full((len(n), *tail), -1, np.int16) if n.routes is None else n.routes.astype(np.uint16).view(np.int16)
        for n in nodes
    ]
    return np.concatenate(parts)


def _picks(name: str, nodes: list) -> np.ndarray | None:
    """Picks of all nodes [T, L, k]; of nodes without a record nothing."""
    known = [n.picks for n in nodes if n.picks is not None]
    if not known:
        return None
    kinds = {(p.shape[1:], p.dtype) for p in known}
    if len(kinds) > 1:
        raise ValueError(f"{name}: picks of different shapes or types {sorted(map(str, kinds))} in one sequence")
    tail, kind = kinds.pop()
    return np.concatenate([picked.nothing((len(n), *tail), kind) if n.picks is None else n.picks for n in nodes])
