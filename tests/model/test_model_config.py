"""Laws of the numbers: public totals to the last parameter, 1-based layer lists, no torch needed to count."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from model.config import K3Config, LinearAttnConfig
from model.decoder import Policy


def test_published_totals() -> None:
    k3, k31 = K3Config.preset("k3"), K3Config.preset("k31_pro")
    assert k3.param_count() == 2_779_484_478_208
    assert k3.active_count() == 104_189_614_848
    assert k31.param_count() == 2_779_663_004_416
    parts = k3.part_counts()
    assert parts["kda"] == 69 * 443_740_416
    assert parts["mla"] == 24 * 232_196_096
    assert parts["router"] == 92 * 6_423_424
    assert k31.part_counts()["indexer"] == 24 * 7_438_592


def test_published_state_sizes() -> None:
    values = K3Config.preset("k3").state_values(1_048_576)
    assert values["recurrent"] * 4 == 434_110_464
    assert values["latent"] * 2 == 27 * 2**30
    assert values["conv"] == 69 * 36_864 * 3
    assert values["index"] == 0
    assert K3Config.preset("k31_pro").state_values(1_048_576)["index"] * 2 == 6 * 2**30


def test_layer_lists_are_one_based() -> None:
    full = [i for i, kind in enumerate(K3Config.preset("k3").layer_types) if kind == "full"]
    assert full == [*range(3, 92, 4), 92]
    assert K3Config.preset("tiny").layer_types == ["kda", "full", "kda", "full"]
    assert [i for i, t in enumerate(K3Config.preset("tiny_odd").layer_types) if t == "full"] == [3, 7, 8]


@pytest.mark.parametrize("preset", ["tiny", "tiny_odd", "small", "k31_pro"])
def test_real_parameters_agree_with_the_arithmetic(preset: str) -> None:
    config = K3Config.preset(preset)
    if preset == "k31_pro":  # real widths, fewer layers and experts: the arithmetic is linear in both
        la = replace(config.linear_attn_config, kda_layers=(1, 2), full_attn_layers=(3,))
        config = replace(config, num_hidden_layers=3, num_experts=17, linear_attn_config=la)
    with torch.device("meta"):
        policy = Policy(config)
    assert sum(w.numel() for _, w in policy.named_weights()) == config.param_count()


def test_public_names_and_shapes() -> None:
    with torch.device("meta"):
        policy = Policy(K3Config.preset("tiny"))
    shapes = {k: tuple(v.shape) for k, v in policy.named_weights()}
    for name, shape in {
        "model.embed_tokens.weight": (512, 64),
        "lm_head.weight": (512, 64),
        "model.norm.weight": (64,),
        "model.output_attn_res_norm.weight": (64,),
        "model.output_attn_res_proj.weight": (1, 64),
        "model.layers.0.self_attention_res_proj.weight": (1, 64),
        "model.layers.0.mlp_res_norm.weight": (64,),
        "model.layers.0.mlp.gate_proj.weight": (128, 64),
        "model.layers.0.self_attn.q_conv1d.weight": (64, 1, 4),
        "model.layers.0.self_attn.A_log": (16,),
        "model.layers.0.self_attn.dt_bias": (64,),
        "model.layers.0.self_attn.f_a_proj.weight": (16, 64),
        "model.layers.0.self_attn.o_norm.weight": (16,),
        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight": (40, 64),
        "model.layers.1.self_attn.kv_b_proj.weight": (128, 32),
        "model.layers.1.self_attn.indexer.k_norm.bias": (16,),
        "model.layers.1.block_sparse_moe.gate.weight": (8, 64),
        "model.layers.1.block_sparse_moe.gate.e_score_correction_bias": (8,),
        "model.layers.1.block_sparse_moe.experts.7.w1.weight": (32, 32),
        "model.layers.1.block_sparse_moe.experts.0.w2.weight": (32, 32),
        "model.layers.1.block_sparse_moe.shared_experts.down_proj.weight": (64, 64),
        "model.layers.1.block_sparse_moe.routed_expert_down_proj.weight": (32, 64),
        "model.layers.1.block_sparse_moe.routed_expert_norm.weight": (32,),
    }.items():
        assert shapes[name] == shape, name
    assert len(shapes) == 182 and not any("experts.w" in name for name in shapes)


def test_public_json_round_trip() -> None:
    for preset in ("tiny", "k3", "k31_pro"):
        config = K3Config.preset(preset)
        text = config.to_hf() | {"model_type": "kimi_linear"}
        again = K3Config.from_hf({"model_type": "kimi_k3", "text_config": text})
        assert again == config and again.to_hf()["model_type"] == "kimi_linear"


@pytest.mark.parametrize(
    "change",
    [
        {"linear_attn_config": LinearAttnConfig(4, 16, kda_layers=(0, 2), full_attn_layers=(1, 3))},
        {"linear_attn_config": LinearAttnConfig(4, 16, (1, 3), (2, 4), gate_lower_bound=-6.0)},
        {"num_experts_per_token": 8},
        {"index_n_heads": 0},
    ],
)
def test_impossible_configs_are_refused(change: dict) -> None:
    with pytest.raises(ValueError):
        replace(K3Config.preset("tiny"), **change)
    with pytest.raises(ValueError, match="unknown model preset"):
        K3Config.preset("huge")


def test_counting_needs_no_torch() -> None:
    code = (
        "import sys, model, model.config as c; c.K3Config.preset('k3').param_count(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_initial_weights_follow_the_report() -> None:
    from model.build import build_policy

    policy, same, other = (build_policy("k3", "tiny", seed=s) for s in (0, 0, 1))
    weights = dict(policy.named_weights())
    assert all(torch.equal(v, w) for v, (_, w) in zip(weights.values(), same.named_weights(), strict=True))
    assert not torch.equal(weights["lm_head.weight"], other.lm_head.weight)
    for name, w in weights.items():
        if "res_proj" in name or (name.endswith(("A_log", "bias")) and "dt_bias" not in name):
            assert not w.any(), name
        elif name.endswith("norm.weight"):
            assert (w == 1).all(), name
        elif "dt_bias" in name:
            g = -5 * torch.sigmoid(w)  # the log-decay at A_log = 0 and a zero input
            assert g.min() > -0.55 and g.max() < -0.0045, name
        else:
            assert 0.01 < w.std() < 0.03, name
    with pytest.raises(ValueError, match="kind"):
        build_policy("gpt", "tiny")
    with pytest.raises(ValueError, match="float32"):
        build_policy("k3", "tiny", dtype=torch.float16)
    with pytest.raises(ValueError, match="path"):
        build_policy("hf", "tiny")
