"""The engine of the K3 family: continuous batching over one decode state, stepped by its owner. Knows no Ray.

Active sequences are the first rows of the state, always: a finished one is replaced by one from the end. A prompt is
prefilled once for all its samples. The state at the end of a turn may be kept: the next turn then adds only what is
new.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.image import ImageSpec, Picture, preprocess
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
from rollout.engine.sampling import sample, uniforms
from rollout.engine.sessions import Sessions
from rollout.engine.tape import Tape
from rollout.engine.weights import verify
from rollout.images import identity, runs
from rollout.picks import no_pick, nothing, pick_type, recorded, stored
from rollout.trajectory import NO_ROUTE, Sampling

_PATIENCE = 8
"""Decode steps that a waiting sequence may be made to wait so that several prompts are prefilled together."""

_ENOUGH = 8
"""A prefill is worth an interruption at once if it adds one in so many to the active rows."""


_LANES = 16
"""Decoded rows are filled up to a multiple of this. A vectorised function computes the last few elements of a tensor by
other instructions than the rest (another exp, say), and a product of one or two rows is summed in another order: with
whole lanes a row's result is the same bits whatever the number of rows."""


@dataclass(eq=False)
class _Order:
    """One request, and what came back of it so far."""

    request: GenerateRequest
    prompt: np.ndarray
    """int32 [T]."""
    identity: np.ndarray
    """int64 [T, 2]: the prompt's ids, and in place of image tokens the content of their images."""
    pictures: list[tuple[int, Picture]] = field(default_factory=list)
    """Images by their first token."""
    done: dict[int, Generation] = field(default_factory=dict)
    prompt_routes: np.ndarray | None = None
    prompt_picks: np.ndarray | None = None
    cached: int = 0


@dataclass(eq=False)
class _Sequence:
    """One continuation, waiting or in a row."""

    order: _Order
    index: int
    since: int
    """The engine's step at which it came."""

    @property
    def sampling(self) -> Sampling:
        return self.order.request.sampling[self.index]

    @property
    def prompt(self) -> np.ndarray:
        return self.order.prompt


class NativeEngine:
    """Generates with a `model.Policy` on the policy's device; call `step` while `busy`.

    max_batch: rows decoded at once; max_context: tokens of prompt and output together. Nothing is generated before
    `load` has verified a whole set of weights. A sample depends on weights, prompt, sampling and seed, not on what else
    is in the batch: decoding is the same bit for bit, prefill up to the order in which the model sums.
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
    ) -> None:
        self.policy, self.max_batch, self.max_context = policy.eval(), max_batch, max_context
        self.record_routes = record_routes
        if policy.sees:
            self._image_spec = ImageSpec.of(policy.config.vision)
            self._placeholder: int = policy.config.media_placeholder_token_id
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
        capacity = -(-max_batch // _LANES) * _LANES
        self._state = policy.new_state(capacity, max_context)
        self._sessions = Sessions(policy, capacity, max_context)
        self._orders: dict[str, _Order] = {}
        self._waiting: deque[_Sequence] = deque()
        self._rows: list[_Sequence] = []
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
        order = self._orders[request.id] = self._ordered(request)
        self._waiting.extend(_Sequence(order, i, self._steps) for i in range(len(request.sampling)))

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
            if manifest.version == self.version and manifest.checksum != self._checksum:
                raise ValueError(f"version {manifest.version} is already served, with other weights")
            verify(manifest, tensors, self._shapes)
            self.policy.load_named_weights(tensors)
            self.policy.refresh_quantized()
            self.version, self._checksum = manifest.version, manifest.checksum
            self._sessions.clear()
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
        self._sessions.clear()

    def stats(self) -> dict[str, float]:
        """Counters since the last call and the present load: see `Engine.stats`."""
        names = ("generated", "prefilled", "cached", "recomputed")
        out = {f"tokens_{name}": float(self.counts[name]) for name in names}
        out |= {"decode_steps": float(self.counts["steps"]), "updates": float(self.counts["updates"])}
        self.counts.clear()
        out |= {"running": float(len(self._rows)), "waiting": float(len(self._waiting))}
        return out | {
            "sessions": float(len(self._sessions)),
            "version": float(-1 if self.version is None else self.version),
        }

    # ---- images

    def _ordered(self, request: GenerateRequest) -> _Order:
        """The request with its images cut. Raises ValueError for images that its prompt or the policy has no place for,
        and for a prompt with the mark of an image that is not given."""
        prompt = np.array(request.prompt_ids, np.int32)
        if request.images and not self.policy.sees:
            raise ValueError(
                f"request {request.id} has {len(request.images)} images, this policy no vision tower: set model.vision"
            )
        if not self.policy.sees:
            return _Order(request, prompt, identity(prompt))
        found = runs(prompt, self._placeholder)
        if len(found) != len(request.images):
            raise ValueError(f"request {request.id}: {len(request.images)} images, {len(found)} places for them")
        pictures = []
        for (at, n), file in zip(found, request.images, strict=True):
            picture = preprocess(file, self._image_spec, f"an image of request {request.id}")
            if picture.tokens != n:
                raise ValueError(f"request {request.id}: an image of {picture.tokens} tokens has a place of {n}")
            pictures.append((at, picture))
        return _Order(request, prompt, identity(prompt, request.images, self._placeholder), pictures)

    def _seen(self, order: _Order, start: int = 0) -> Placed | None:
        """What stands for the order's images at tokens start.., with the present weights, counted from start."""
        rest = [(at - start, picture) for at, picture in order.pictures if at >= start]
        if not rest:
            return None
        patches = torch.from_numpy(np.concatenate([p.patches for _, p in rest])).to(self.policy.device)
        pos = torch.cat([torch.arange(at, at + p.tokens) for at, p in rest])
        return Placed(self.policy.see(patches, [p.grid for _, p in rest]), torch.zeros_like(pos), pos)

    # ---- one step

    def _worth_admitting(self) -> bool:
        ready = min(self.max_batch - len(self._rows), len(self._waiting))
        if ready == 0:
            return False
        return ready * _ENOUGH >= len(self._rows) or self._steps - self._waiting[0].since > _PATIENCE

    def _admit(self) -> None:
        """Prefill waiting prompts into the rows after the active ones; the same prompt once, then copied."""
        first = len(self._rows)
        alike: dict[bytes, list[_Sequence]] = {}
        for _ in range(min(self.max_batch - first, len(self._waiting))):
            s = self._waiting.popleft()
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

    def _enter(self, s: _Sequence) -> None:
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

    def _fill(self, groups: list[list[_Sequence]], leads: list[int]) -> Tensor:
        """Run the groups' prompts in their lead rows, on kept states where there are any; last logits [groups, V]."""
        prompts = [g[0].prompt for g in groups]
        pairs = zip(groups, leads, strict=True)
        starts = [self._sessions.take(self._served, g[0].order.identity, self._state, row) for g, row in pairs]
        logits: list[Tensor] = [torch.empty(0)] * len(groups)
        for from_empty in (True, False):
            which = [i for i, start in enumerate(starts) if (start == 0) == from_empty]
            if not which:
                continue
            rest = [prompts[i][starts[i] :] for i in which]
            seen = [self._seen(groups[i][0].order, starts[i]) for i in which]
            wanted = self._pick_type if any(len(prompts[i]) > self._topk for i in which) else None
            rows = [leads[i] for i in which]
            last, read = prefill.run(self.policy, self._state, rest, rows, from_empty, wanted, seen)
            for j, i in enumerate(which):
                logits[i] = last[j]
                routes, picks = read[j]
                self.counts["prefilled"] += len(rest[j])
                self.counts["cached"] += starts[i]
                known = np.full((len(prompts[i]), *routes.shape[1:]), NO_ROUTE, np.uint16)
                known[starts[i] :] = routes
                chosen = None if picks is None else self._beyond(picks, starts[i])
                if chosen is not None:
                    chosen = np.concatenate([nothing((starts[i], *chosen.shape[1:]), chosen.dtype), chosen])
                for s in groups[i]:
                    s.order.cached = starts[i]
                    s.order.prompt_routes = known if self.record_routes else None
                    s.order.prompt_picks = chosen
        return torch.stack(logits)

    def _beyond(self, picks: np.ndarray, begin: int) -> np.ndarray | None:
        """Picks [T, L, k] of the positions from `begin` on without those before `_topk`, which are there or not as the
        rest of the batch has it; None if no others are recorded.
        """
        picks = picks.copy()
        picks[: max(0, self._topk - begin)] = no_pick(picks.dtype)
        return picks if recorded(picks).any() else None

    def _decode(self) -> None:
        n = len(self._rows)
        lanes = -(-n // _LANES) * _LANES
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

    def _sample(self, logits: Tensor, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int64 [n] and log-probs float32 [n] for rows first..end-1."""
        u = uniforms(self._seed[first:end], self._position[first:end])
        tokens, logps = sample(logits, self._temperature[first:end], u)
        self.counts["generated"] += end - first
        return tokens.cpu().numpy(), logps.cpu().numpy()

    def _advance(self, first: int, ids: np.ndarray) -> None:
        """Note the sampled tokens of rows first.. and end the sequences that are complete."""
        rows = slice(first, first + len(ids))
        self._last[rows] = ids
        self._position[rows] += 1
        self._left[rows] -= 1
        stop = (self._stops[rows] == ids[:, None]).any(1)
        length = self._left[rows] == 0
        context = self._position[rows] >= self.max_context
        over = np.flatnonzero(stop | length | context)
        if len(over):
            cut = [FinishReason.LENGTH if length[i] else FinishReason.CONTEXT for i in over]
            self._end({first + int(i): FinishReason.STOP if stop[i] else r for i, r in zip(over, cut, strict=True)})

    def _end(self, reasons: Mapping[int, FinishReason]) -> None:
        """Deliver these rows' sequences and close the gaps with rows from the end."""
        kept: list[tuple[np.ndarray, int]] = []
        for row, reason in reasons.items():
            s = self._rows[row]
            ids, logps, versions, routes, picks = self._tape.columns(row)
            picks = None if picks is None else self._beyond(picks, len(s.prompt))
            self._deliver(s, Generation(ids, logps, versions, reason, routes, picks=picks))
            if s.order.request.keep and reason is FinishReason.STOP:
                kept.append((np.concatenate([s.order.identity, identity(ids[:-1])]), row))
        if kept:
            self._sessions.keep(self._served, kept, self._state)
        n = len(self._rows) - len(reasons)
        gaps = sorted(row for row in reasons if row < n)
        movers = [row for row in range(n, len(self._rows)) if row not in reasons]
        if gaps:
            self._state.copy_rows(gaps, self._state, movers)
            for column in (self._last, self._position, self._left, self._seed, self._temperature, self._stops):
                column[gaps] = column[movers]
            for gap, row in zip(gaps, movers, strict=True):
                self._rows[gap] = self._rows[row]
                self._tape.move(gap, row)
        del self._rows[n:]

    def _deliver(self, s: _Sequence, generation: Generation) -> None:
        """Keep a finished continuation; the request is complete with its last one."""
        order, request = s.order, s.order.request
        order.done[s.index] = generation
        if len(order.done) == len(request.sampling):
            out = [order.done[i] for i in range(len(request.sampling))]
            routes, picks, cached = order.prompt_routes, order.prompt_picks, order.cached
            out = [replace(g, prompt_routes=routes, prompt_picks=picks, cached_tokens=cached) for g in out]
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
            seen = {key: self._seen(order) for key, order in orders.items()}
            images = [seen[id(s.order)] for s in self._rows]
            prefill.run(self.policy, self._state, fed, rows, from_empty=True, images=images)
            self.counts["recomputed"] += sum(len(f) for f in fed)
