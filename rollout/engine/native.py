"""The engine of the K3 family: continuous batching over one decode state, stepped by its owner. Knows no Ray.

Active sequences are the first rows of the state, always: a finished one is replaced by one from the end. A prompt is
prefilled once for all its samples. States at the ends of prompts and turns are kept (`prefix.py`): a sibling then adds
nothing, and the next turn only what is new.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.step import KEYS
from model.vision import Placed
from rollout.engine import prefill
from rollout.engine.base import (
    EngineNotReady,
    FinishReason,
    GenerateRequest,
    Generation,
    Progress,
    WeightManifest,
)
from rollout.engine.drafts import Drafts, Reading, accepted
from rollout.engine.orders import Continuation, Order
from rollout.engine.prefix import Checkpoint, End, PrefixCache
from rollout.engine.sampling import sample, uniforms
from rollout.engine.tape import Tape
from rollout.engine.weights import verify
from rollout.images import identity
from rollout.picks import no_pick, pick_type, recorded, stored

_PATIENCE = 8
"""Decode steps that a waiting sequence may be made to wait so that several prompts are prefilled together."""

_ENOUGH = 8
"""A prefill is worth an interruption at once if it adds one in so many to the active rows."""

_AT_ONCE = 64
"""Prompts read at once token by token: as many as cost little more than one, in a state of their own."""

_LANES = 16
"""Decoded rows are filled up to a multiple of this. A vectorised function computes the last few elements of a tensor by
other instructions than the rest (another exp, say), and a product of one or two rows is summed in another order: with
whole lanes a row's result is the same bits whatever the number of rows."""


def _whole(n: int, of: int) -> int:
    """n, or what fills it up to a multiple."""
    return -(-n // of) * of


class NativeEngine:
    """Generates with a `model.Policy` on the policy's device; call `step` while `busy`.

    max_batch: rows decoded at once; max_context: tokens of prompt and output together. Nothing is generated before
    `load` has verified a whole set of weights. A sample depends on weights, prompt, sampling and seed, not on what else
    is in the batch: up to the order in which the model sums, or, if `deterministic`, bit for bit.
    prefix_bytes: memory of the kept states at most; 0: none are kept. deterministic: nor on where a prompt
    is cut, nor on what was kept of it: prompts are read token by token. draft_tokens: most tokens of a draft
    (`drafts.py`); 0: there are none. Raises ValueError for a deterministic engine with drafts (they are read as prompts
    are by default), on another device than a CPU, or of a policy that sees.
    record_picks: also record the keys that sparse attention selected, of tokens at positions from index_topk on (those
    before attend to all that they have). Raises ValueError for a policy without an indexer.
    """

    def __init__(
        self,
        policy: Any,
        max_batch: int,
        max_context: int,
        record_routes: bool = True,
        record_picks: bool = False,
        prefix_bytes: int = 256 << 20,
        deterministic: bool = False,
        draft_tokens: int = 0,
    ) -> None:
        self.policy, self.max_batch, self.max_context = policy.eval(), max_batch, max_context
        self.record_routes = record_routes
        self._topk, self._pick_type = max_context, None
        """Positions from `_topk` on have their picks recorded, in `_pick_type`."""
        if record_picks:
            if policy.config.index_topk is None:
                raise ValueError("the policy has no indexer (index_topk is null): set engine.record_picks=false")
            self._topk, self._pick_type = policy.config.index_topk, pick_type(max_context)
        self.version: int | None = None
        self._why = "no weights were loaded yet"
        self._checksum = ""
        self._shapes = {name: tuple(w.shape) for name, w in policy.named_weights()}
        capacity = _whole(max_batch, _LANES)
        self._stepwise: prefill.Stepwise | None = None
        length = max_context
        if deterministic:
            if draft_tokens:
                raise ValueError("engine.deterministic reads no drafts: set engine.draft_tokens=0")
            if policy.sees or policy.device.type != "cpu":
                raise ValueError("engine.deterministic is for policies that read text, on a CPU: set it to false")
            policy.rows_apart, length = True, _whole(max_context, KEYS)
            self._stepwise = prefill.Stepwise(policy, min(capacity, _AT_ONCE), length, _LANES)
        self._state = policy.new_state(capacity, length)
        self.prefixes = PrefixCache(prefix_bytes)
        self._draft_tokens = draft_tokens
        self._orders: dict[str, Order] = {}
        self._waiting: list[Continuation] = []
        """Those of the oldest episodes first, then in order of arrival."""
        self._rows: list[Continuation] = []
        self._tape = Tape(max_batch)
        self._finished: list[tuple[str, list[Generation]]] = []
        self._last = np.zeros(capacity, np.int64)
        """Per row: the token that was sampled and not fed yet."""
        self._position = np.zeros(max_batch, np.int64)
        """Per row: tokens of its sequence so far, which is the index of the next one."""
        self._left = np.zeros(max_batch, np.int64)
        """Per row: tokens that may still be sampled."""
        self._seed = np.zeros(max_batch, np.uint64)
        self._temperature = np.zeros(max_batch, np.float32)
        self._stops = np.full((max_batch, 1), -1, np.int64)
        """Per row: its stop ids, filled up with -1."""
        self._there: dict[int, Checkpoint] = {}
        """Of rows that are not active: the checkpoint whose latents they hold, all but the first token's, where rows
        that fill up the lanes write."""
        self._steps = 0
        self.counts: Counter[str] = Counter()

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do or to hand out."""
        return bool(self._rows or self._waiting or self._finished)

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request. Raises EngineNotReady, or ValueError for what can never be served."""
        if self.version is None:
            raise EngineNotReady(self._why)
        n = len(request.prompt_ids)
        if not 0 < n < self.max_context:
            raise ValueError(f"a prompt of {n} tokens does not fit a context of {self.max_context}")
        if not request.sampling or request.id in self._orders:
            raise ValueError(f"request {request.id} asks for no continuation, or is already in flight")
        for s in request.sampling:
            if s.max_tokens < 1 or not 0.0 <= s.temperature < float("inf"):
                raise ValueError(f"cannot sample {s.max_tokens} tokens at temperature {s.temperature}")
        order = self._orders[request.id] = Order.of(self.policy, request)
        if self._draft_tokens:
            order.drafts = Drafts(order.prompt.tolist())
        for i in range(len(request.sampling)):
            insort(self._waiting, Continuation(order, i, self._steps), key=lambda s: s.order.request.began)

    @torch.inference_mode()
    def step(self) -> list[tuple[str, list[Generation]]]:
        """Admit what waits and decode one token of every active row; returns the requests that are complete now."""
        self._steps += 1
        if self._worth_admitting():
            self._admit()
        if self._rows:
            self._decode()
        finished, self._finished = self._finished, []
        return finished

    def load(self, manifest: WeightManifest, tensors: Mapping[str, np.ndarray]) -> int:
        """Verify a whole set of weights, then serve it; what is in flight continues on it. Returns the version.

        Raises ValueError naming what differs; the engine then refuses to generate and has forgotten what was in flight.
        """
        try:
            if manifest.version == self.version:
                if manifest.checksum != self._checksum:
                    raise ValueError(f"version {manifest.version} is already served, with other weights")
                return manifest.version  # an engine that was too busy to say so: what it holds is right
            verify(manifest, tensors, self._shapes)
            self.policy.load_named_weights(tensors)
            self.policy.refresh_quantized()
            self.version, self._checksum = manifest.version, manifest.checksum
            self.prefixes.clear()
            self._there = {}
            self._recompute()
        except Exception as e:
            self.version, self._why = None, f"version {manifest.version} was refused: {e}"
            self.forget()
            raise
        self.counts["updates"] += 1
        return manifest.version

    def abort(self, request_id: str) -> bool:
        """End a request: at the next step its unfinished continuations come back as they are, with reason ABORT."""
        order = self._orders.get(request_id)
        if order is None:
            return False
        for s in [s for s in self._waiting if s.order is order]:
            self._waiting.remove(s)
            none = np.zeros(0, np.int32)
            self._deliver(s, Generation(none, np.zeros(0, np.float32), none, FinishReason.ABORT))
        self._end({row: FinishReason.ABORT for row, s in enumerate(self._rows) if s.order is order})
        return True

    def progress(self, request_id: str) -> list[Progress]:
        """See `Engine.progress`."""
        order = self._orders.get(request_id)
        if order is None:
            return []
        nothing_yet = (np.zeros(0, np.int32), np.zeros(0, np.float32))
        out = [nothing_yet for _ in order.request.sampling]
        for index, g in order.done.items():
            out[index] = (g.token_ids, g.logprobs)
        for row, s in enumerate(self._rows):
            if s.order is order:
                out[s.index] = self._tape.sampled(row)
        return out

    def forget(self) -> None:
        """Drop everything in flight, without an answer, and every kept state."""
        self._orders, self._rows, self._finished = {}, [], []
        self._waiting.clear()
        self._there = {}
        self.prefixes.clear()

    def stats(self) -> dict[str, float]:
        """Counters since the last call and the present load: see `Engine.stats`."""
        names = ("generated", "prefilled", "cached", "recomputed", "carried", "carried_lost", "drafted", "accepted")
        out = {f"tokens_{name}": float(self.counts[name]) for name in names}
        out |= {"decode_steps": float(self.counts["steps"]), "updates": float(self.counts["updates"])}
        self.counts.clear()
        cache = self.prefixes
        out |= {"tokens_distinct": float(cache.counts["distinct"]), "prefix_bytes": float(cache.bytes)}
        out |= {f"prefix_{name}": float(cache.counts[name]) for name in ("lookups", "hits", "evictions")}
        cache.counts.clear()
        out |= {"running": float(len(self._rows)), "waiting": float(len(self._waiting))}
        return out | {
            "prefixes": float(len(cache)),
            "version": float(-1 if self.version is None else self.version),
        }

    # ---- one step

    def _worth_admitting(self) -> bool:
        ready = min(self.max_batch - len(self._rows), len(self._waiting))
        if ready == 0:
            return False
        return ready * _ENOUGH >= len(self._rows) or self._steps - min(s.since for s in self._waiting) > _PATIENCE

    def _admit(self) -> None:
        """Prefill waiting prompts into the rows after the active ones; the same prompt once, then copied."""
        first = len(self._rows)
        alike: dict[bytes, list[Continuation]] = {}
        room = self.max_batch - first
        admitted, self._waiting = self._waiting[:room], self._waiting[room:]
        for s in admitted:
            alike.setdefault(s.order.identity.tobytes(), []).append(s)
        groups = list(alike.values())
        leads: list[int] = []
        for group in groups:
            leads.append(len(self._rows))
            for s in group:
                self._enter(s)
        logits = self._fill(groups, leads)
        lead_of = np.repeat(leads, [len(g) for g in groups])
        rows = np.arange(first, len(self._rows))
        copies = rows != lead_of
        if copies.any():
            self._state.copy_rows(rows[copies].tolist(), self._state, lead_of[copies].tolist())
        which = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
        ids, logps = self._sample(logits[torch.from_numpy(which).to(logits.device)], first, len(self._rows))
        self._tape.begin(rows.tolist(), ids, logps, self._served)
        self._advance(first, ids)

    def _enter(self, s: Continuation) -> None:
        row, sampling = len(self._rows), s.sampling
        self._rows.append(s)
        self._position[row] = len(s.prompt)
        self._left[row] = sampling.max_tokens
        self._seed[row] = sampling.seed % (1 << 64)
        self._temperature[row] = sampling.temperature
        missing = len(sampling.stop_ids) - self._stops.shape[1]
        if missing > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, missing)), constant_values=-1)
        self._stops[row] = -1
        self._stops[row, : len(sampling.stop_ids)] = sampling.stop_ids

    def _fill(self, groups: list[list[Continuation]], leads: list[int]) -> Tensor:
        """Run the groups' prompts in their lead rows, from kept states where there are any; last logits [groups, V]."""
        prompts = [g[0].prompt for g in groups]
        found = [self.prefixes.find(self._served, g[0].order.identity) for g in groups]
        starts = [0 if c is None else c.length for c in found]
        for checkpoint, row in zip(found, leads, strict=True):
            if checkpoint is not None:
                self.prefixes.give(checkpoint, self._state, row, self._there.get(row))
        self._there = {row: kept for row, kept in self._there.items() if row >= len(self._rows)}
        ends: list[End | None] = [None] * len(groups)
        for from_empty in (True, False):
            which = [i for i, at in enumerate(starts) if at < len(prompts[i]) and (at == 0) == from_empty]
            if not which:
                continue
            rest = [prompts[i][starts[i] :] for i in which]
            seen = [groups[i][0].order.seen(self.policy, starts[i]) for i in which]
            wanted = self._pick_type if any(len(prompts[i]) > self._topk for i in which) else None
            rows = [leads[i] for i in which]
            last, read = self._read(rest, rows, from_empty, wanted, seen)
            for j, i in enumerate(which):
                routes, picks = read[j]
                self.counts["prefilled"] += len(rest[j])
                chosen = None if picks is None else self._beyond(picks, starts[i])
                ends[i] = End(last[j].clone(), routes if self.record_routes else None, chosen, starts[i])
        return torch.stack([self._filled(*one) for one in zip(groups, leads, found, ends, strict=True)])

    def _filled(self, group: list[Continuation], row: int, found: Checkpoint | None, end: End | None) -> Tensor:
        """Note how a group's prompt was filled in its lead row, and keep its end for siblings that come later: of a
        prompt that goes on from a kept turn only if it is sampled more than once. Returns the last logits [V]."""
        self.counts["cached"] += 0 if found is None else found.length
        base = found
        if end is None:
            assert found is not None and found.end is not None
            end = found.end
        elif found is None or any(len(s.order.request.sampling) > 1 or s.order.request.hand_over for s in group):
            base = self.prefixes.keep(self._served, group[0].order.identity, self._state, row, found, end) or found
        for s in group:
            s.base = base
            order = s.order
            if not order.filled:
                order.cached, order.filled = 0 if found is None else found.length, True
                order.prompt_routes, order.prompt_picks, order.prompt_begin = end.routes, end.picks, end.begin
        return end.logits

    def _read(
        self,
        prompts: list[np.ndarray],
        rows: list[int],
        from_empty: bool,
        picks: np.dtype | None = None,
        images: list[Placed | None] | None = None,
    ) -> tuple[Tensor, prefill.Read]:
        """See `prefill.run`."""
        if self._stepwise is not None:
            return self._stepwise.run(self._state, prompts, rows, from_empty, picks)
        return prefill.run(self.policy, self._state, prompts, rows, from_empty, picks, images)

    def _beyond(self, picks: np.ndarray, begin: int) -> np.ndarray | None:
        """Picks [T, L, k] of the positions from `begin` on without those before `_topk`, which are there or not as the
        rest of the batch has it; None if no others are recorded.
        """
        picks = picks.copy()
        picks[: max(0, self._topk - begin)] = no_pick(picks.dtype)
        return picks if recorded(picks).any() else None

    def _decode(self) -> None:
        n = len(self._rows)
        if self._draft_tokens and self._speculate(n):
            return
        lanes = _whole(n, _LANES)
        self._state.lengths[n:lanes] = 0  # rows of no sequence: they begin anew in every step, and nobody looks
        # The token that is fed lies one before the next position.
        beyond = self._pick_type is not None and int(self._position[:n].max()) > self._topk
        chosen = self.policy.new_picks(lanes) if beyond else None
        logits, routes = self.policy.decode(torch.from_numpy(self._last[:lanes]), self._state, lanes, chosen)
        ids, logps = self._sample(logits[:n], 0, n)
        table = routes[:n].cpu().numpy() if self.record_routes else None
        picks = None
        if chosen is not None and self._pick_type is not None:
            picks = stored(chosen[:n].cpu().numpy(), self._pick_type)
        self._tape.append(table, ids, logps, self._served, picks)
        self.counts["steps"] += 1
        self._advance(0, ids)

    def _speculate(self, n: int) -> bool:
        """Decode every row as far as its draft holds, and a token more; False, and nothing done, if no row has one."""
        room = np.minimum(self._left[:n], self.max_context - self._position[:n]) - 1
        drafts: list[list[int]] = []
        for s, most in zip(self._rows, room.tolist(), strict=True):
            drafts.append(
                [] if s.order.drafts is None else s.order.drafts.draft(s.index, min(most, self._draft_tokens))
            )
        if not any(drafts):
            return False
        tokens = [[int(last), *draft] for last, draft in zip(self._last[:n], drafts, strict=True)]
        lengths = np.array([len(t) for t in tokens])
        picks = self._pick_type is not None and int((self._position[:n] + lengths).max()) > self._topk
        reading = Reading.of(self.policy, self._state, tokens, picks)
        # Every token of every row, in one list: its row, and its place in it.
        row = np.repeat(np.arange(n), lengths)
        at = np.arange(len(row)) - np.repeat(lengths.cumsum() - lengths, lengths)
        u = uniforms(self._seed[row], self._position[row] + at)
        ids, logps = (x.cpu().numpy() for x in sample(reading.logits[row, at], self._temperature[row], u))
        routes = reading.routes.cpu().numpy()
        keys = None
        if reading.picks is not None and self._pick_type is not None:
            keys = stored(reading.picks.cpu().numpy(), self._pick_type)
        taken, last = np.zeros(n, np.int64), np.zeros(n, np.int64)
        for i in range(n):
            said = ids[row == i]
            m = accepted(np.array(tokens[i]), said, len(said), self._stops[i])
            table = routes[i, :m] if self.record_routes else None
            chosen = None if keys is None else keys[i, :m]
            self._tape.add(i, table, said[:m], logps[row == i][:m], self._served, chosen)
            taken[i], last[i] = m, said[m - 1]
            self._hear(i, said[:m])
        reading.keep(self.policy, self._state, taken)
        self.counts["steps"] += 1
        self.counts["generated"] += int(taken.sum())
        self.counts["drafted"] += int(lengths.sum()) - n
        self.counts["accepted"] += int(taken.sum()) - n
        self._advance(0, last, taken)
        return True

    def _hear(self, row: int, tokens: np.ndarray) -> None:
        """A row's sequence went on with these tokens: they may be drafts."""
        s = self._rows[row]
        if s.order.drafts is not None:
            s.order.drafts.add(s.index, tokens.tolist())

    def _sample(self, logits: Tensor, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int64 [n] and log-probs float32 [n] for rows first..end-1."""
        u = uniforms(self._seed[first:end], self._position[first:end])
        tokens, logps = sample(logits, self._temperature[first:end], u)
        self.counts["generated"] += end - first
        ids = tokens.cpu().numpy()
        if self._draft_tokens:
            for i in range(end - first):
                self._hear(first + i, ids[i : i + 1])
        return ids, logps.cpu().numpy()

    def _advance(self, first: int, ids: np.ndarray, counts: np.ndarray | int = 1) -> None:
        """Note how many tokens rows first.. sampled and the last of each, and end the sequences that are complete."""
        rows = slice(first, first + len(ids))
        self._last[rows] = ids
        self._position[rows] += counts
        self._left[rows] -= counts
        stop = (self._stops[rows] == ids[:, None]).any(1)
        length = self._left[rows] == 0
        context = self._position[rows] >= self.max_context
        over = np.flatnonzero(stop | length | context)
        if len(over):
            cut = [FinishReason.LENGTH if length[i] else FinishReason.CONTEXT for i in over]
            self._end({first + int(i): FinishReason.STOP if stop[i] else r for i, r in zip(over, cut, strict=True)})

    def _end(self, reasons: Mapping[int, FinishReason]) -> None:
        """Deliver these rows' sequences and close the gaps with rows from the end."""
        for row, reason in reasons.items():
            s = self._rows[row]
            ids, logps, versions, routes, picks = self._tape.columns(row)
            picks = None if picks is None else self._beyond(picks, len(s.prompt))
            kept = s.base if s.order.request.hand_over else None
            if s.order.request.keep and reason is FinishReason.STOP:
                fed = np.concatenate([s.order.identity, identity(ids[:-1])])
                kept = self.prefixes.keep(self._served, fed, self._state, row, s.base)
                if kept is not None and kept is self.prefixes.newest:
                    self._there[row] = kept
            key = None if kept is None else kept.key
            self._deliver(s, Generation(ids, logps, versions, reason, routes, picks=picks, kept=key))
        n = len(self._rows) - len(reasons)
        gaps = sorted(row for row in reasons if row < n)
        movers = [row for row in range(n, len(self._rows)) if row not in reasons]
        if gaps:
            self._state.copy_rows(gaps, self._state, movers)
            self._there = {row: kept for row, kept in self._there.items() if row not in gaps}
            for column in (self._last, self._position, self._left, self._seed, self._temperature, self._stops):
                column[gaps] = column[movers]
            for gap, row in zip(gaps, movers, strict=True):
                self._rows[gap] = self._rows[row]
                self._tape.move(gap, row)
        del self._rows[n:]

    def _deliver(self, s: Continuation, generation: Generation) -> None:
        """Keep a finished continuation; the request is complete with its last one."""
        order, request = s.order, s.order.request
        order.done[s.index] = generation
        if len(order.done) == len(request.sampling):
            out = [order.done[i] for i in range(len(request.sampling))]
            read: dict[str, Any] = {"prompt_routes": order.prompt_routes, "prompt_picks": order.prompt_picks}
            read |= {"prompt_begin": order.prompt_begin, "cached_tokens": order.cached}
            out = [replace(g, **read) for g in out]
            self._finished.append((request.id, out))
            del self._orders[request.id]

    @property
    def _served(self) -> int:
        if self.version is None:
            raise EngineNotReady(self._why)
        return self.version

    @torch.inference_mode()
    def _recompute(self) -> None:
        """Build the state of every active row anew from its tokens: the old one was made by other weights."""
        rows = list(range(len(self._rows)))
        fed = [np.concatenate([self._rows[row].prompt, self._tape.ids(row)[:-1]]) for row in rows]
        if fed:
            orders = {id(s.order): s.order for s in self._rows}
            seen = {key: order.seen(self.policy) for key, order in orders.items()}
            images = [seen[id(s.order)] for s in self._rows]
            self._read(fed, rows, from_empty=True, images=images)
            self.counts["recomputed"] += sum(len(f) for f in fed)
