"""One decode step of all rows at once, laid out for few operations: at this size the calls cost more than the numbers.

What can be folded into a matrix is: the weight of a norm and constant factors into a projection beside them,
projections of one input into one. Scalars are tensors, which torch need not convert. A row's bits do not depend on the
other rows if their number and the model's widths are multiples of 16: no operation mixes rows, and whether all experts
are run on all rows is decided by the sizes of the model alone. (What a library does with the odd end of a row differs
by processor, and may depend on where the row lies in memory.) They do depend on the length of the longest row, whose
keys all rows are multiplied with, and on which rows large experts share; `apart` takes both away.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.kda import kda_step_
from model.cache import DecodeState
from model.dsa import picks_of, select_topk
from model.far import read_rows
from model.kda import KDA
from model.logprob import NEVER
from model.mla import MLA, SPARSE_CORE
from model.step_ffn import FeedForward, ffn_step
from model.step_parts import Inverse, Space, columns

if TYPE_CHECKING:
    from model.decoder import DecoderLayer, Policy

KEYS = 64
"""Keys of one product where rows are kept apart."""


@dataclass(frozen=True, eq=False)
class _Where:
    """Where the tokens of one step go, and what they see."""

    longest: int
    """Tokens of the longest row that is not `far`, the new one included; filled up to whole `tiles`."""
    at: Tensor
    """Long [n]: position of each new token in the flattened [capacity, max_len]."""
    hidden: Tensor
    """Bool [n, 1, longest]: what lies beyond a row's new token."""
    mask: Tensor
    """[n, 1, longest]: the same as 0 and -inf."""
    picks: Tensor | None
    """int32 [n, L_full, k] to record the selected keys in, or None."""
    tiles: list[slice]
    """Keys that are multiplied with at once, where rows are kept apart; none: all are."""
    far: list[tuple[int, int]]
    """(row, its tokens, the new one included) of rows that are read one by one (`model.far`)."""


Mixer = Callable[[Tensor, _Where], Tensor]
"""(x [n, H], where) -> [n, D], to be multiplied by the mixer's `out` [D, H]."""


class _Layout:
    """What n rows of one state need in every step, bound once."""

    def __init__(self, step: DecodeStep, state: DecodeState, n: int) -> None:
        space = Space(step.embedding, n)
        bank = step.embedding.new_empty(step.depth, n, step.embedding.shape[1])
        self.slots = bank.unbind(0)
        """The depth mix's sources [n, H], in the order in which they are filed; the last one is the running sum."""
        self.sources = [bank[: i + 1] for i in range(step.depth)]
        self.mixers: list[Mixer] = [m.bind(space, state, i) for m, i in zip(step.mixers, step.places, strict=True)]
        self.ffns: list[FeedForward] = [m.bind(space) for m in step.ffns]


class DecodeStep:
    """The folded weights of a policy (float32 or float64), and the step on them.

    apart: a row's bits do not depend on the other rows at all, in a state whose max_len is a multiple of KEYS.
    """

    def __init__(self, policy: Policy, apart: bool = False) -> None:
        self.apart = apart
        body, config = policy.model, policy.config
        layers = list(cast("Iterable[DecoderLayer]", body.layers))
        self.embedding = body.embed_tokens.weight.detach()
        self.block, self.depth = config.attn_res_block_size, -(-len(layers) // config.attn_res_block_size) + 1
        mixes = [mix for layer in layers for mix in (layer.attention_mix(), layer.ffn_mix())]
        mixes.append((body.output_attn_res_norm.weight, body.output_attn_res_proj.weight, body.norm.weight))
        self.mixes = [_DepthMix(key, query, config.rms_norm_eps) for key, query, _ in mixes]
        self.mixers = [_mixer(x.self_attn, x.input_layernorm.weight) for x in layers]
        self.ffns = [ffn_step(x.moe or x.mlp, x.post_attention_layernorm.weight, apart) for x in layers]
        self.places = policy._slot
        """Per layer: its index among the state's layers of its kind."""
        self._marks = policy.marks
        self._head = columns(policy.lm_head.weight * config.logit_scale, body.norm.weight)
        sparse = config.index_topk is not None and not apart and policy.device.type == "cpu"
        self._near = SPARSE_CORE * (config.index_topk or 0) if sparse else sys.maxsize
        """Tokens up to which a row attends under the mask of its selection, as all such rows at once."""
        self._zero, self._never = self.embedding.new_tensor(0.0), self.embedding.new_tensor(-torch.inf)
        self._count = torch.arange(0, device=policy.device)
        self._state: weakref.ref[DecodeState] | None = None
        self._layouts: dict[int, _Layout] = {}

    def __call__(
        self, tokens: Tensor, state: DecodeState, n: int, picks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Policy.decode`."""
        state.own()
        where = self._where(state, n, picks)
        layout = self._layout(state, n)
        slots, sources = layout.slots, layout.sources
        torch.index_select(self.embedding, 0, tokens, out=slots[0])
        top = 0
        chosen = []
        for i, (mixer, ffn) in enumerate(zip(layout.mixers, layout.ffns, strict=True)):
            out = mixer(self.mixes[2 * i](sources[top]), where)
            if i % self.block == 0:  # the running sum is filed, and begins anew with what the mixer gives
                top += 1
                torch.mm(out, self.mixers[i].out, out=slots[top])
            else:
                slots[top].addmm_(out, self.mixers[i].out)
            experts = ffn(self.mixes[2 * i + 1](sources[top]), slots[top])
            if experts is not None:
                chosen.append(experts)
        state.lengths[:n] += 1
        logits = torch.mm(self.mixes[-1](sources[top]), self._head)
        if self._marks is not None:
            logits.index_fill_(1, self._marks, NEVER)
        return logits, torch.stack(chosen, 1)

    def _layout(self, state: DecodeState, n: int) -> _Layout:
        if self._state is None or self._state() is not state:
            self._state, self._layouts = weakref.ref(state), {}
        if n not in self._layouts:
            self._layouts[n] = _Layout(self, state, n)
        return self._layouts[n]

    def _where(self, state: DecodeState, n: int, picks: Tensor | None) -> _Where:
        host = state.lengths[:n]
        longest = int(host.max()) + 1
        if longest > state.max_len:
            raise ValueError(f"a row is full: max_len {state.max_len}")
        far: list[tuple[int, int]] = []
        if longest > self._near:
            far = [(row, tokens + 1) for row, tokens in enumerate(host.tolist()) if tokens >= self._near]
            longest = int(host[host < self._near].max()) + 1 if len(far) < n else 1
        tiles: list[slice] = []
        if self.apart:
            tiles = [slice(i, i + KEYS) for i in range(0, longest, KEYS)]
            longest = tiles[-1].stop
            if longest > state.max_len:
                raise ValueError(f"max_len {state.max_len} is no multiple of {KEYS}, in which rows are kept apart")
        if len(self._count) < max(n, longest):
            self._count = torch.arange(max(state.capacity, state.max_len), device=self._count.device)
        lengths = host.to(self._count.device)
        hidden = (self._count[:longest] > lengths.unsqueeze(1)).unsqueeze(1)
        mask = torch.where(hidden, self._never, self._zero)
        at = torch.add(lengths, self._count[:n], alpha=state.max_len)
        return _Where(longest, at, hidden, mask, picks, tiles, far)


class _DepthMix:
    """`kernels.attn_res.mix_norm` without the last weight."""

    def __init__(self, key: Tensor, query: Tensor, eps: float) -> None:
        self._probe = key.detach() * query.detach().view(-1)
        self._inverse = Inverse(key, key.shape[0], eps)

    def __call__(self, sources: Tensor) -> Tensor:
        """sources [S, n, H] -> [n, H]."""
        if sources.shape[0] == 1:
            mixed = sources[0]
        else:
            inverse = self._inverse(sources)
            scores = torch.mv(sources.flatten(0, 1), self._probe).view_as(inverse).mul_(inverse)
            mixed = (sources * torch.softmax(scores, 0)).sum(0)
        return mixed * self._inverse(mixed)


def _mixer(m: nn.Module, norm: Tensor) -> _KDAStep | _MLAStep:
    return _KDAStep(m, norm) if isinstance(m, KDA) else _MLAStep(cast(MLA, m), norm)


class _KDAStep:
    """KDA for one token of n sequences."""

    def __init__(self, m: KDA, norm: Tensor) -> None:
        self._heads, self._size, self._width = m.heads, m.head_dim, m.width
        inputs = (m.q_proj, m.k_proj, m.v_proj, m.g_proj, m.b_proj, m.f_a_proj)
        self._in = columns(torch.cat([p.weight for p in inputs]), norm)
        rate = m.A_log.detach()[: m.heads].clamp(max=20.0).exp().repeat_interleave(m.head_dim)
        self._low, self._bias = columns(m.f_b_proj.weight * rate.unsqueeze(1)), m.dt_bias.detach() * rate
        self._bound = norm.new_tensor(m.lower_bound)
        taps = torch.cat([c.weight for c in (m.q_conv1d, m.k_conv1d, m.v_conv1d)]).detach().squeeze(1)
        self._taps = taps.mT.contiguous().unbind(0)
        self._unit = Inverse(norm, 1, 1e-6)
        # q is not scaled by 1 / sqrt(size): the head norm takes every factor out, but for its eps.
        self._inverse = Inverse(norm, m.head_dim, m.eps * m.head_dim)
        self.out = columns(m.o_proj.weight, m.o_norm.weight.repeat(m.heads))

    def bind(self, space: Space, state: DecodeState, place: int) -> Mixer:
        """For rows 0..n-1 of the state, which is updated."""
        n, heads, size, width = space.n, self._heads, self._size, self._width
        projected = space("in", self._in.shape[1])
        inputs, gates, low = projected.split([3 * width, width + heads, size], 1)
        opened = space("gates", width + heads)
        gate, beta = opened[:, :width].view(n, heads, size), opened[:, width:]
        decay = space("decay", width)
        decay_heads = decay.view(n, heads, size)
        qkv = space("qkv", 3 * width)
        qk, v = qkv.view(n, 3, heads, size).split([2, 1], 1)
        unit = space("unit", 2 * width).view(n, heads, 2, size)
        past, recurrent = state.conv[place, :n].unbind(1), state.recurrent[place, :n]
        v, unit_qk = v.squeeze(1), unit.transpose(1, 2)
        *older, newest = self._taps

        def run(x: Tensor, _: _Where) -> Tensor:
            torch.mm(x, self._in, out=projected)
            torch.sigmoid(gates, out=opened)
            torch.addmm(self._bias, low, self._low, out=decay).sigmoid_().mul_(self._bound).exp_()
            torch.mul(inputs, newest, out=qkv)
            for old, tap in zip(past, older, strict=True):
                qkv.addcmul_(old, tap)
            for old, newer in zip(past, (*past, inputs)[1:], strict=True):
                old.copy_(newer)
            F.silu(qkv, inplace=True)
            torch.mul(qk, self._unit(qk), out=unit_qk)
            o = kda_step_(unit, v, decay_heads, beta, recurrent)
            return o.mul_(self._inverse(o)).mul_(gate).view(n, width)

        return run


class _MLAStep:
    """Gated MLA or DSA for one token of n sequences, absorbed: scores are taken against the cached latents."""

    def __init__(self, m: MLA, norm: Tensor) -> None:
        self._heads, self._nope, self._rank = m.heads, m.nope, m.kv_rank
        keys = [] if m.indexer is None else [m.indexer.wk.weight]
        inputs = (m.q_a_proj.weight, m.kv_a_proj_with_mqa.weight, m.g_proj.weight, *keys)
        self._in = columns(torch.cat(inputs), norm)
        self._split = [w.shape[0] for w in inputs]
        self._q_inverse = Inverse(norm, m.q_rank, m.q_a_layernorm.eps)
        self._kv_inverse = Inverse(norm, m.kv_rank, m.kv_a_layernorm.eps)
        self._kv_weight = m.kv_a_layernorm.weight.detach()
        q = m.q_b_proj.weight.detach().view(m.heads, m.nope + m.pe, m.q_rank).clone()
        q[:, m.nope :] *= m.scale
        self._q = columns(q.flatten(0, 1), m.q_a_layernorm.weight)
        up_k, up_v = m.kv_b_proj.weight.detach().view(m.heads, -1, m.kv_rank).split((m.nope, m.v_dim), 1)
        self._up_k, self._up_v = up_k * m.scale, up_v.mT.contiguous()
        self.out = columns(m.o_proj.weight)
        self._indexer = m.indexer
        if m.indexer is not None:
            self._index_q = columns(m.indexer.wq_b.weight, m.q_a_layernorm.weight)
            self._index_w = columns(m.indexer.weights_proj.weight * m.indexer.heads**-0.5, norm)

    def bind(self, space: Space, state: DecodeState, place: int) -> Mixer:
        """For rows 0..n-1 of the state, whose caches grow by a token."""
        n, heads, indexer = space.n, self._heads, self._indexer
        projected = space("in", self._in.shape[1])
        q_raw, latent, gate, *keys = projected.split(self._split, 1)
        c = latent[:, : self._rank]
        q_latent, q_flat = space("q latent", q_raw.shape[1]), space("q", self._q.shape[1])
        q_heads = q_flat.view(n, heads, -1)
        q_nope, q_pe = q_heads[:, :, : self._nope].transpose(0, 1), q_heads[:, :, self._nope :]
        opened, y = space("gate", gate.shape[1]), space("y", gate.shape[1])
        opened_heads, y_heads = opened.view(n, heads, -1), y.view(n, heads, -1)
        cache, seen_all = state.latent[place].flatten(0, 1), state.latent[place, :n]
        index = None if state.index is None else state.index[place]

        def run(x: Tensor, where: _Where) -> Tensor:
            torch.mm(x, self._in, out=projected)
            torch.mul(q_raw, self._q_inverse(q_raw), out=q_latent)
            c.mul_(self._kv_inverse(c)).mul_(self._kv_weight)
            cache.index_copy_(0, where.at, latent)
            mask = where.mask
            if indexer is not None and index is not None:
                index.flatten(0, 1).index_copy_(0, where.at, indexer.k_norm(keys[0]))
                if where.longest > indexer.topk:
                    mask = self._sparse(x, q_latent, index[:n, : where.longest], where)
                if where.picks is not None:
                    where.picks[:, place] = picks_of(mask.squeeze(1) == 0, indexer.topk)
            seen = seen_all[:, : where.longest]
            torch.mm(q_latent, self._q, out=q_flat)
            q = torch.cat((torch.bmm(q_nope, self._up_k).transpose(0, 1), q_pe), 2)
            if where.tiles:
                mixed = self._in_tiles(q, seen, mask, where.tiles)
            else:
                p = torch.softmax(torch.bmm(q, seen.mT).add_(mask), 2)
                mixed = torch.bmm(p, seen[:, :, : self._rank])
            if where.far and indexer is not None and index is not None:
                chosen = None if where.picks is None else where.picks[:, place]
                read_rows(indexer, self._index_queries(x, q_latent), index, q, seen_all, where.far, mixed, chosen)
            o = torch.bmm(mixed.transpose(0, 1), self._up_v).transpose(0, 1)
            torch.sigmoid(gate, out=opened)
            torch.mul(opened_heads, o, out=y_heads)
            return y

        return run

    def _in_tiles(self, q: Tensor, seen: Tensor, mask: Tensor, tiles: list[slice]) -> Tensor:
        """softmax(q seen^T + mask) seen, summed tile by tile: one of hidden keys alone adds nothing but zeros.

        q [n, heads, D], seen [n, longest, D], mask [n, 1, longest] -> [n, heads, rank].
        """
        scores = [torch.bmm(q, seen[:, at].mT).add_(mask[:, :, at]) for at in tiles]
        top = torch.stack([s.amax(2, keepdim=True) for s in scores]).amax(0)
        total, mixed = torch.zeros_like(top), q.new_zeros(*q.shape[:2], self._rank)
        for at, s in zip(tiles, scores, strict=True):
            p = s.sub_(top).exp_()
            total += p.sum(2, keepdim=True)
            mixed += torch.bmm(p, seen[:, at, : self._rank])
        return mixed.div_(total)

    def _index_queries(self, x: Tensor, q_latent: Tensor) -> tuple[Tensor, Tensor]:
        """The indexer's queries [n, 1, J, d] and head weights [n, 1, J]."""
        assert self._indexer is not None
        q = torch.mm(q_latent, self._index_q).view(len(x), 1, self._indexer.heads, self._indexer.head_dim)
        return q, torch.mm(x, self._index_w).unsqueeze(1)

    def _sparse(self, x: Tensor, q_latent: Tensor, keys: Tensor, where: _Where) -> Tensor:
        """The mask [n, 1, longest] of the keys that the indexer lets through."""
        indexer = self._indexer
        assert indexer is not None
        q, weights = self._index_queries(x, q_latent)
        parts = [keys[:, at] for at in where.tiles] or [keys]
        scores = torch.cat([indexer.scores(q, weights, part) for part in parts], 2)
        visible = select_topk(scores, ~where.hidden, indexer.topk)
        return torch.zeros_like(scores).masked_fill_(~visible, -torch.inf)
