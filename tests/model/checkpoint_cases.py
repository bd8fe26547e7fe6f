"""A small policy with every kind of layer, and its public checkpoint, for the tests of checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import export
from model.config import K3Config, LinearAttnConfig
from model.decoder import Policy
from model.shards import INDEX

CUT = replace(
    K3Config.preset("small"),
    num_hidden_layers=3,
    num_experts=3,
    num_experts_per_token=2,
    hidden_size=96,
    intermediate_size=160,
    moe_intermediate_size=64,
    routed_expert_hidden_size=32,
    num_attention_heads=4,
    q_lora_rank=48,
    kv_lora_rank=40,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
    index_head_dim=24,
    linear_attn_config=LinearAttnConfig(4, 16, kda_layers=(1, 3), full_attn_layers=(2,)),
)
"""`small` with few and narrow layers, but with all its kinds of them."""
MOE = "model.layers.1.block_sparse_moe"
PACKED = f"language_model.{MOE}.experts.1.w2.weight"


def random_policy(config: K3Config = CUT, seed: int = 5) -> Policy:
    """Fresh weights, none of them a bfloat16, biases and gates included."""
    policy = Policy(config)
    policy.reset_parameters(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, w in policy.named_weights():
            w.add_(0.01 * torch.randn(w.shape, generator=generator))
    policy.refresh_quantized()
    return policy


def write(policy: Policy, out: Path, fmt: str = "mxfp4", **more: Any) -> Path:
    export(policy.config, dict(policy.named_weights()).__getitem__, out, fmt, **more)
    return out


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any], index: bool = True) -> None:
    """Put all tensors into one shard after a change; the index says so, unless it is left as it was."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
        file.unlink()
    change(tensors)
    name = "model-00001-of-00001.safetensors"
    save_file(tensors, folder / name)
    if index:
        (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, name)}))
