"""Tiny random Hugging Face folders of several architectures, made offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from model.hf_tiny import VOCAB_SIZE, build_tokenizer

DENSE = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma3_text", "gpt2", "opt", "phi3")
EXPERTS = ("qwen2_moe", "qwen3_moe", "mixtral", "deepseek_v2", "deepseek_v3", "olmoe", "glm4_moe")
UNSPOKEN = ("llama4_text",)
"""Mixtures of experts in which every expert computes every token: no routes."""
KINDS = (*DENSE, *EXPERTS, *UNSPOKEN)

_LATENT = dict(
    moe_intermediate_size=16,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=2,
    topk_group=1,
    first_k_dense_replace=1,
    n_shared_experts=1,
    kv_lora_rank=16,
    q_lora_rank=16,
    qk_rope_head_dim=8,
    qk_nope_head_dim=8,
    v_head_dim=16,
    num_key_value_heads=4,
    routed_scaling_factor=1.5,
)
_MORE: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"attention_dropout": 0.5},
    "qwen3": {"head_dim": 16},
    "mistral": {"head_dim": 16, "sliding_window": None},
    "gemma": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16, "query_pre_attn_scalar": 16},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": dict(num_local_experts=4, num_experts_per_tok=1, head_dim=16, intermediate_size_mlp=48),
    "glm4_moe": dict(
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_shared_experts=1,
        first_k_dense_replace=1,
        head_dim=16,
        n_group=2,
        topk_group=1,
    ),
    "gpt2": {"n_positions": 512, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "phi3": {"pad_token_id": 0},
    "qwen2_moe": dict(
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24
    ),
    "qwen3_moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=16, norm_topk_prob=True),
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2, router_jitter_noise=0.5),
    "deepseek_v2": _LATENT | dict(topk_method="group_limited_greedy"),
    "deepseek_v3": _LATENT,
}


_WIDE_LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
_LARGER: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 32},
    "mistral": {"head_dim": 32},
    "gemma": {"head_dim": 32, "initializer_range": 0.03},
    "gemma3_text": {"head_dim": 32, "initializer_range": 0.03},
    "gpt2": {"n_embd": 128},
    "opt": {"word_embed_proj_dim": 128},
    "glm4_moe": {"head_dim": 32},
    "llama4_text": {"head_dim": 32},
    "qwen3_moe": {"head_dim": 32},
    "deepseek_v2": _WIDE_LATENT,
    "deepseek_v3": _WIDE_LATENT,
}
"""Heads of the sizes that vLLM's CPU kernels have."""


def make_served(kind: str, folder: str | Path, seed: int = 0) -> Path:
    """As `make`, of sizes that vLLM's CPU kernels take, and small enough numbers that float32 keeps the log-probs."""
    wide = {"hidden_size": 128, "intermediate_size": 96, "initializer_range": 0.08}
    return make(kind, folder, seed, **wide | _LARGER.get(kind, {}))


def make(kind: str, folder: str | Path, seed: int = 0, **more: Any) -> Path:
    """Write a random model of this model_type (2 layers, hidden 32, float32) with the tiny tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        kind,
        **{
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.3,
            "output_router_logits": kind in EXPERTS,
            "dtype": "float32",
            **_MORE[kind],
            **more,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # zero as it is made, and not seen to be lost
                buffer.copy_(torch.randn(buffer.shape) * 0.1)
    tokenizer = build_tokenizer()
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)
