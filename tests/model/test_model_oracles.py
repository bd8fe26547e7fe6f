"""KDA, the indexer and DSA beside transformers' own modules, in float32: glm5_next, deepseek_v32 and glm_moe_dsa.

They are written by others from the same papers. Where they differ from this family (positions, low-rank output gate, no
output gate), the input is chosen so that the difference is none: rotation by angle 0, a product of the two gate
matrices, a gate that is open everywhere.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
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
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def draw(module: nn.Module, seed: int = 0) -> None:
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            size = 0.5 if "conv" in name else (1.0 / p.shape[-1]) ** 0.5 if p.dim() > 1 else 0.3
            p.copy_(torch.randn(p.shape, generator=g) * size + float(name.endswith("norm.weight")))


def copy_into(theirs: nn.Module, tensors: dict[str, Tensor]) -> None:
    own = dict(theirs.named_parameters())
    assert own.keys() == tensors.keys()
    with torch.no_grad():
        for name, p in own.items():
            assert p.shape == tensors[name].shape, name
            p.copy_(tensors[name])


# --- KDA ----------------------------------------------------------------------------------------------------------


def kda_pair(decay: str) -> tuple[KDA, nn.Module]:
    """A KDA mixer of ours, and glm5_next's with the same weights."""
    glm = pytest.importorskip("transformers.models.glm5_next.modeling_glm5_next")
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
    draw(ours)
    low, high = noise(1, LA.head_dim, CONFIG.hidden_size, scale=0.2), noise(2, LA.width, LA.head_dim, scale=0.3)
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


@pytest.mark.parametrize("decay", GATES)
def test_the_kda_mixer_is_glm5_nexts_at_every_tail(decay: str) -> None:
    """One packed batch whose rows end in, at and behind tiles of 16 and chunks of 64; each alone in theirs."""
    ours, theirs = kda_pair(decay)
    lengths = [1, 3, 15, 16, 17, 33, 63, 64, 65, 100]
    x = noise(3, sum(lengths), CONFIG.hidden_size)
    with torch.no_grad():
        got, _, _ = ours(x, Packing(torch.tensor(lengths), 100))
        want = torch.cat([theirs(row.unsqueeze(0))[0] for row in x.split(lengths)])
    assert want.std() > 0.05
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("decay", ["slow", "strong"])
def test_a_row_does_not_feel_its_neighbours(decay: str) -> None:
    """Slow decay on purpose: a state or a convolution that runs over a row's border would show."""
    ours, _ = kda_pair(decay)
    lengths = torch.tensor([37, 51, 40])
    x = noise(4, 128, CONFIG.hidden_size)
    other = x.clone()
    other[36] += 10.0
    with torch.no_grad():
        a, b = (ours(y, Packing(lengths, 51))[0] for y in (x, other))
    assert torch.equal(a[37:], b[37:]) and not torch.equal(a[36], b[36]) and torch.equal(a[:36], b[:36])


@pytest.mark.parametrize("decay", ["mixed", "bound", "none"])
def test_gradients_are_finite_and_theirs_at_the_gate_bound(decay: str) -> None:
    ours, theirs = kda_pair(decay)
    x, weight = noise(5, 70, CONFIG.hidden_size), noise(6, 70, CONFIG.hidden_size)
    grads = []
    for run in (lambda y: ours(y, Packing(torch.tensor([70]), 70))[0], lambda y: theirs(y.unsqueeze(0))[0]):
        y = x.clone().requires_grad_()
        (run(y) * weight).sum().backward()
        grads.append(y.grad)
    pairs = {"q_proj.weight": "q_proj.weight", "b_proj.weight": "b_proj.weight", "dt_bias": "forget_gate.dt_bias"}
    pairs |= {"f_b_proj.weight": "forget_gate.f_b_proj.weight", "o_norm.weight": "o_norm.weight"}
    a, b = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in a.values())
    both = [(grads[0], grads[1])] + [(a[m].grad, b[t].grad) for m, t in pairs.items()]
    both.append((a["A_log"].grad[: LA.num_heads], b["forget_gate.A_log"].grad))
    for mine, their in both:  # theirs miss float64 by 2e-5 of the largest (dt_bias, mixed), ours by 3e-6
        torch.testing.assert_close(mine, their, rtol=0, atol=4e-5 * max(1.0, float(their.abs().max())))
    exact = copy.deepcopy(ours).double()
    exact.refresh()
    exact.zero_grad()
    (exact(x.double(), Packing(torch.tensor([70]), 70))[0] * weight).sum().backward()
    for name, p in exact.named_parameters():
        size = max(1.0, float(p.grad.abs().max()))
        torch.testing.assert_close(a[name].grad.double(), p.grad, rtol=0, atol=1e-5 * size, msg=name)
    assert not a["A_log"].grad[LA.num_heads :].any()
    if decay in ("bound", "none"):  # the gate is flat there
        assert a["dt_bias"].grad.abs().max() < 1e-12


@pytest.mark.parametrize("decay", ["slow", "strong"])
def test_a_carried_state_is_theirs(decay: str) -> None:
    """A second turn starts from our conv and recurrent state; theirs runs the whole."""
    ours, theirs = kda_pair(decay)
    x = noise(7, 50, CONFIG.hidden_size)
    with torch.no_grad():
        first, conv, state = ours(x[:21], Packing(torch.tensor([21]), 21))
        second, _, _ = ours(x[21:], Packing(torch.tensor([29]), 29), conv, state)
        want = theirs(x.unsqueeze(0))[0]
    torch.testing.assert_close(torch.cat((first, second)), want, rtol=0, atol=1e-5)


# --- the indexer and DSA ------------------------------------------------------------------------------------------


def dsa_config(topk: int) -> SimpleNamespace:
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


def mla(topk: int | None = CONFIG.index_topk) -> MLA:
    m = MLA(replace(CONFIG, index_topk=topk))
    draw(m, seed=8)
    m.refresh()
    return m


def still(n: int) -> tuple[Tensor, Tensor]:
    """(cos, sin) of a rotation by 0: NoPE."""
    return torch.ones(1, n, CONFIG.qk_rope_head_dim), torch.zeros(1, n, CONFIG.qk_rope_head_dim)


@pytest.mark.parametrize("family", ["deepseek_v32.modeling_deepseek_v32", "glm_moe_dsa.modeling_glm_moe_dsa"])
@pytest.mark.parametrize("topk", [1, 7, 40, 64])
def test_the_indexer_selects_what_theirs_selects(family: str, topk: int) -> None:
    theirs_of = pytest.importorskip(f"transformers.models.{family}")
    name = "DeepseekV32Indexer" if "deepseek" in family else "GlmMoeDsaIndexer"
    m, theirs = mla(), getattr(theirs_of, name)(dsa_config(topk), 0)
    copy_into(theirs, dict(m.indexer.named_parameters()))
    x, n = noise(9, 40, CONFIG.hidden_size), 40
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    with torch.no_grad():
        q_latent = m._project(x)[0]
        want = theirs(x.unsqueeze(0), q_latent.unsqueeze(0), still(n), causal.unsqueeze(0), None)[0]
        q, w = m.indexer.queries(x, q_latent)
        scores = m.indexer.scores(q.unsqueeze(0), w.unsqueeze(0), m.indexer.keys(x).unsqueeze(0))[0]
    got = picks_of(select_topk(scores, causal, topk), topk)
    for t in range(n):
        known = [k for k in want[t].tolist() if k <= t][: min(topk, t + 1)]
        assert sorted(known) == [k for k in got[t].tolist() if k >= 0], t
        # Theirs are in order of score: so are ours, though the scores themselves are not handed out.
        ours = sorted(known, key=lambda k: (-float(scores[t, k]), k))
        gaps = [float(scores[t, a] - scores[t, b]) for a, b in zip(known, ours, strict=True)]
        assert max(map(abs, gaps)) <= 1e-5


@pytest.mark.parametrize("topk", [5, 16, 64])
def test_sparse_attention_is_deepseeks(topk: int) -> None:
    """Rows of several lengths in one packed batch; our gate is half open everywhere: theirs give twice ours."""
    deepseek = pytest.importorskip("transformers.models.deepseek_v32.modeling_deepseek_v32")
    m, theirs = mla(topk), deepseek.DeepseekV32Attention(dsa_config(topk), 0)
    with torch.no_grad():
        m.g_proj.weight.zero_()
    m.refresh()
    copy_into(theirs, {n: p for n, p in m.named_parameters() if n != "g_proj.weight"})
    for norm in (theirs.q_a_layernorm, theirs.kv_a_layernorm):
        norm.variance_epsilon = CONFIG.rms_norm_eps
    lengths = [40, 1, 5, 17, 33]
    x, weight = noise(10, sum(lengths), CONFIG.hidden_size), noise(11, sum(lengths), CONFIG.hidden_size)
    got = m(x, Packing(torch.tensor(lengths), 40))[0]
    parts = []
    for row in x.split(lengths):
        n = len(row)
        mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1).view(1, 1, n, n)
        parts.append(theirs(row.unsqueeze(0), still(n), mask)[0][0] / 2)
    want = torch.cat(parts)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    own = dict(theirs.named_parameters())
    for name, p in m.named_parameters():
        if name != "g_proj.weight" and "indexer" not in name:
            size = max(1.0, float(own[name].grad.abs().max()))
            torch.testing.assert_close(p.grad, own[name].grad, rtol=0, atol=1e-5 * size, msg=name)
