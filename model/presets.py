"""Named configurations of the K3 family; each is a function, so that importing costs nothing. Torch-free."""

from __future__ import annotations

from dataclasses import replace

from model.config import MEDIA_TOKENS, K3Config, LinearAttnConfig
from model.public_config import mxfp4_packed
from model.vision_config import VisionConfig

_TOKENS = {"bos_token_id": 163584, "eos_token_id": 163586, "pad_token_id": 163839}


def tiny() -> K3Config:
    """About 0.3M parameters: the default run and the CPU tests."""
    return K3Config(
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        num_experts=8,
        num_experts_per_token=2,
        num_shared_experts=2,
        moe_intermediate_size=32,
        routed_expert_hidden_size=32,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        attn_res_block_size=2,
        linear_attn_config=LinearAttnConfig(4, 16, kda_layers=(1, 3), full_attn_layers=(2, 4)),
        index_topk=256,
        index_n_heads=2,
        index_head_dim=16,
        max_position_embeddings=4096,
    )


def tiny_odd() -> K3Config:
    """No two sizes alike, two full layers in a row at the end, MX tails: a swapped axis or a wrong list fails."""
    return K3Config(
        vocab_size=512,
        hidden_size=56,
        num_hidden_layers=9,
        num_attention_heads=3,
        intermediate_size=104,
        num_experts=16,
        num_experts_per_token=4,
        num_shared_experts=2,
        moe_intermediate_size=36,
        routed_expert_hidden_size=40,
        q_lora_rank=28,
        kv_lora_rank=20,
        qk_nope_head_dim=10,
        qk_rope_head_dim=6,
        v_head_dim=14,
        attn_res_block_size=3,
        linear_attn_config=LinearAttnConfig(5, 12, kda_layers=(1, 2, 3, 5, 6, 7), full_attn_layers=(4, 8, 9)),
        index_topk=7,
        index_n_heads=4,
        index_head_dim=18,
        max_position_embeddings=4096,
    )


def tiny_vision() -> VisionConfig:
    """A tower for the CPU tests; no two sizes alike, so that a swapped axis fails."""
    return VisionConfig(
        patch_size=6,
        vt_hidden_size=20,
        qkv_hidden_size=24,
        vt_num_attention_heads=2,
        vt_num_hidden_layers=2,
        vt_intermediate_size=28,
        init_pos_emb_height=5,
        init_pos_emb_width=7,
        init_pos_emb_time=3,
        rope_max_size=32,
        norm_eps=1e-5,
    )


TOWERS = {"tiny": tiny_vision}
"""Towers for presets that have none (`model.vision`)."""


def with_tower(config: K3Config, tower: str) -> K3Config:
    """A text model with a tower of TOWERS, and ids for the marks of images behind its vocabulary.

    Raises ValueError for an unknown tower, or a model that has one.
    """
    if tower not in TOWERS:
        raise ValueError(f"model.vision={tower}: give none or one of {', '.join(TOWERS)}")
    if config.vision is not None:
        raise ValueError(f"model.vision={tower}: this model has a vision tower of its own, set model.vision=none")
    size = config.vocab_size + MEDIA_TOKENS
    return replace(config, vision=TOWERS[tower](), vocab_size=size, media_placeholder_token_id=size - 1)


def small() -> K3Config:
    """About 108M parameters, 42M of them active: one GPU, or a patient CPU."""
    full = (4, 8, 12, 13)
    return K3Config(
        vocab_size=512,
        hidden_size=512,
        num_hidden_layers=13,
        num_attention_heads=8,
        intermediate_size=1536,
        num_experts=32,
        num_experts_per_token=4,
        num_shared_experts=2,
        moe_intermediate_size=256,
        routed_expert_hidden_size=256,
        q_lora_rank=192,
        kv_lora_rank=128,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        attn_res_block_size=4,
        linear_attn_config=LinearAttnConfig(
            8, 64, kda_layers=tuple(i for i in range(1, 14) if i not in full), full_attn_layers=full
        ),
        index_topk=256,
        index_n_heads=4,
        index_head_dim=64,
        max_position_embeddings=16384,
    )


def _k3(index_topk: int | None) -> K3Config:
    full = (*range(4, 93, 4), 93)
    return K3Config(
        vocab_size=163840,
        hidden_size=7168,
        num_hidden_layers=93,
        num_attention_heads=96,
        intermediate_size=33792,
        num_experts=896,
        num_experts_per_token=16,
        num_shared_experts=2,
        moe_intermediate_size=3072,
        routed_expert_hidden_size=3584,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        attn_res_block_size=12,
        linear_attn_config=LinearAttnConfig(
            96, 128, kda_layers=tuple(i for i in range(1, 94) if i not in full), full_attn_layers=full
        ),
        index_topk=index_topk,
        index_n_heads=0 if index_topk is None else 32,
        index_head_dim=0 if index_topk is None else 128,
        vision=VisionConfig(),
        media_placeholder_token_id=163605,
        quantization_config=mxfp4_packed(),
        extra={"dtype": "bfloat16", **_TOKENS},
        wrapper={
            "dtype": "bfloat16",
            "ignore_index": -100,
            "image_placeholder": "<|kimi_image_placeholder|>",
            **_TOKENS,
        },
    )


def k3() -> K3Config:
    """Kimi K3, 2.78T parameters: the public values of its config.json."""
    return _k3(None)


def k31_pro() -> K3Config:
    """Kimi K3.1 Pro: K3 with gated DSA (index names and sizes are inferred: no public file has them)."""
    return _k3(2048)


PRESETS = {f.__name__: f for f in (tiny, tiny_odd, small, k3, k31_pro)}
