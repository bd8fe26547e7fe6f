"""One decode step of all rows at once, laid out for few operations: at this size the calls cost more than the numbers.

What can be folded into a matrix is: the weight of a norm and constant factors into a projection beside them,
projections of one input into one. Scalars are tensors, which torch need not convert. A row's bits do not depend on the
other rows if their number is a multiple of 16: no operation mixes rows, and whether all experts are run on all rows is
decided by the sizes of the model alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.kda import kda_step_
from kernels.mx import RoundMxfp8
from model.activations import SituMLP
from model.cache import DecodeState
from model.dsa import select_topk
from model.kda import KDA
from model.mla import MLA
from model.moe import DENSE_MACS, Experts, LatentMoE

if TYPE_CHECKING:
    from model.decoder import DecoderLayer, Policy

_ROWS = 16
"""Rows of an engine's smallest step: if running all experts on all rows pays there (DENSE_MACS), it is always done."""


@dataclass(frozen=True, eq=False)
class _Where:
    """Where the tokens of one step go, and what they see."""

    n: int
    longest: int
    """Tokens of the longest row, the new one included."""
    at: Tensor
    """Long [n]: position of each new token in the flattened [capacity, max_len]."""
    hidden: Tensor
    """Bool [n, 1, longest]: what lies beyond a row's new token."""
    mask: Tensor
    """[n, 1, longest]: the same as 0 and -inf."""


class DecodeStep:
    """The folded weights of a policy (float32 or float64), and the step on them."""

    def __init__(self, policy: Policy) -> None:
        body, config = policy.model, policy.config
        layers = list(cast("Iterable[DecoderLayer]", body.layers))
        self._embedding = body.embed_tokens.weight.detach()
        self._block, self._depth = config.attn_res_block_size, -(-len(layers) // config.attn_res_block_size) + 1
        mixes = [mix for layer in layers for mix in (layer.attention_mix(), layer.ffn_mix())]
        mixes.append((body.output_attn_res_norm.weight, body.output_attn_res_proj.weight, body.norm.weight))
        self._mixes = [_DepthMix(key, query, config.rms_norm_eps) for key, query, _ in mixes]
        self._mixers = [_mixer(x.self_attn, x.input_layernorm.weight) for x in layers]
        self._ffns = [_ffn(x.moe or x.mlp, x.post_attention_layernorm.weight) for x in layers]
        self._slots = policy._slot
        self._head = _columns(policy.lm_head.weight, body.norm.weight)
        self._zero, self._never = self._embedding.new_tensor(0.0), self._embedding.new_tensor(-torch.inf)
        self._count = torch.arange(0, device=policy.device)

    def __call__(self, tokens: Tensor, state: DecodeState, n: int) -> tuple[Tensor, Tensor]:
        """See `Policy.decode`."""
        where = self._where(state, n)
        bank = self._embedding.new_empty(self._depth, n, self._embedding.shape[1])
        slots = bank.unbind(0)
        torch.index_select(self._embedding, 0, tokens, out=slots[0])
        top, sources = 0, bank[:1]
        chosen = []
        for i, (mixer, ffn) in enumerate(zip(self._mixers, self._ffns, strict=True)):
            x = self._mixes[2 * i](sources)
            fresh = i % self._block == 0  # the running sum is filed, and begins anew with what the mixer gives
            if fresh:
                top += 1
                sources = bank[: top + 1]
            out, weight = mixer(x, state, self._slots[i], where)
            if fresh:
                torch.mm(out, weight, out=slots[top])
            else:
                slots[top].addmm_(out, weight)
            routes = ffn(self._mixes[2 * i + 1](sources), slots[top])
            if routes is not None:
                chosen.append(routes)
        state.lengths[:n] += 1
        return torch.mm(self._mixes[-1](sources), self._head), torch.stack(chosen, 1)

    def _where(self, state: DecodeState, n: int) -> _Where:
        host = state.lengths[:n]
        longest = int(host.max()) + 1
        if longest > state.max_len:
            raise ValueError(f"a row is full: max_len {state.max_len}")
        if len(self._count) < max(n, longest):
            self._count = torch.arange(max(state.capacity, state.max_len), device=self._count.device)
        lengths = host.to(self._count.device)
        hidden = (self._count[:longest] > lengths.unsqueeze(1)).unsqueeze(1)
        mask = torch.where(hidden, self._never, self._zero)
        return _Where(n, longest, torch.add(lengths, self._count[:n], alpha=state.max_len), hidden, mask)


def _columns(weight: Tensor, norm: Tensor | None = None) -> Tensor:
    """weight [out, in] (of a projection that reads a norm's output) as [in, out], the norm's weight [in] folded in."""
    weight = weight.detach()
    return (weight if norm is None else weight * norm.detach()).mT.contiguous()


class _Inverse:
    """1 / sqrt(mean of squares + eps) over the last axis, kept: [..., 1]."""

    def __init__(self, like: Tensor, size: int, eps: float) -> None:
        self._eps, self._share = like.new_tensor(eps), 1.0 / size

    def __call__(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.addcmul(self._eps, norm, norm, value=self._share).rsqrt_()


class _DepthMix:
    """`kernels.attn_res.mix_norm` without the last weight."""

    def __init__(self, key: Tensor, query: Tensor, eps: float) -> None:
        self._probe = key.detach() * query.detach().view(-1)
        self._inverse = _Inverse(key, key.shape[0], eps)

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
        self._in = _columns(torch.cat([p.weight for p in inputs]), norm)
        self._split = [3 * m.width, m.width + m.heads, m.head_dim]
        rate = m.A_log.detach()[: m.heads].clamp(max=20.0).exp().repeat_interleave(m.head_dim)
        self._low, self._bias = _columns(m.f_b_proj.weight * rate.unsqueeze(1)), m.dt_bias.detach() * rate
        self._bound = norm.new_tensor(m.lower_bound)
        taps = torch.cat([c.weight for c in (m.q_conv1d, m.k_conv1d, m.v_conv1d)]).detach().squeeze(1)
        self._taps = taps.mT.contiguous().unbind(0)
        self._unit = _Inverse(norm, 1, 1e-6)
        # q is not scaled by 1 / sqrt(size): the head norm takes every factor out, but for its eps.
        self._inverse = _Inverse(norm, m.head_dim, m.eps * m.head_dim)
        self._out = _columns(m.o_proj.weight, m.o_norm.weight.repeat(m.heads))

    def __call__(self, x: Tensor, state: DecodeState, slot: int, where: _Where) -> tuple[Tensor, Tensor]:
        """x [n, H] -> (gated heads [n, D], output matrix [D, H]); the state of rows 0..n-1 is updated."""
        n, heads, size = where.n, self._heads, self._size
        inputs, gates, low = torch.mm(x, self._in).split(self._split, 1)
        gate, beta = gates.sigmoid().split((self._width, heads), 1)
        decay = torch.addmm(self._bias, low, self._low).sigmoid_().mul_(self._bound).exp_()
        qkv = self._convolve(inputs, state.conv[slot, :n].unbind(1)).view(n, 3, heads, size)
        qk, v = qkv[:, :2], qkv[:, 2]
        unit = qk.new_empty(n, heads, 2, size)
        torch.mul(qk, self._unit(qk), out=unit.transpose(1, 2))
        o = kda_step_(unit, v, decay.view(n, heads, size), beta, state.recurrent[slot, :n])
        y = o.mul_(self._inverse(o)).mul_(gate.view(n, heads, size))
        return y.view(n, self._width), self._out

    def _convolve(self, inputs: Tensor, past: tuple[Tensor, ...]) -> Tensor:
        """inputs [n, C] after `past`, W-1 tensors [n, C], oldest first, which move on by one."""
        acc = inputs * self._taps[-1]
        for old, tap in zip(past, self._taps[:-1], strict=True):
            acc.addcmul_(old, tap)
        for old, newer in zip(past, (*past[1:], inputs), strict=True):
            old.copy_(newer)
        return F.silu(acc, inplace=True)


class _MLAStep:
    """Gated MLA or DSA for one token of n sequences, absorbed: scores are taken against the cached latents."""

    def __init__(self, m: MLA, norm: Tensor) -> None:
        self._heads, self._sizes, self._rank = m.heads, [m.nope, m.pe], m.kv_rank
        keys = [] if m.indexer is None else [m.indexer.wk.weight]
        inputs = (m.q_a_proj.weight, m.kv_a_proj_with_mqa.weight, m.g_proj.weight, *keys)
        self._in = _columns(torch.cat(inputs), norm)
        self._split = [w.shape[0] for w in inputs]
        self._q_inverse = _Inverse(norm, m.q_rank, m.q_a_layernorm.eps)
        self._kv_inverse = _Inverse(norm, m.kv_rank, m.kv_a_layernorm.eps)
        self._kv_weight = m.kv_a_layernorm.weight.detach()
        q = m.q_b_proj.weight.detach().view(m.heads, m.nope + m.pe, m.q_rank).clone()
        q[:, m.nope :] *= m.scale
        self._q = _columns(q.flatten(0, 1), m.q_a_layernorm.weight)
        up_k, up_v = m.kv_b_proj.weight.detach().view(m.heads, -1, m.kv_rank).split((m.nope, m.v_dim), 1)
        self._up_k, self._up_v = up_k * m.scale, up_v.mT.contiguous()
        self._out = _columns(m.o_proj.weight)
        self._indexer = m.indexer
        if m.indexer is not None:
            self._index_q = _columns(m.indexer.wq_b.weight, m.q_a_layernorm.weight)
            self._index_w = _columns(m.indexer.weights_proj.weight * m.indexer.heads**-0.5, norm)

    def __call__(self, x: Tensor, state: DecodeState, slot: int, where: _Where) -> tuple[Tensor, Tensor]:
        """x [n, H] -> (gated heads [n, heads * v], output matrix); the caches of rows 0..n-1 grow by a token."""
        n = where.n
        q_latent, latent, gate, *keys = torch.mm(x, self._in).split(self._split, 1)
        q_latent = q_latent * self._q_inverse(q_latent)
        c = latent[:, : self._rank]
        c.mul_(self._kv_inverse(c)).mul_(self._kv_weight)
        state.latent[slot].flatten(0, 1).index_copy_(0, where.at, latent)
        mask = where.mask
        if self._indexer is not None and state.index is not None:
            state.index[slot].flatten(0, 1).index_copy_(0, where.at, self._indexer.k_norm(keys[0]))
            if where.longest > self._indexer.topk:
                mask = self._sparse(x, q_latent, state.index[slot, :n, : where.longest], where)
        seen = state.latent[slot, :n, : where.longest]
        q_nope, q_pe = torch.mm(q_latent, self._q).view(n, self._heads, -1).split(self._sizes, 2)
        q = torch.cat((torch.bmm(q_nope.transpose(0, 1), self._up_k).transpose(0, 1), q_pe), 2)
        p = torch.softmax(torch.bmm(q, seen.mT).add_(mask), 2)
        mixed = torch.bmm(p, seen[:, :, : self._rank])
        o = torch.bmm(mixed.transpose(0, 1), self._up_v).transpose(0, 1)
        y = torch.empty_like(gate, memory_format=torch.contiguous_format)
        torch.mul(gate.sigmoid().view(o.shape), o, out=y.view(o.shape))
        return y, self._out

    def _sparse(self, x: Tensor, q_latent: Tensor, keys: Tensor, where: _Where) -> Tensor:
        """The mask [n, 1, longest] of the keys that the indexer lets through."""
        indexer = self._indexer
        assert indexer is not None
        q = torch.mm(q_latent, self._index_q).view(where.n, 1, indexer.heads, indexer.head_dim)
        scores = indexer.scores(q, torch.mm(x, self._index_w).unsqueeze(1), keys)
        visible = select_topk(scores, ~where.hidden, indexer.topk)
        return torch.zeros_like(scores).masked_fill_(~visible, -torch.inf)


class _Situ:
    """SiTU-GLU, but for its constant factor: one matrix gives [u / linear_beta | g / beta | g]."""

    def __init__(self, gate: Tensor, up: Tensor, betas: tuple[float, float]) -> None:
        self.weight = torch.cat((up / betas[1], gate / betas[0], gate))
        """[3 I, in]."""
        self.factor, self.width = betas[0] * betas[1], up.shape[0]

    def __call__(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """y [n, 3 I], overwritten -> (gate, up), each [n, I], whose product it is."""
        y.narrow(1, 0, 2 * self.width).tanh_()
        return F.glu(y.narrow(1, self.width, 2 * self.width), 1), y.narrow(1, 0, self.width)


def _ffn(m: nn.Module, norm: Tensor) -> Callable[[Tensor, Tensor], Tensor | None]:
    """What adds a layer's feed-forward part to the running sum: (x [n, H], sum [n, H]) -> chosen experts or None."""
    if isinstance(m, SituMLP):
        return _MLPStep(m, norm)
    moe = cast(LatentMoE, m)
    experts = moe.experts
    if isinstance(experts, Experts) and 2 * _ROWS * experts.w1.numel() <= DENSE_MACS[norm.device.type == "cpu"]:
        return _MoEStep(moe, experts, norm)
    return partial(_moe, moe, norm.detach())


def _moe(m: LatentMoE, norm: Tensor, x: Tensor, total: Tensor) -> Tensor:
    y, chosen = m(x * norm)
    total += y
    return chosen


class _MLPStep:
    """The dense layer."""

    def __init__(self, m: SituMLP, norm: Tensor) -> None:
        self._situ = _Situ(m.gate_proj.weight.detach(), m.up_proj.weight.detach(), m.betas)
        self._in = _columns(self._situ.weight, norm)
        self._out = _columns(m.down_proj.weight * self._situ.factor)

    def __call__(self, x: Tensor, total: Tensor) -> None:
        gate, up = self._situ(torch.mm(x, self._in))
        total.addmm_(gate.mul_(up), self._out)


class _MoEStep:
    """Router, all experts and the shared one, on all rows."""

    def __init__(self, m: LatentMoE, experts: Experts, norm: Tensor) -> None:
        w13, w2 = experts.gemm_weights()
        self._experts, width = w2.shape[0], w2.shape[2]
        shared = m.shared_experts
        self._shared = _Situ(shared.gate_proj.weight.detach(), shared.up_proj.weight.detach(), shared.betas)
        self._in = _columns(torch.cat((m.gate.weight, m.routed_expert_down_proj.weight, self._shared.weight)), norm)
        self._split = [self._experts, w2.shape[1], 3 * self._shared.width]
        self._bias, self._k, self._factor = m.gate.e_score_correction_bias, m.gate.k, m.gate.factor
        self._situ = _Situ(w13[:, :width].flatten(0, 1), w13[:, width:].flatten(0, 1), experts.betas)
        self._w13, self._w2 = _columns(self._situ.weight), w2.detach().mT.flatten(0, 1).contiguous()
        self._round = _rounding(experts, norm)
        self._inverse = _Inverse(norm, w2.shape[1], m.routed_expert_norm.eps)
        up = _columns(m.routed_expert_up_proj.weight, m.routed_expert_norm.weight)
        self._out = torch.cat((up, _columns(shared.down_proj.weight * self._shared.factor)))
        self._zero, self._least = norm.new_tensor(0.0), norm.new_tensor(1e-20)

    def __call__(self, x: Tensor, total: Tensor) -> Tensor:
        n = x.shape[0]
        scores, z, hidden = torch.mm(x, self._in).split(self._split, 1)
        scores = scores.sigmoid()
        order = torch.sort(scores + self._bias, dim=1, descending=True, stable=True)[1]
        chosen = order[:, : self._k]
        picked = scores.gather(1, chosen)
        weights = torch.addcdiv(self._zero, picked, picked.sum(1, keepdim=True).add_(self._least), value=self._factor)
        share = torch.zeros_like(scores).scatter_(1, chosen, weights)
        gate, up = self._situ(torch.mm(self._round(z), self._w13))
        act = torch.addcmul(self._zero, gate, up, value=self._situ.factor).view(n, self._experts, -1)
        u = torch.mm(self._round(act).mul_(share.unsqueeze(2)).flatten(1), self._w2)
        gate, up = self._shared(hidden)
        total.addmm_(torch.cat((u.mul_(self._inverse(u)), gate.mul_(up)), 1), self._out)
        return chosen


def _rounding(experts: Experts, like: Tensor) -> Callable[[Tensor], Tensor]:
    """The rounding of the experts' inputs. What goes in is bounded: normed hidden states and capped activations."""
    quant: Any = experts.quant
    if quant.activation_rounding is None:
        return lambda x: x
    if quant.expert_activations == "mxfp8" and like.dtype == torch.float32:
        return RoundMxfp8(quant.scale_rule, like.device)
    return cast(Callable[[Tensor], Tensor], quant.activation_rounding)
