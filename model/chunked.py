"""Exact training on rows of any length in the activation memory of one chunk.

The forward pass runs every row chunk by chunk through all layers and keeps, at each boundary, the KDA states and the
last convolution inputs, and, of every token, the latents and the selected keys of the full layers. The backward pass
goes through the chunks in reverse: it runs a chunk again from what it started with, and differentiates the log-probs of
its tokens together with what later chunks handed back: gradients of the states at its end and of its own latents. The
sum over chunks is the gradient of the whole row, for any loss of the log-probs. Nothing is cut off or approximated.
The indexers' loss on the selected keys is computed along, each chunk's on its own tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from model.decoder import Policy
from model.dsa import Indexer, check_replay
from model.kda import KDA
from model.logprob import token_logprobs
from model.mla import MLA
from model.moe import packed_routes
from model.packing import Packing
from model.past import Attended, Past, attend

Score = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
States = list[Tensor]
"""Of every KDA layer the last convolution inputs [1, W-1, 3D], then of every one the state [1, heads, K, V]."""


@dataclass(frozen=True)
class _Chunk:
    span: slice
    """Its packed tokens."""
    before: int | None
    """The chunk that its states come from: the previous one of its row or its parent's last."""
    past: list[slice]
    """Packed tokens that its row has before it."""


def _chunks(lengths: list[int], parents: list[int], size: int) -> list[_Chunk]:
    """All chunks, rows without a parent first, so that each stands behind what it starts from."""
    first = [sum(lengths[:i]) for i in range(len(lengths))]
    out: list[_Chunk] = []
    last: dict[int, int] = {}
    for row in sorted(range(len(lengths)), key=lambda i: parents[i] >= 0):
        parent = parents[row]
        before = last.get(parent)
        shared = [] if parent < 0 else [slice(first[parent], first[parent] + lengths[parent])]
        for a in range(first[row], first[row] + lengths[row], size):
            own = [slice(first[row], a)] if a > first[row] else []
            out.append(_Chunk(slice(a, min(a + size, first[row] + lengths[row])), before, shared + own))
            before = len(out) - 1
        last[row] = len(out) - 1
    return out


def count_chunks(lengths: Tensor, size: int) -> int:
    """Chunks of at most `size` tokens that rows of these lengths are cut into."""
    return int(((lengths + size - 1) // size).sum())


class _Run:
    """One batch of rows, forwards once and backwards once."""

    def __init__(
        self,
        policy: Policy,
        ids: Tensor,
        packing: Packing,
        chunks: list[_Chunk],
        recompute: bool,
        offload: bool,
        picks: Tensor | None = None,
        index_loss: bool = False,
        idle: int | None = None,
    ) -> None:
        """idle: every layer of every chunk is run forwards and backwards, and so many last tokens are there for no more
        than that; None: what nothing depends on is left out of the backward pass.
        """
        self.policy, self.ids, self.packing, self.chunks = policy, ids, packing, chunks
        self.recompute, self.joined, self.real = recompute, idle is not None, packing.tokens - (idle or 0)
        self.past = Past(policy.config, packing.tokens, policy.dtype, policy.device, offload, picks, index_loss)
        la = policy.config.linear_attn_config
        self.kda, self.full = len(la.kda_layers), len(la.full_attn_layers)
        self.continued = {c.before for c in chunks}
        self.states: list[States] = []
        """After each chunk that another one starts from; empty after others."""
        self._packings: dict[int, Packing] = {}
        shape = (packing.tokens, len(policy.config.moe_layers), policy.config.num_experts_per_token)
        self.routes = torch.empty(shape, dtype=torch.int64, device=policy.device)
        self.wide = torch.float64 if policy.dtype == torch.float64 else torch.float32
        self.index_loss = torch.zeros((), dtype=self.wide, device=policy.device)
        """As `Hidden.index_loss`, summed over chunks in the forward pass; 0 if the indexers do not learn."""

    def score_at(self, at: Tensor, targets: Tensor, temperature: Tensor, score: Score) -> None:
        """What is scored: `targets` [M] of the tokens behind packed tokens `at` Long [M]."""
        at, self.order = torch.sort(at, stable=True)
        borders = torch.tensor([c.span.start for c in self.chunks] + [c.span.stop for c in self.chunks])
        cuts = torch.searchsorted(at, borders.to(at)).tolist()
        self.cuts = list(zip(cuts[: len(self.chunks)], cuts[len(self.chunks) :], strict=True))
        self.at, self.targets, self.temperature = at, targets[self.order], temperature[self.order]
        self.score = score

    def _packing(self, tokens: int) -> Packing:
        if tokens not in self._packings:
            self._packings[tokens] = Packing(torch.tensor([tokens], device=self.policy.device), tokens)
        return self._packings[tokens]

    def _around(self, f: Callable[..., Any], *args: Any) -> Any:
        """Run a layer's part; where activations are made again, only its inputs are kept."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(f, *args, use_reentrant=False, preserve_rng_state=False)
        return f(*args)

    def _layers(self, i: int, start: States, routes: Tensor | None) -> tuple[Tensor, Tensor, States, list[Attended]]:
        """(hidden [T, H], chosen experts [T, L_moe, K], states at the end, what the full layers gave) of chunk i."""
        chunk = self.chunks[i]
        packing = self._packing(chunk.span.stop - chunk.span.start)
        end: States = [*range(2 * self.kda)]  # type: ignore[list-item]
        full: list[Attended] = [*range(self.full)]  # type: ignore[list-item]

        def mixer(layer: int, m: nn.Module, x: Tensor) -> Tensor:
            slot = self.policy._slot[layer]
            if isinstance(m, KDA):
                carried = (start[slot], start[self.kda + slot]) if start else (None, None)
                y, end[slot], end[self.kda + slot] = self._around(m, x, packing, *carried)
            else:
                f = partial(attend, cast("MLA", m), past=self.past, layer=slot, span=chunk.span, spans=chunk.past)
                full[slot] = self._around(f, x)
                y = full[slot].y
            return y

        copies = None if self.packing.copies is None else self.packing.copies[chunk.span]
        hidden, chosen = self.policy.model(self.ids[chunk.span], mixer, routes, copies, around=self._around)
        return hidden, chosen, end, full

    def _index_loss(self, i: int, full: list[Attended]) -> Tensor | None:
        """Chunk i's part of `Hidden.index_loss`; None if the indexers do not learn."""
        losses = [a.loss for a in full if a.loss is not None]
        if not losses:
            return None
        each = torch.stack(losses).mean(0).to(self.wide)
        copies = self.packing.copies
        if copies is None:
            return each.sum() / self.real
        # A token that is there to join sees itself alone: its loss is 0, and it must not count.
        return (each * copies[self.chunks[i].span]).sum() / (copies.sum() - (self.packing.tokens - self.real))

    def _scored(self, i: int, hidden: Tensor) -> tuple[slice, Tensor, Tensor] | None:
        """(which of the ordered scores, their log-probs and entropies) that chunk i predicts, None if none."""
        part = slice(*self.cuts[i])
        if part.start == part.stop:
            return None
        inside = hidden.index_select(0, self.at[part] - self.chunks[i].span.start)
        return part, *self.score(inside, self.targets[part], self.temperature[part])

    def forward(self, routes: Tensor | None) -> tuple[Tensor, Tensor]:
        """(log-probs [M], entropies [M]); routes Long [N, L_moe, K], -1 for the live choice, or None for it alone.

        Where gradients are enabled the arithmetic is that of the backward pass's forward, and balances are counted.
        """
        logprob, entropy = (torch.zeros(len(self.at), dtype=self.wide, device=self.policy.device) for _ in range(2))
        for i, chunk in enumerate(self.chunks):
            replayed = None if routes is None else routes[chunk.span]
            if replayed is None and chunk.span.start >= self.real:  # a live choice that no balance counts
                replayed = self.routes[chunk.span].fill_(-1)
            scored = self._forward(i, replayed)
            if scored is not None:
                logprob[self.order[scored[0]]], entropy[self.order[scored[0]]] = scored[1:]
        return logprob, entropy

    def _forward(self, i: int, routes: Tensor | None) -> tuple[slice, Tensor, Tensor] | None:
        """Run chunk i and keep what others start from and read; what it scores, as `_scored`."""
        chunk = self.chunks[i]
        hidden, self.routes[chunk.span], end, full = self._layers(i, self._start(chunk), routes)
        self.states.append([s.detach().to(self.past.home) for s in end] if i in self.continued else [])
        for layer, attended in enumerate(full):
            self.past.latents[layer][chunk.span] = attended.latent.detach()
        if (index_loss := self._index_loss(i, full)) is not None:
            self.index_loss += index_loss.detach()
        with torch.no_grad():
            return self._scored(i, hidden.detach())

    def _start(self, chunk: _Chunk) -> States:
        """The states that a chunk starts from; empty at position 0."""
        return [] if chunk.before is None else [s.to(self.policy.device) for s in self.states[chunk.before]]

    def backward(self, grad: Tensor, index_grad: Tensor, params: list[Tensor]) -> list[Tensor | None]:
        """Gradients of `params` for the gradients `grad` [M] of the log-probs and `index_grad` of the index loss; None
        where nothing depends on one.
        """
        grad = grad[self.order]
        self.past.start_gradients()
        handed: dict[int, States] = {}
        total: list[Tensor | None] = [None] * len(params)
        for i in reversed(range(len(self.chunks))):
            before = self.chunks[i].before
            got, back = self._backward(i, grad, index_grad, handed.pop(i, []), params)
            self.states[i] = []
            for n, g in enumerate(got):
                if g is not None:
                    sofar = total[n]
                    total[n] = g if sofar is None else sofar.add_(g)
            if before is not None and back:
                others = handed.get(before)
                handed[before] = back if others is None else [a + b for a, b in zip(others, back, strict=True)]
        return total

    def _backward(
        self, i: int, grad: Tensor, index_grad: Tensor, handed: States, params: list[Tensor]
    ) -> tuple[tuple[Tensor | None, ...], States]:
        """(gradients of `params`, of the states that it starts from) of chunk i.

        grad [M]: of the ordered log-probs; handed: of the states at its end, empty if nothing later depends on them.
        """
        chunk = self.chunks[i]
        start = [s.detach().requires_grad_() for s in self._start(chunk)]
        with torch.enable_grad():
            hidden, _, end, full = self._layers(i, start, self.routes[chunk.span])
            scored, index_loss = self._scored(i, hidden), self._index_loss(i, full)
        outputs, grads = ([], []) if scored is None else ([scored[1]], [grad[scored[0]]])
        if handed:
            outputs += [*end, *(a.latent for a in full)]
            grads += handed + [self.past.gradient(layer, chunk.span) for layer in range(self.full)]
        if index_loss is not None:
            outputs += [index_loss, *(a.keys for a in full if a.keys is not None)]
            grads += [index_grad] + [self.past.gradient(layer, chunk.span, "keys") for layer in range(self.full)]
        if self.joined:  # the layers behind what later chunks read take part as well
            outputs.append(hidden)
            grads.append(torch.zeros_like(hidden))
        if not outputs:
            return (), []
        got = torch.autograd.grad(outputs, [*params, self.past.anchor, *start], grads, allow_unused=True)
        back = [torch.zeros_like(s) if g is None else g for s, g in zip(start, got[len(params) + 1 :], strict=True)]
        return got[: len(params)], back


class _Node(Function):
    """The whole run as one node: its backward hands each parameter one gradient, the sum over all chunks."""

    @staticmethod
    def forward(ctx: Any, run: _Run, routes: Tensor | None, *params: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        with torch.enable_grad():
            logprob, entropy = run.forward(routes)
        ctx.run = run
        ctx.save_for_backward(*params)
        ctx.mark_non_differentiable(entropy)
        return logprob, entropy, run.index_loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor, index_grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if ctx.run is None:
            raise RuntimeError("a chunked forward can be differentiated once: score again")
        run, ctx.run = ctx.run, None
        return None, None, *run.backward(grad, index_grad, list(ctx.saved_tensors))


def score_chunked(
    policy: Policy,
    input_ids: Tensor,
    lengths: Tensor,
    at: Tensor,
    source: Tensor,
    temperature: Tensor,
    routes: Tensor | None = None,
    parents: Tensor | None = None,
    picks: Tensor | None = None,
    *,
    chunk: int,
    recompute: bool = False,
    offload: bool = False,
    score: Score | None = None,
    join: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Log-probs of given tokens, rows being computed `chunk` tokens at a time, forwards and backwards.

    input_ids Long [B, T], lengths and parents Long [B], routes [B, T, L_moe, K], picks int32 [B, T, L_full, k]: as
    `Policy.forward`. at Long [M]: flat positions b T + t of the tokens to score, source Long [M]: of those that predict
    them; temperature float [M].
    recompute: keep only the inputs of a layer's two parts, of the chunk that is differentiated, and make the rest
    again. offload: keep latents, selections and states in host memory. score(hidden [m, H], targets [m], temperature
    [m]): log-probs and entropies, `token_logprobs` of the policy's logits if None.
    join: run exactly so many chunks, at least `count_chunks`, the missing ones on one token each with a gradient of
    zero: ranks that meet in every layer (experts are spread) are given the same number.
    Returns (log-probs [M], entropies [M] without gradient, routes that were used [B, T, L_moe, K], -1 at pads, the
    index loss as `Hidden.index_loss`).
    Raises ValueError for a chunk below 1, a dense index loss, an enabled MTP layer, a source at a pad, wrong
    routes or picks, or a `join` that is too small.
    """
    if chunk < 1:
        raise ValueError(f"chunk {chunk}: must be at least 1 token")
    asked, idle = input_ids.shape[0], None
    if join is not None:
        idle = join - count_chunks(lengths, chunk)
        if idle < 0:
            raise ValueError(f"join {join}: the rows make {join - idle} chunks of {chunk} tokens")
        input_ids, lengths = F.pad(input_ids, (0, 0, 0, idle)), F.pad(lengths, (0, idle), value=1)
        parents = None if parents is None else F.pad(parents, (0, idle), value=-1)
        routes, picks = (
            None if x is None else F.pad(x, (0, 0, 0, 0, 0, 0, 0, idle), value=-1) for x in (routes, picks)
        )
    learn = torch.is_grad_enabled()
    learning = [m for m in policy.modules() if isinstance(m, Indexer) and m.learn and learn]
    if any(m.dense for m in learning):
        raise ValueError("the indexers' dense warm-up attends to every key: it is not computed in chunks")
    if learn and policy.model.mtp is not None and policy.model.mtp.learn:
        raise ValueError("the MTP layer attends to whole rows: it is not computed in chunks, enable_mtp(policy, False)")
    index_loss = any(p.requires_grad for m in learning for p in m.parameters())
    b, t = input_ids.shape
    device = policy.device
    packing = Packing(lengths.to(device), t, parents)
    cells = packing.row * t + packing.pos
    if routes is not None:
        routes = packed_routes(routes, policy.config, packing, (b, t), cells)
    if picks is not None:
        policy._check_picks(picks, b, t)
        picks = picks.to(device).flatten(0, 1)[cells]
        check_replay(picks, packing.row, packing.pos, packing.position)
    chunks = _chunks(lengths.tolist(), [-1] * b if parents is None else parents.tolist(), chunk)
    own_ids = input_ids.to(device).flatten()[cells]
    run = _Run(policy, own_ids, packing, chunks, recompute, offload, picks, index_loss, idle)
    packed = cells.new_full((b * t,), -1)
    packed[cells] = torch.arange(packing.tokens, device=device)
    packed = packed[source.to(device)]
    if bool((packed < 0).any()):
        raise ValueError("source names a position behind its row's end")
    targets = input_ids.flatten()[at.to(input_ids.device)].to(device)
    own: Score = lambda h, y, temperature: token_logprobs(policy.logits(h), y, temperature)
    run.score_at(packed, targets, temperature.to(device), score or own)
    params = [p for p in policy.parameters() if p.requires_grad]
    if learn and params:
        logprob, entropy, loss = _Node.apply(run, routes, *params)
    else:
        (logprob, entropy), loss = run.forward(routes), run.index_loss
    used = run.routes.new_full((b * t, *run.routes.shape[1:]), -1)
    used[cells] = run.routes
    used = used.view(b, t, *run.routes.shape[1:])[:asked]
    return logprob, entropy, used, loss if index_loss else None
