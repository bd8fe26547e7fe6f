"""Laws of the numbers: public totals to the last parameter, 1-based layer lists, no torch needed to count."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import K3Config
from model.decoder import Policy
from model.public_config import mxfp4_packed
from model.vision_config import VisionConfig

PUBLIC = Path(__file__).parent / "k3_public_config.json"
"""Kimi K3's config.json as released, whole."""
MILLION = 1_048_576


def public() -> dict[str, Any]:
    return json.loads(PUBLIC.read_text())


def public_k31() -> dict[str, Any]:
    """The public file with what K3.1 adds."""
    config = public()
    config["text_config"] |= {"index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128}
    return config


def test_published_totals() -> None:
    k3, k31 = K3Config.preset("k3"), K3Config.preset("k31_pro")
    assert k3.param_count() == 2_779_484_478_208
    assert k3.active_count() == 104_189_614_848
    assert k31.param_count() == 2_779_663_004_416
    assert k31.active_count() == 104_368_141_056
    parts = k3.part_counts()
    assert parts["kda"] == 69 * 443_740_416
    assert parts["mla"] == 24 * 232_196_096
    assert parts["routed_experts"] == 92 * 896 * 33_030_144
    assert parts["shared_experts"] == 92 * 132_120_576
    assert parts["latent"] == 92 * 51_383_808
    assert parts["router"] == 92 * 6_423_424
    assert parts["dense"] == 726_663_168
    assert parts["embed"] == parts["head"] == 1_174_405_120
    assert k31.part_counts()["indexer"] == 24 * 7_438_592
    vision = k3.vision
    assert vision is not None and vision.param_count() == 401_214_464
    assert vision.projector_count(7168) == 46_144_512 and k3.vision_count() == 401_214_464 + 46_144_512
    assert replace(vision, merge_kernel_size=(3, 3)).projector_count(7168) == pytest.approx(151e6, rel=1e-3)


def test_an_mtp_layer_is_a_block_with_a_projection_norms_and_a_head() -> None:
    c = replace(K3Config.preset("k31_pro"), num_nextn_predict_layers=1)
    moe = sum(K3Config.preset("k3").part_counts()[k] for k in ("routed_experts", "shared_experts", "latent", "router"))
    assert c.mtp_count() == 232_196_096 + moe // 92 + 2 * 7168**2 + 5 * 7168 + 163_840 * 7168
    assert c.param_count() == K3Config.preset("k31_pro").param_count() and K3Config.preset("k3").mtp_count() == 0


def test_published_state_sizes() -> None:
    k3, k31 = K3Config.preset("k3"), K3Config.preset("k31_pro")
    values = k3.state_values(MILLION)
    assert values["recurrent"] * 4 == 434_110_464
    assert values["latent"] * 2 == 27 * 2**30
    assert values["conv"] == 69 * 36_864 * 3
    assert values["index"] == 0
    assert k31.state_values(MILLION)["index"] * 2 == 6 * 2**30
    # Bytes of one token, and what does not grow.
    for latent, size in {"bf16": 27_648, "fp8": 13_824, "fp8_ds_mla": 15_744}.items():
        assert k3.state_bytes(1, latent=latent)["latent"] == size
        assert k3.state_bytes(MILLION, latent=latent)["latent"] == size * MILLION
    assert k31.state_bytes(1, index="fp8")["index"] == 3_168 and k31.state_bytes(1)["index"] == 6_144
    for format, size in {"fp32": 434_110_464, "bf16": 217_055_232}.items():
        for length in (0, MILLION):
            assert k3.state_bytes(length, recurrent=format)["recurrent"] == size
    assert k3.state_bytes(5)["conv"] == 15_261_696


@pytest.mark.parametrize(
    ("preset", "latent", "index", "gib"),
    [
        ("k3", "bf16", "bf16", 27.4),
        ("k31_pro", "bf16", "bf16", 33.4),
        ("k31_pro", "fp8_ds_mla", "fp8", 18.9),
        ("k3", "fp8", "bf16", 13.5 + 0.42),
    ],
)
def test_published_state_totals(preset: str, latent: str, index: str, gib: float) -> None:
    total = sum(K3Config.preset(preset).state_bytes(MILLION, latent=latent, index=index).values())
    assert total / 2**30 == pytest.approx(gib, abs=0.05)


def test_unknown_state_formats_are_refused() -> None:
    for kind in ("recurrent", "conv", "latent", "index"):
        with pytest.raises(ValueError, match=f"{kind}='fp4'"):
            K3Config.preset("k3").state_bytes(1, **{kind: "fp4"})


@pytest.mark.parametrize(
    ("length", "k3_attention", "k3_total", "k31_attention", "k31_total", "ratio"),
    [
        (2048, 10.3, 219, 10.3 + 0.4, 220, 1.0),
        (8192, 41, 250, 10.3 + 1.6, 221, 1.13),
        (32768, 164, 373, 10.3 + 6.5, 226, 1.65),
        (131072, 657, 866, 10.3 + 26, 246, 3.5),
        (524288, 2628, 2838, 10.3 + 104, 324, 8.8),
        (MILLION, 5257, 5466, 10.3 + 208, 427, 12.8),
    ],
)
def test_published_operations_of_a_decoded_token(
    length: int, k3_attention: float, k3_total: float, k31_attention: float, k31_total: float, ratio: float
) -> None:
    k3, k31 = (K3Config.preset(p).flops(length) for p in ("k3", "k31_pro"))
    near = lambda x: pytest.approx(x, rel=5e-3)
    assert k3["attention"] / 1e9 == near(k3_attention) and k3["indexer"] == 0
    assert (k31["attention"] + k31["indexer"]) / 1e9 == near(k31_attention)
    totals = sum(k3.values()), sum(k31.values())
    # The table's totals are whole GFLOP, some of them cut instead of rounded.
    assert [t / 1e9 for t in totals] == pytest.approx([k3_total, k31_total], abs=0.6)
    assert totals[0] / totals[1] == pytest.approx(ratio, rel=1e-2)
    assert k3["weights"] == 2 * 104_189_614_848 and k3["kda"] / 1e9 == near(0.76)


def test_operations_of_a_prompt() -> None:
    k3, k31 = K3Config.preset("k3"), K3Config.preset("k31_pro")
    for length in (2048, 65_536, MILLION):
        one = k3.prefill_flops(length)
        assert one["attention"] == 737_280 * length and one["kda"] / 1e9 == pytest.approx(1.2, rel=0.01)
        assert k31.prefill_flops(length)["indexer"] == k31.flops(length)["indexer"] / 2
    # Sparse attention is the dense one up to top-k tokens, and costs at most what top-k keys cost.
    assert k31.prefill_flops(2048)["attention"] == k3.prefill_flops(2048)["attention"]
    assert k31.prefill_flops(MILLION)["attention"] == pytest.approx(k31.flops(MILLION)["attention"], rel=2e-3)


def test_layer_lists_are_one_based() -> None:
    full = [i for i, kind in enumerate(K3Config.preset("k3").layer_types) if kind == "full"]
    assert full == [*range(3, 92, 4), 92]
    assert K3Config.preset("tiny").layer_types == ["kda", "full", "kda", "full"]
    assert [i for i, t in enumerate(K3Config.preset("tiny_odd").layer_types) if t == "full"] == [3, 7, 8]


@pytest.mark.parametrize("preset", ["tiny", "tiny_odd", "small", "k3", "k31_pro"])
def test_real_parameters_agree_with_the_arithmetic(preset: str) -> None:
    config = K3Config.preset(preset)
    with torch.device("meta"):
        policy = Policy(config)
    biases = [b for name, b in policy.named_buffers() if name.endswith("e_score_correction_bias")]
    assert sum(w.numel() for w in [*policy.parameters(), *biases]) == config.param_count() + config.vision_count()


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


def test_the_released_file_comes_back_as_it_was_and_is_the_preset() -> None:
    config = K3Config.from_hf(public())
    assert config.to_hf() == public() and config == K3Config.preset("k3")
    assert config.quantization_config == mxfp4_packed()
    assert K3Config.from_hf(public_k31()) == K3Config.preset("k31_pro")
    assert K3Config.from_hf(public_k31()).to_hf() == public_k31()
    json.dumps(config.to_hf())


@pytest.mark.parametrize("preset", ["tiny", "tiny_odd", "small", "k3", "k31_pro"])
def test_public_json_round_trip(preset: str) -> None:
    config = K3Config.preset(preset)
    file = json.loads(json.dumps(config.to_hf()))
    assert K3Config.from_hf(file) == config and K3Config.from_hf(file).to_hf() == file
    text = file.get("text_config", file)
    alone = K3Config.from_hf({"model_type": "kimi_k3", "text_config": text})
    assert alone == replace(config, vision=None, media_placeholder_token_id=None)
    assert alone.to_hf()["text_config"] == text
    for changed in (
        replace(config, activation_situ_linear_beta=None, moe_renormalize=False, logit_scale=0.5),
        replace(config, num_nextn_predict_layers=1, first_k_dense_replace=0),
        replace(config, index_topk=None, index_n_heads=0, index_head_dim=0),
    ):
        assert K3Config.from_hf(changed.to_hf()) == changed != config or changed == config


def test_what_is_not_read_is_kept_where_it_was() -> None:
    file = public_k31()
    text = file["text_config"]
    text |= {"logit_scale": 1.0, "attn_value_gate": False, "index_rope": False, "layer_types": []}
    text["layer_types"] = ["linear_attention" if t == "kda" else "x" for t in K3Config.preset("k3").layer_types]
    text["linear_attn_config"]["note"] = 1
    file["quantization_config"] = text["quantization_config"]
    file["vision_config"] |= {"rope_theta": 10000.0, "video_attn_type": "spatial_temporal"}
    file["note"] = {"a": [1]}
    assert K3Config.from_hf(file).to_hf() == file
    del text["quantization_config"]  # public code reads either place
    config = K3Config.from_hf(file)
    assert config.to_hf() == file and config.quantization_config == mxfp4_packed()
    del file["quantization_config"]
    text["index_topk"] = None
    config = K3Config.from_hf(file)
    assert config.to_hf() == file and config.index_topk is None and config.quantization_config is None
    file |= {"vision_config": None, "media_placeholder_token_id": None}
    assert K3Config.from_hf(file).to_hf() == file and K3Config.from_hf(file).vision is None


def test_names_that_no_public_file_has_yet_are_given() -> None:
    file = public()
    file["text_config"] |= {"dsa_topk": 2048, "dsa_heads": 32, "dsa_dim": 128}
    names = ("dsa_topk", "dsa_heads", "dsa_dim")
    config = K3Config.from_hf(file, index_keys=names)
    assert replace(config, index_keys=K3Config.preset("k3").index_keys) == K3Config.preset("k31_pro")
    assert config.to_hf() == file and K3Config.from_hf(config.to_hf(), index_keys=names) == config


def test_other_releases_call_one_key_otherwise() -> None:
    file = public()
    file["text_config"]["num_experts_per_tok"] = file["text_config"].pop("num_experts_per_token")
    assert K3Config.from_hf(file) == K3Config.preset("k3")
    del file["text_config"]["num_key_value_heads"]
    file["text_config"]["torch_dtype"] = file["text_config"].pop("dtype")
    assert K3Config.from_hf(file) == K3Config.preset("k3")


TEXT, LINEAR, VISION = "text_config.", "text_config.linear_attn_config.", "vision_config."
WEIGHTS = "text_config.quantization_config.config_groups.group_0.weights."
GONE = object()
K3_LINEAR = json.loads(PUBLIC.read_text())["text_config"]["linear_attn_config"]
REFUSED: list[tuple[str, Any, str]] = [
    # (key, value, what the error names if not the key)
    ("model_type", "qwen3", "model_type='qwen3'"),
    ("text_config", GONE, "text_config is missing"),
    ("text_config", [], "text_config=[]: it must be a section"),
    ("tie_word_embeddings", True, "tie_word_embeddings=True"),
    ("media_placeholder_token_id", GONE, ""),
    ("media_placeholder_token_id", 163840, "vocab_size"),
    ("bos_token_id", 5, "bos_token_id=5 contradicts"),
    ("eos_token_id", [163586, 10**6], "eos_token_id"),
    ("quantization_config", {"quant_method": "fp8"}, "quantization_config differs"),
    ("vision_config", [], "vision_config=[]: it must be a section"),
    ("vision_config", "", "vision_config='': it must be a section"),
    (TEXT + "model_type", "qwen3", ""),
    (TEXT + "hidden_act", "silu", ""),
    (TEXT + "hidden_act", GONE, "hidden_act is missing"),
    (TEXT + "mla_use_nope", False, ""),
    (TEXT + "mla_use_nope", GONE, "mla_use_nope is missing"),
    (TEXT + "mla_use_output_gate", False, ""),
    (TEXT + "latent_moe_use_norm", False, ""),
    (TEXT + "latent_moe_use_norm", 1, ""),
    (TEXT + "tie_word_embeddings", True, ""),
    (TEXT + "moe_layer_freq", 2, ""),
    (TEXT + "moe_router_activation_func", "softmax", ""),
    (TEXT + "topk_method", "greedy", ""),
    (TEXT + "num_expert_group", 8, ""),
    (TEXT + "topk_group", 4, ""),
    (TEXT + "num_key_value_heads", 8, ""),
    (TEXT + "attn_value_gate", True, ""),
    (TEXT + "index_rope", True, ""),
    (TEXT + "index_hadamard", True, ""),
    (TEXT + "index_kpool", 16, ""),
    (TEXT + "index_topk_pattern", "FS", ""),
    (TEXT + "attention_type", "dsa", ""),
    (TEXT + "layer_types", ["kda"] * 93, ""),
    (TEXT + "num_experts_per_tok", 8, ""),
    (TEXT + "hidden_size", GONE, ""),
    (TEXT + "hidden_size", 7168.0, "hidden_size"),
    (TEXT + "hidden_size", 4096, "text_hidden_size"),
    (TEXT + "num_attention_heads", 64, "num_key_value_heads"),
    (TEXT + "num_attention_heads", None, "num_attention_heads=None"),
    (TEXT + "v_head_dim", 0, "v_head_dim"),
    (TEXT + "rms_norm_eps", GONE, ""),
    (TEXT + "rms_norm_eps", float("nan"), "rms_norm_eps"),
    (TEXT + "activation_situ_linear_beta", GONE, ""),
    (TEXT + "activation_situ_beta", None, "activation_situ_beta"),
    (TEXT + "activation_situ_beta", -4.0, "activation_situ_beta"),
    (TEXT + "first_k_dense_replace", GONE, ""),
    (TEXT + "first_k_dense_replace", 93, "first_k_dense_replace"),
    (TEXT + "max_position_embeddings", GONE, ""),
    (TEXT + "num_hidden_layers", 92, "num_hidden_layers=92"),
    (TEXT + "num_hidden_layers", 94, "lack layer 94"),
    (TEXT + "num_hidden_layers", 10**18, "num_hidden_layers=1000000000000000000"),
    (TEXT + "num_experts", 16, "num_experts_per_token=16"),
    (TEXT + "num_experts_per_token", 0, "num_experts_per_token"),
    (TEXT + "num_shared_experts", 0, "num_shared_experts"),
    (TEXT + "moe_renormalize", "yes", "moe_renormalize"),
    (TEXT + "moe_intermediate_size", 3080, "moe_intermediate_size=3080"),
    (TEXT + "routed_expert_hidden_size", 3600, "routed_expert_hidden_size=3600"),
    (TEXT + "index_topk", 2048, "index_n_heads"),
    (TEXT + "index_topk", True, "index_topk"),
    (TEXT + "pad_token_id", 163840, ""),
    (TEXT + "attn_res_block_size", None, "attn_res_block_size"),
    (TEXT + "linear_attn_config", GONE, ""),
    (LINEAR + "gate_lower_bound", GONE, ""),
    (LINEAR + "gate_lower_bound", None, ""),
    (LINEAR + "gate_lower_bound", -6.0, "gate_lower_bound"),
    (LINEAR + "gate_lower_bound", 0.0, "gate_lower_bound"),
    (LINEAR + "use_full_rank_gate", False, ""),
    (LINEAR + "use_full_rank_gate", GONE, ""),
    (LINEAR + "num_heads", 0, "num_heads"),
    (LINEAR + "head_dim", "128", "head_dim"),
    (LINEAR + "short_conv_kernel_size", GONE, ""),
    (LINEAR + "kda_layers", [i - 1 for i in K3_LINEAR["kda_layers"]], "kda_layers has 0: layers are counted from 1"),
    (LINEAR + "kda_layers", K3_LINEAR["kda_layers"][:-1], "lack layer 91"),
    (LINEAR + "kda_layers", [*K3_LINEAR["kda_layers"], 93], "both have layer 93"),
    (LINEAR + "kda_layers", [1, *K3_LINEAR["kda_layers"]], "kda_layers names a layer twice"),
    (LINEAR + "full_attn_layers", [*K3_LINEAR["full_attn_layers"], 94], "name layer 94"),
    (LINEAR + "full_attn_layers", "4", "full_attn_layers"),
    ("text_config.quantization_config.quant_method", "fp8", "quantization_config.quant_method"),
    ("text_config.quantization_config.format", "nvfp4-pack-quantized", "quantization_config.format"),
    ("text_config.quantization_config.kv_cache_scheme", {"num_bits": 8}, "quantization_config.kv_cache_scheme"),
    ("text_config.quantization_config", True, "quantization_config=True: it must be a section"),
    ("text_config.quantization_config.config_groups", {}, "config_groups has 0 groups"),
    ("text_config.quantization_config.config_groups.group_0", [], "config_groups.group_0=[]"),
    ("text_config.quantization_config.config_groups.group_0.input_activations", {"num_bits": 8}, "input_activations"),
    (WEIGHTS + "num_bits", 8, "weights.num_bits=8"),
    (WEIGHTS + "group_size", 16, "weights.group_size=16"),
    (WEIGHTS + "symmetric", GONE, "weights.symmetric is missing"),
    (WEIGHTS + "scale_dtype", "torch.float8_e4m3fn", "weights.scale_dtype"),
    (WEIGHTS + "dynamic", True, "weights.dynamic"),
    (VISION + "text_hidden_size", 2304, ""),
    (VISION + "mm_hidden_size", 1152, ""),
    (VISION + "merge_type", "sd2", ""),
    (VISION + "mm_projector_type", "patchmerger", ""),
    (VISION + "norm_type", "layernorm", ""),
    (VISION + "attn_bias", True, ""),
    (VISION + "activation_func", "gelu", ""),
    (VISION + "pos_emb_interpolation_mode", "bicubic", ""),
    (VISION + "merge_kernel_size", [2], ""),
    (VISION + "merge_kernel_size", 2, ""),
    (VISION + "vt_num_attention_heads", 7, "qkv_hidden_size"),
    (VISION + "vt_num_attention_heads", 768, "qkv_hidden_size"),
    (VISION + "vt_num_hidden_layers", 0, ""),
    (VISION + "vt_hidden_size", 1023, ""),
    (VISION + "projector_ln_eps", 0, ""),
    (VISION + "rope_theta", "1e4", ""),
]


@pytest.mark.parametrize(("key", "value", "names"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(key: str, value: Any, names: str) -> None:
    config = public()
    *path, last = key.split(".")
    section = config
    for part in path:
        section = section[part]
    if value is GONE:
        del section[last]
    else:
        section[last] = value
    with pytest.raises(ValueError) as error:
        K3Config.from_hf(config)
    assert (names or last) in str(error.value)


def test_values_are_checked_wherever_they_come_from() -> None:
    tiny = K3Config.preset("tiny")
    for key, value in {
        "num_experts_per_token": 8,
        "index_n_heads": 0,
        "index_topk": 0,
        "vision": VisionConfig(),  # without the token of a picture
        "media_placeholder_token_id": 512,
        "logit_scale": 0.0,
        "num_nextn_predict_layers": -1,
    }.items():
        with pytest.raises(ValueError, match="media_placeholder_token_id" if key == "vision" else key):
            replace(tiny, **{key: value})
    with pytest.raises(ValueError, match="moe_intermediate_size"):
        replace(K3Config.preset("tiny_odd"), quantization_config=mxfp4_packed())
    with pytest.raises(ValueError, match="unknown model preset"):
        K3Config.preset("huge")
    with pytest.raises(ValueError, match="model_type='kimi_k2'"):
        K3Config.from_hf(tiny.to_hf() | {"model_type": "kimi_k2"})
    for whole in ([], None, "x", 5):
        with pytest.raises(ValueError, match="a configuration is a section with keys"):
            K3Config.from_hf(whole)  # type: ignore[arg-type]


def test_counting_needs_no_torch() -> None:
    code = "import sys, model, model.config as c; c.K3Config.preset('k3').to_hf(); assert 'torch' not in sys.modules"
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
