"""KDA, the indexer and DSA beside transformers' own modules with the same weights: how far apart they are, in float32.

glm5_next, deepseek_v32 and glm_moe_dsa are written by others from the same papers. Where they differ from this family
(positions, low-rank output gate, no output gate), the input is chosen so that the difference is none: rotation by angle
0, a product of the two gate matrices, a gate that is half open everywhere.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from model.config import K3Config
from model.dsa import picks_of, select_topk
from model.kda import KDA
from model.mla import MLA
from model.packing import Packing

CONFIG = replace(K3Config.preset("tiny_odd"), index_n_heads=16)
"""So many heads that no score is 0 because every ReLU is: theirs break ties as torch.topk does, which is undefined."""
LA = CONFIG.linear_attn_config
GATES = {"slow": -9.0, "mixed": 0.0, "strong": 5.0, "bound": 80.0, "none": -80.0}
"""dt_bias: log-decay about -0.0006, -5..0, -4.97, exactly -5, and exactly 0 everywhere."""


def noise(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def draw(module: nn.Module, seed: int = 0) -> None:
    """Give every parameter a useful size."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            size = 0.5 if "conv" in name else (1.0 / p.shape[-1]) ** 0.5 if p.dim() > 1 else 0.3
            p.copy_(torch.randn(p.shape, generator=g) * size + float(name.endswith("norm.weight")))


def copy_into(theirs: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Fill all parameters of `theirs`, and no others, by name."""
    own = dict(theirs.named_parameters())
    assert own.keys() == tensors.keys()
    with torch.no_grad():
        for name, p in own.items():
            assert p.shape == tensors[name].shape, name
            p.copy_(tensors[name])


# --- KDA ----------------------------------------------------------------------------------------------------------


def kda_pair(decay: str, seed: int = 0) -> tuple[KDA, nn.Module]:
    """A KDA mixer of ours, and glm5_next's with the same weights."""
    from transformers.models.glm5_next import modeling_glm5_next as glm

    sizes = {"linear_num_heads": LA.num_heads, "linear_head_dim": LA.head_dim, "linear_conv_kernel_dim": 4}
    config = SimpleNamespace(
        hidden_size=CONFIG.hidden_size,
        hidden_act="silu",
        rms_norm_eps=CONFIG.rms_norm_eps,
        linear_lower_bound=LA.gate_lower_bound,
        layer_types=["linear_attention"],
        **sizes,
    )
    ours, theirs = KDA(CONFIG), glm.Glm5NextTextLinearAttention(config, 0)
    draw(ours, seed)
    low, high = (
        noise(seed + 1, LA.head_dim, CONFIG.hidden_size, scale=0.2),
        noise(seed + 2, LA.width, LA.head_dim, scale=0.3),
    )
    with torch.no_grad():
        ours.g_proj.weight.copy_(high @ low)
        ours.dt_bias.add_(GATES[decay])
    ours.refresh()
    w = dict(ours.named_parameters())
    convs = torch.cat([w[f"{n}_conv1d.weight"] for n in "qkv"])
    same = ("q_proj", "k_proj", "v_proj", "b_proj", "o_norm", "o_proj")
    copy_into(
        theirs,
        {f"{n}.weight": w[f"{n}.weight"] for n in same}
        | {"conv1d.weight": convs, "g_a_proj.weight": low, "g_b_proj.weight": high}
        | {f"forget_gate.{n}.weight": w[f"{n}.weight"] for n in ("f_a_proj", "f_b_proj")}
        | {"forget_gate.A_log": w["A_log"][: LA.num_heads], "forget_gate.dt_bias": w["dt_bias"]},
    )
    return ours, theirs


TAILS = (1, 3, 15, 16, 17, 33, 63, 64, 65, 100)
"""Rows that end in, at and behind tiles of 16 and chunks of 64."""


def largest(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Largest difference, relative to the second's largest value where that is above 1."""
    return max(float((a - b).detach().abs().max()) / max(1.0, float(b.detach().abs().max())) for a, b in pairs)


def kda_rows(decay: str, seed: int = 0) -> float:
    """One packed batch with every tail beside theirs on each row alone."""
    ours, theirs = kda_pair(decay, seed)
    x = noise(seed + 3, sum(TAILS), CONFIG.hidden_size)
    with torch.no_grad():
        got, _, _ = ours(x, Packing(torch.tensor(TAILS), max(TAILS)))
        want = torch.cat([theirs(row.unsqueeze(0))[0] for row in x.split(TAILS)])
    if want.std() < 0.05:
        raise ValueError("outputs this small show nothing")
    return float((got - want).abs().max())


def kda_neighbours(decay: str, seed: int = 0) -> tuple[float, float]:
    """The last token of the first of three packed rows moves: what that changes in the other rows, and in itself."""
    ours, _ = kda_pair(decay, seed)
    lengths = torch.tensor([37, 51, 40])
    x = noise(seed + 4, 128, CONFIG.hidden_size)
    other = x.clone()
    other[36] += 10.0
    with torch.no_grad():
        a, b = (ours(y, Packing(lengths, 51))[0] for y in (x, other))
    moved = (a - b).abs().amax(-1)
    return float(torch.cat((moved[:36], moved[37:])).max()), float(moved[36])


@dataclass(frozen=True)
class Gradients:
    """What one KDA mixer's backward pass gave."""

    finite: bool
    theirs: float
    """Largest difference from theirs, relative to the largest value of a tensor above 1."""
    exact: float
    """The same from our mixer in float64."""
    theirs_exact: float
    """How far theirs is from it, in the tensors that both have: what float32 makes of these inputs."""
    flat: float
    """Largest |gradient| of dt_bias: zero where the gate is at one of its ends."""
    unused: float
    """Largest |gradient| of the A_log entries that no head has."""


def kda_gradients(decay: str, seed: int = 0) -> Gradients:
    """A row of 70 under a random linear loss."""
    ours, theirs = kda_pair(decay, seed)
    x, weight = noise(seed + 5, 70, CONFIG.hidden_size), noise(seed + 6, 70, CONFIG.hidden_size)
    grads = []
    for run in (lambda y: ours(y, Packing(torch.tensor([70]), 70))[0], lambda y: theirs(y.unsqueeze(0))[0]):
        y = x.clone().requires_grad_()
        (run(y) * weight).sum().backward()
        grads.append(y.grad)
    a, b = dict(ours.named_parameters()), dict(theirs.named_parameters())
    shared = {f"{n}.weight": f"{n}.weight" for n in ("q_proj", "k_proj", "v_proj", "b_proj", "o_norm", "o_proj")}
    shared |= {n: f"forget_gate.{n}" for n in ("dt_bias", "f_a_proj.weight", "f_b_proj.weight")}
    both = [(grads[0], grads[1])] + [(a[m].grad, b[t].grad) for m, t in shared.items()]
    both.append((a["A_log"].grad[: LA.num_heads], b["forget_gate.A_log"].grad))
    exact = copy.deepcopy(ours).double()
    exact.refresh()
    exact.zero_grad()
    (exact(x.double(), Packing(torch.tensor([70]), 70))[0] * weight).sum().backward()
    wanted = {name: p.grad for name, p in exact.named_parameters()}
    return Gradients(
        all(p.grad is not None and bool(p.grad.isfinite().all()) for p in a.values()),
        largest(both),
        largest((a[name].grad.double(), want) for name, want in wanted.items()),
        largest((b[theirs].grad.double(), wanted[mine]) for mine, theirs in shared.items()),
        float(a["dt_bias"].grad.abs().max()),
        float(a["A_log"].grad[LA.num_heads :].abs().max()),
    )


def kda_carried(decay: str, seed: int = 0) -> float:
    """A second turn starts from our conv and recurrent state; theirs runs the whole."""
    ours, theirs = kda_pair(decay, seed)
    x = noise(seed + 7, 50, CONFIG.hidden_size)
    with torch.no_grad():
        first, conv, state = ours(x[:21], Packing(torch.tensor([21]), 21))
        second, _, _ = ours(x[21:], Packing(torch.tensor([29]), 29), conv, state)
        want = theirs(x.unsqueeze(0))[0]
    return float((torch.cat((first, second)) - want).abs().max())


# --- the indexer and DSA ------------------------------------------------------------------------------------------

INDEXERS = {"deepseek_v32": "DeepseekV32Indexer", "glm_moe_dsa": "GlmMoeDsaIndexer"}
"""transformers' families with an indexer, and its class."""


def dsa_config(topk: int) -> SimpleNamespace:
    """CONFIG in the words of deepseek_v32 and glm_moe_dsa."""
    names = ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim")
    names += ("qk_rope_head_dim", "v_head_dim", "index_n_heads", "index_head_dim", "rms_norm_eps")
    return SimpleNamespace(
        **{n: getattr(CONFIG, n) for n in names},
        num_key_value_heads=CONFIG.num_attention_heads,
        index_topk=topk,
        attention_bias=False,
        attention_dropout=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        _attn_implementation="eager",
    )


def mla(topk: int | None = CONFIG.index_topk, seed: int = 0) -> MLA:
    """Gated MLA or DSA of ours."""
    m = MLA(replace(CONFIG, index_topk=topk))
    draw(m, seed + 8)
    m.refresh()
    return m


def still(n: int) -> tuple[Tensor, Tensor]:
    """(cos, sin) of a rotation by 0: NoPE."""
    return torch.ones(1, n, CONFIG.qk_rope_head_dim), torch.zeros(1, n, CONFIG.qk_rope_head_dim)


def indexer_choices(family: str, topk: int, seed: int = 0) -> tuple[int, float]:
    """(tokens of 40 whose selected keys differ, largest score by which their order misses the one of our scores)."""
    module = import_module(f"transformers.models.{family}.modeling_{family}")
    m, theirs = mla(seed=seed), getattr(module, INDEXERS[family])(dsa_config(topk), 0)
    copy_into(theirs, dict(m.indexer.named_parameters()))
    x, n = noise(seed + 9, 40, CONFIG.hidden_size), 40
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    with torch.no_grad():
        q_latent = m._project(x)[0]
        want = theirs(x.unsqueeze(0), q_latent.unsqueeze(0), still(n), causal.unsqueeze(0), None)[0]
        q, w = m.indexer.queries(x, q_latent)
        scores = m.indexer.scores(q.unsqueeze(0), w.unsqueeze(0), m.indexer.keys(x).unsqueeze(0))[0]
    got = picks_of(select_topk(scores, causal, topk), topk)
    different, gap = 0, 0.0
    for t in range(n):
        known = [k for k in want[t].tolist() if k <= t][: min(topk, t + 1)]
        different += sorted(known) != [k for k in got[t].tolist() if k >= 0]
        # Theirs are in order of score: so are ours, though the scores themselves are not handed out.
        ours = sorted(known, key=lambda k: (-float(scores[t, k]), k))
        gap = max(gap, *(abs(float(scores[t, a] - scores[t, b])) for a, b in zip(known, ours, strict=True)))
    return different, gap


def sparse_attention(topk: int, seed: int = 0) -> tuple[float, float]:
    """Packed rows of several lengths beside deepseek_v32's attention on each: largest difference of outputs, and of
    gradients relative to the largest value of a tensor above 1. Our gate is half open: theirs give twice ours."""
    from transformers.models.deepseek_v32 import modeling_deepseek_v32 as deepseek

    m, theirs = mla(topk, seed), deepseek.DeepseekV32Attention(dsa_config(topk), 0)
    with torch.no_grad():
        m.g_proj.weight.zero_()
    m.refresh()
    copy_into(theirs, {n: p for n, p in m.named_parameters() if n != "g_proj.weight"})
    for norm in (theirs.q_a_layernorm, theirs.kv_a_layernorm):
        norm.variance_epsilon = CONFIG.rms_norm_eps
    lengths = [40, 1, 5, 17, 33]
    shape = (sum(lengths), CONFIG.hidden_size)
    x, weight = noise(seed + 10, *shape), noise(seed + 11, *shape)
    got = m(x, Packing(torch.tensor(lengths), 40))[0]
    parts = []
    for row in x.split(lengths):
        n = len(row)
        mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1).view(1, 1, n, n)
        parts.append(theirs(row.unsqueeze(0), still(n), mask)[0][0] / 2)
    want = torch.cat(parts)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    own = dict(theirs.named_parameters())
    learned = [n for n, _ in m.named_parameters() if n != "g_proj.weight" and "indexer" not in n]
    mine = dict(m.named_parameters())
    return float((got - want).detach().abs().max()), largest((mine[n].grad, own[n].grad) for n in learned)
