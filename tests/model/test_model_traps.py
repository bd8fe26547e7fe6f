"""The silent traps: mistakes that raise nothing and train to something. Each is planted once and must be seen.

A trap has a check, which holds on the model as it is, and a plant, which breaks the model as the mistake would. Most
checks are the oracle's: forward and token-by-token decode against the equations written a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from exact_cases import PLAIN, tokens
from k3_oracle import Oracle, randomised
from torch import Tensor

import model.activations
import model.attn_res
import model.kda
import model.mla
import model.norms
import model.step
from kernels.kda import TILE, Tiles, kda_chunk
from model.attn_res import BlockBank
from model.cache import DecodeState
from model.config import K3Config
from model.decoder import Policy
from model.dsa import Indexer
from model.kda import KDA
from model.mla import MLA
from model.moe import LatentMoE, Router

CONFIGS = {
    "odd": K3Config.preset("tiny_odd"),
    "tiny": K3Config.preset("tiny"),
    # A latent as wide as the hidden state, so that a router on the wrong one raises nothing.
    "wide_latent": replace(K3Config.preset("tiny"), routed_expert_hidden_size=64),
}
STEPS, START = 18, 11
"""Tokens of the sequence; those of them that are prefilled where the rest is decoded."""

Plant = Callable[[Policy, pytest.MonkeyPatch], None]


def tied(weights: dict[str, Tensor]) -> None:
    """All index scores 0, and every expert's score equal: only the tie rule decides."""
    for name, w in weights.items():
        if name.endswith(("weights_proj.weight", "block_sparse_moe.gate.weight", "e_score_correction_bias")):
            w.zero_()


def build(config: str, ties: bool = False) -> Policy:
    policy = randomised(Policy(CONFIGS[config], PLAIN).to(torch.float64))
    if ties:
        weights = {k: v.clone() for k, v in policy.named_weights()}
        tied(weights)
        policy.load_named_weights(weights)
    return policy


@cache
def truth(config: str, ties: bool) -> Tensor:
    """The oracle's logits [T, V]."""
    policy = build(config, ties)
    return Oracle(policy.config, dict(policy.named_weights())).logits(tokens(1, STEPS)[0].tolist())


def forward_is_right(policy: Policy, want: Tensor) -> bool:
    with torch.no_grad():
        got = policy.logits(policy(tokens(1, STEPS), torch.tensor([STEPS])).hidden)[0]
    return bool((got - want).abs().max() < 1e-9)


def decode_is_right(policy: Policy, want: Tensor) -> bool:
    ids, state = tokens(1, STEPS), policy.new_state(1, STEPS)
    last, _ = policy.prefill(ids[:, :START], torch.tensor([START]), state, [0])
    rows = [last] + [policy.decode(ids[:, t], state, 1)[0] for t in range(START, STEPS)]
    return bool((torch.cat(rows) - want[START - 1 :]).abs().max() < 1e-9)


@dataclass(frozen=True)
class Trap:
    """A mistake; `paths`: where it must show (f: the forward, d: decoding)."""

    plant: Plant
    paths: str = "f"
    config: str = "odd"
    ties: bool = False


def each(policy: Policy, kind: type) -> list:
    return [m for m in policy.modules() if isinstance(m, kind)]


def weights(change: Callable[[Policy], None]) -> Plant:
    """A plant that reads the right numbers from the wrong place: the weights move, the code stays."""

    def plant(policy: Policy, _: pytest.MonkeyPatch) -> None:
        with torch.no_grad():
            change(policy)
        policy.refresh_quantized()

    return plant


def code(owner: object, name: str, make: Callable[[Callable], Callable]) -> Plant:
    """A plant that replaces owner.name by make(what it was)."""

    def plant(_: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(owner, name, make(getattr(owner, name)))

    return plant


# --- KDA ----------------------------------------------------------------------------------------------------------


def a_log_from_the_end(policy: Policy) -> None:
    for m in each(policy, KDA):
        m.A_log.copy_(m.A_log.roll(m.heads - len(m.A_log)))  # what is read becomes the stored tail


def g_proj_by_position(policy: Policy) -> None:
    """The two kinds of g_proj have one shape here: exchanged, as by a loader that counts them."""
    a, b = each(policy, KDA)[0].g_proj.weight, each(policy, MLA)[0].g_proj.weight
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)


def reverse_taps(policy: Policy) -> None:
    for m in each(policy, KDA):
        for conv in (m.q_conv1d, m.k_conv1d, m.v_conv1d):
            conv.weight.copy_(conv.weight.flip(-1))


def recurrence(read_before: bool = False, decay_after: bool = False, transposed: bool = False) -> Callable:
    """kda_chunk of one row, step by step, with one of the mistakes."""

    def run(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, tiles: Tiles, state: Tensor | None = None):
        q, k, v, g = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v, g))  # [T, H, .]
        b = beta.transpose(1, 2).flatten(0, 1).unsqueeze(-1)
        s = k.new_zeros(*k.shape[1:], v.shape[-1]) if state is None else state[0]
        out = []
        for t in range(len(k)):
            turned = lambda s: s.mT if transposed else s
            if read_before:
                out.append((turned(s) * q[t].unsqueeze(-1)).sum(-2))
            decay = g[t].exp().unsqueeze(-1)
            s = s if decay_after else s * decay
            s = s + k[t].unsqueeze(-1) * (b[t] * (v[t] - (s * k[t].unsqueeze(-1)).sum(-2))).unsqueeze(-2)
            s = s * decay if decay_after else s
            if not read_before:
                out.append((turned(s) * q[t].unsqueeze(-1)).sum(-2))
        o = torch.stack(out).unflatten(0, (-1, TILE)).transpose(1, 2)
        return o, s.unsqueeze(0)

    return run


def value_first_state(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that another engine filled, value axis first: K = V, nothing complains."""
    whole = Policy.prefill

    def prefill(self: Policy, ids: Tensor, lengths: Tensor, state: DecodeState, rows: list[int]):
        out = whole(self, ids, lengths, state, rows)
        state.recurrent.copy_(state.recurrent.mT.clone())
        return out

    monkeypatch.setattr(Policy, "prefill", prefill)


def softplus_gate(old: Callable) -> Callable:
    """Kimi Linear's older gate, -exp(A_log) softplus(z), where the bounded one is meant."""

    def decay(self: KDA, low: Tensor):
        rate = self.A_log[: self.heads].exp().repeat_interleave(self.head_dim)
        z = torch.logit((old(self, low) / self.lower_bound).clamp(1e-12, 1 - 1e-12)) / rate
        return -rate * torch.nn.functional.softplus(z)

    return decay


# --- depth, norms, activations ------------------------------------------------------------------------------------


def scaled_query(old: Callable) -> Callable:
    return lambda sources, key, query, weight, eps: old(sources, key, query * query.shape[-1] ** -0.5, weight, eps)


def normed_values(old: Callable) -> Callable:
    def mix(sources: list[Tensor], key: Tensor, query: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed = [v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps) for v in sources]
        return old(normed, key, query, weight, eps)

    return mix


def filed_before_the_mix(_: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A boundary's mix sees the running sum twice: as the block just filed, and as itself."""
    layer = {"next": 0}

    def init(self: BlockBank, embedded: Tensor, block_size: int) -> None:
        self.blocks, self.partial, self.block_size = [embedded], embedded, block_size
        layer["next"] = 1

    def add_attention(self: BlockBank, i: int, out: Tensor) -> None:
        self.partial = out if i % self.block_size == 0 else self.partial + out

    def add_ffn(self: BlockBank, out: Tensor) -> None:
        self.partial = self.partial + out
        if layer["next"] % self.block_size == 0 and layer["next"] < 9:
            self.blocks.append(self.partial)
        layer["next"] += 1

    monkeypatch.setattr(BlockBank, "__init__", init)
    monkeypatch.setattr(BlockBank, "add_attention", add_attention)
    monkeypatch.setattr(BlockBank, "add_ffn", add_ffn)


def sum_goes_on(_: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that begins with the old running sum: a plain residual stream."""

    def add_attention(self: BlockBank, i: int, out: Tensor) -> None:
        if i % self.block_size == 0:
            self.blocks.append(self.partial)
        self.partial = self.partial + out

    monkeypatch.setattr(BlockBank, "add_attention", add_attention)


def swapped_betas(old: Callable) -> Callable:
    return lambda gate_up, beta, linear_beta: old(gate_up, linear_beta, beta)


def capped_sigmoid(_: Callable) -> Callable:
    def situ(gate_up: Tensor, beta: float, linear_beta: float) -> Tensor:
        g, u = gate_up.chunk(2, -1)
        cap = beta * torch.tanh(g / beta)
        return cap * torch.sigmoid(cap) * linear_beta * torch.tanh(u / linear_beta)

    return situ


def one_plus_weight(old: Callable) -> Callable:
    return lambda x, weight, eps: old(x, 1 + weight, eps)


# --- attention ----------------------------------------------------------------------------------------------------


def normed_k_pe(old: Callable) -> Callable:
    def project(self: MLA, x: Tensor):
        q_latent, q, latent, gate = old(self, x)
        c, k_pe = latent.split((self.kv_rank, self.pe), -1)
        k_pe = k_pe * torch.rsqrt(k_pe.square().mean(-1, keepdim=True) + 1e-5)
        return q_latent, q, torch.cat((c, k_pe), -1), gate

    return project


def scale_of_nope_dims(policy: Policy) -> None:
    for m in each(policy, MLA):
        m.scale = m.nope**-0.5


def raw_latent_in_indexer(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The indexer reads q_a before its norm's weight, not the latent that the attention reads."""
    queries = Indexer.queries
    norms = {id(m.indexer): m.q_a_layernorm.weight for m in each(policy, MLA)}
    monkeypatch.setattr(Indexer, "queries", lambda self, x, latent: queries(self, x, latent / norms[id(self)]))


def no_bias_in_k_norm(policy: Policy) -> None:
    for m in each(policy, Indexer):
        m.k_norm.bias.zero_()


def rms_in_k_norm(_: Callable) -> Callable:
    def keys(self: Indexer, x: Tensor) -> Tensor:
        k = self.wk(x)
        return k * torch.rsqrt(k.square().mean(-1, keepdim=True) + 1e-6) * self.k_norm.weight + self.k_norm.bias

    return keys


def last_of_equals(old: Callable) -> Callable:
    """Ties to the larger index, as some device's top-k may break them."""
    return lambda scores, visible, k: old(scores.flip(-1), visible.flip(-1), k).flip(-1)


# --- experts ------------------------------------------------------------------------------------------------------


def router_on_latent(_: Callable) -> Callable:
    def forward(self: LatentMoE, x: Tensor, routes: Tensor | None = None, copies: Tensor | None = None):
        z = self.routed_expert_down_proj(x)
        weights, chosen = self.gate(z, routes, copies)
        u = self.experts(z, weights, chosen)
        return self.routed_expert_up_proj(self.routed_expert_norm(u)) + self.shared_experts(x), chosen

    return forward


def norm_before_the_sum(_: Callable) -> Callable:
    def forward(self: LatentMoE, x: Tensor, routes: Tensor | None = None, copies: Tensor | None = None):
        weights, chosen = self.gate(x, routes, copies)
        z, one = self.routed_expert_down_proj(x), torch.ones_like(weights[:, :1])
        u = sum(
            weights[:, i : i + 1] * self.routed_expert_norm(self.experts(z, one, chosen[:, i : i + 1]))
            for i in range(chosen.shape[1])
        )
        return self.routed_expert_up_proj(u) + self.shared_experts(x), chosen

    return forward


def route(weigh: Callable[[Tensor, Tensor], Tensor] = lambda s, b: s, last: bool = False) -> Callable:
    """A router whose weights are of weigh(scores, biased), or whose ties go to the larger index."""

    def make(_: Callable) -> Callable:
        def forward(self: Router, x: Tensor, routes: Tensor | None = None, copies: Tensor | None = None):
            scores = torch.sigmoid(x @ self.weight.mT)
            biased = scores + self.e_score_correction_bias
            order = torch.sort(biased.flip(-1) if last else biased, dim=-1, descending=True, stable=True).indices
            chosen = (biased.shape[-1] - 1 - order if last else order)[:, : self.k]
            picked = weigh(scores, biased).gather(1, chosen)
            return picked / picked.sum(-1, keepdim=True) * self.factor, chosen

        return forward

    return make


def gate_and_up_swapped(policy: Policy) -> None:
    for m in each(policy, LatentMoE):
        kept = m.experts.w1.clone()
        m.experts.w1.copy_(m.experts.w3)
        m.experts.w3.copy_(kept)


TRAPS = {
    "A_log: its last heads instead of its first": Trap(weights(a_log_from_the_end), "fd"),
    "g_proj given out by position instead of by layer type": Trap(weights(g_proj_by_position), "fd", "tiny"),
    "convolution taps newest first": Trap(weights(reverse_taps), "fd"),
    "S read before the update": Trap(code(model.kda, "kda_chunk", lambda _: recurrence(read_before=True))),
    "decay after the delta": Trap(code(model.kda, "kda_chunk", lambda _: recurrence(decay_after=True))),
    "S read along its other axis": Trap(code(model.kda, "kda_chunk", lambda _: recurrence(transposed=True))),
    "S value-first in the decode state": Trap(value_first_state, "d"),
    "the older softplus gate": Trap(code(KDA, "_decay", softplus_gate)),
    "1/sqrt(d) in the depth mix": Trap(code(model.attn_res, "mix_norm", scaled_query)),
    "normalised values in the depth mix": Trap(code(model.attn_res, "mix_norm", normed_values)),
    "blocks filed before the source list": Trap(filed_before_the_mix),
    "a running sum that does not restart": Trap(sum_goes_on),
    "SiTU's betas in the other order": Trap(code(model.activations, "situ_glu", swapped_betas)),
    "sigmoid of the capped gate": Trap(code(model.activations, "situ_glu", capped_sigmoid)),
    "1 + weight in RMSNorm": Trap(code(model.norms, "rms_norm", one_plus_weight)),
    "k_pe normalised": Trap(code(MLA, "_project", normed_k_pe)),
    "scores scaled by the nope dims alone": Trap(weights(scale_of_nope_dims), "fd"),
    "another query latent in the indexer": Trap(raw_latent_in_indexer),
    "k_norm without its bias": Trap(weights(no_bias_in_k_norm), "fd"),
    "k_norm as an RMSNorm": Trap(code(Indexer, "keys", rms_in_k_norm)),
    "top-k ties to the larger key": Trap(code(model.mla, "select_topk", last_of_equals), ties=True),
    "top-k ties to the larger key, in decoding": Trap(code(model.step, "select_topk", last_of_equals), "d", ties=True),
    "expert ties to the larger index": Trap(code(Router, "forward", route(last=True)), ties=True),
    "the router on the latent": Trap(code(LatentMoE, "forward", router_on_latent), config="wide_latent"),
    "the norm before the experts' sum": Trap(code(LatentMoE, "forward", norm_before_the_sum)),
    "weights of the biased scores": Trap(code(Router, "forward", route(lambda s, b: b))),
    "experts' gate and up exchanged": Trap(weights(gate_and_up_swapped), "fd"),
}


@pytest.mark.parametrize("name", TRAPS)
def test_a_planted_trap_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = TRAPS[name]
    checks = {"f": forward_is_right, "d": decode_is_right}
    policy, want = build(trap.config, trap.ties), truth(trap.config, trap.ties)
    assert forward_is_right(policy, want) and decode_is_right(policy, want)
    trap.plant(policy, monkeypatch)
    for path in trap.paths:
        assert not checks[path](policy, want), path


# --- what no logit shows ------------------------------------------------------------------------------------------


def layer_types_are_one_based(config: K3Config) -> bool:
    return [i for i, kind in enumerate(config.layer_types) if kind == "full"] == [*range(3, 92, 4), 92]


def test_layer_lists_read_as_0_based_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    config = K3Config.preset("k3")
    assert layer_types_are_one_based(config)
    full = set(config.linear_attn_config.full_attn_layers)
    wrong = property(lambda self: ["full" if i in full else "kda" for i in range(self.num_hidden_layers)])
    monkeypatch.setattr(K3Config, "layer_types", wrong)
    assert not layer_types_are_one_based(config)


def index_scores_are_right(policy: Policy) -> bool:
    """A common factor selects the same keys, but is another softmax in the indexer's loss."""
    m = each(policy, MLA)[0]
    w = dict(policy.named_weights())
    name = next(n for n in w if n.endswith("indexer.wk.weight")).removesuffix("wk.weight")
    x = torch.randn(12, policy.config.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cq = m._project(x)[0].detach()
    oracle = Oracle(policy.config, w)
    q, head = m.indexer.queries(x, cq)
    got = m.indexer.scores(q.unsqueeze(0), head.unsqueeze(0), m.indexer.keys(x).unsqueeze(0))[0, -1]
    return torch.allclose(got, torch.tensor(oracle._index_scores(name, x, cq, 11), dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("lost", ["heads", "head_dim"])
def test_a_lost_scale_of_the_index_scores_is_seen(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build("odd")
    assert index_scores_are_right(policy)
    scores = Indexer.scores
    factor = CONFIGS["odd"].index_n_heads ** 0.5 if lost == "heads" else CONFIGS["odd"].index_head_dim ** 0.5
    monkeypatch.setattr(Indexer, "scores", lambda self, q, w, keys: scores(self, q, w, keys) * factor)
    assert not index_scores_are_right(policy)


def weights_sum_to_one(policy: Policy) -> bool:
    """The norm behind the experts takes a common factor out again: only the weights themselves show it."""
    router = next(iter(policy.routers()))
    x = torch.randn(20, policy.config.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return torch.allclose(router(x)[0].sum(-1), torch.ones(20, dtype=torch.float64))


def test_weights_that_are_not_renormalised_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build("odd")
    assert weights_sum_to_one(policy)
    forward = Router.forward

    def raw(self: Router, x: Tensor, routes: Tensor | None = None, copies: Tensor | None = None):
        chosen = forward(self, x, routes, copies)[1]
        return torch.sigmoid(x @ self.weight.mT).gather(1, chosen), chosen

    monkeypatch.setattr(Router, "forward", raw)
    assert not weights_sum_to_one(policy)


def chunk_of_64(q: Tensor, k: Tensor, g: Tensor, masked_before: bool) -> Tensor:
    """q . k under the decay between tokens, [T, T]; exp of the upper triangle is up to e^(5 x 63)."""
    total = g.cumsum(0)
    apart = total.unsqueeze(1) - total.unsqueeze(0)  # [T, T, K]
    lower = torch.ones(len(k), len(k), dtype=torch.bool).tril().unsqueeze(-1)
    if masked_before:
        apart = apart.masked_fill(~lower, -torch.inf)
    return (q.unsqueeze(1) * k.unsqueeze(0) * apart.exp()).sum(-1).masked_fill(~lower.squeeze(-1), 0.0)


def gradients_at_the_bound_are_finite(product: Callable[[Tensor, Tensor, Tensor], Tensor]) -> bool:
    gen = torch.Generator().manual_seed(0)
    q, k, g = (torch.randn(64, 8, generator=gen) for _ in range(3))
    parts = [q.requires_grad_(), k.requires_grad_(), torch.full_like(g, -5.0).requires_grad_()]
    out = product(*parts)
    assert out.isfinite().all()  # the forward never shows it
    return all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), parts))


def test_masking_after_the_exp_is_seen() -> None:
    assert gradients_at_the_bound_are_finite(lambda q, k, g: chunk_of_64(q, k, g, masked_before=True))
    assert not gradients_at_the_bound_are_finite(lambda q, k, g: chunk_of_64(q, k, g, masked_before=False))

    def kernel(q: Tensor, k: Tensor, g: Tensor) -> Tensor:
        q, k, g = (x.view(4, 1, TILE, 8) for x in (q, k, g))
        tiles = Tiles(1, [1] * 4, torch.arange(4), torch.tensor([4]))
        return kda_chunk(q, k, torch.ones_like(k), g, torch.full((4, 1, TILE), 0.5), tiles)[0]

    assert gradients_at_the_bound_are_finite(kernel)


def mtp_reads_in_order(policy: Policy) -> bool:
    """eh_proj's first columns belong to the embedding, its last to the hidden state."""
    from model.packing import Packing

    layer = policy.model.mtp
    with torch.no_grad():
        layer.eh_proj.weight[:, 56:] = 0
        gen = torch.Generator().manual_seed(0)
        hidden, embedded = torch.randn(2, 6, 56, generator=gen, dtype=torch.float64)
        packing = Packing(torch.tensor([6]), 6)
        return torch.equal(layer(hidden, embedded, packing), layer(hidden + 1, embedded, packing))


def test_the_mtp_inputs_in_the_other_order_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIGS["odd"], num_nextn_predict_layers=1)
    policy = randomised(Policy(config, PLAIN).to(torch.float64))
    assert mtp_reads_in_order(policy)
    layer = policy.model.mtp
    project = layer.eh_proj.forward
    monkeypatch.setattr(layer.eh_proj, "forward", lambda x: project(torch.cat(x.chunk(2, -1)[::-1], -1)))
    assert not mtp_reads_in_order(policy)
