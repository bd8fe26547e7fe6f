"""A small policy with every kind of layer, and its public checkpoint, for the tests of checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from kernels.mx import fake_quantise_mxfp4
from kernels.mx_pack import pack_mxfp4
from model.checkpoint import Checkpoint, export
from model.config import K3Config, LinearAttnConfig
from model.decoder import Policy
from model.shards import INDEX
from model.stored import is_expert, public_name

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
    tensors = load(folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    change(tensors)
    name = "model-00001-of-00001.safetensors"
    save_file(tensors, folder / name)
    if index:
        (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, name)}))


def load(folder: Path) -> dict[str, torch.Tensor]:
    """Everything in the shards of a folder."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def packed_again(policy: Policy, folder: Path, rule: str = "even") -> tuple[int, int, int]:
    """Export, read and export again, into two folders below `folder`.

    Returns (packed and scale bytes of all experts, those of them that are not what `pack_mxfp4` makes of the weight,
    bytes of any tensor that differ between the two).
    """
    first, second = write(policy, folder / "first", rule=rule), folder / "second"
    read = Checkpoint(first)
    export(read.config, read.read, second, rule=rule)
    one, two = load(first), load(second)
    total = wrong = 0
    for name, w in policy.named_weights():
        if is_expert(name):
            for part, want in zip(("_packed", "_scale"), pack_mxfp4(w, rule), strict=True):
                stored = one[public_name(name) + part]
                total += stored.numel()
                wrong += int((stored != want).sum())
    if one.keys() != two.keys():
        raise ValueError(f"other tensors: {sorted(one.keys() ^ two.keys())[:5]}")
    differ = sum(int((t.view(torch.uint8) != two[n].view(torch.uint8)).sum()) for n, t in one.items())
    return total, wrong, differ


def read_by_compressed_tensors(policy: Policy, folder: Path) -> tuple[int, float, list[str]]:
    """What its own classes make of an exported folder: config.json, packed pairs, and the list of what is not packed.

    Returns (experts' matrices read, largest difference from what training computed with, linear layers of which its
    list says otherwise than they are stored). Raises ImportError without compressed-tensors, ValueError if its
    compressor does not take the scheme that our config.json names.
    """
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationConfig

    said = json.loads((folder / "config.json").read_text())
    text = said.get("text_config", said)
    quantised = QuantizationConfig.model_validate(text["quantization_config"])
    scheme = quantised.config_groups["group_0"]
    if not MXFP4PackedCompressor.can_compress(torch.nn.Linear, scheme) or scheme.input_activations is not None:
        raise ValueError(f"compressed-tensors reads another scheme from {folder}: {scheme}")
    stored, count, gap, listed = load(folder), 0, 0.0, []
    for name, w in policy.named_weights():
        if is_expert(name):
            stem = public_name(name).removesuffix("weight")
            pair = {part: stored[stem + part] for part in ("weight_packed", "weight_scale")}
            theirs = MXFP4PackedCompressor.decompress(pair, scheme)["weight"].float()
            count, gap = count + 1, max(gap, float((theirs - fake_quantise_mxfp4(w)).abs().max()))
        ignored = [p for p in quantised.ignore if re.match(p.removeprefix("re:"), public_name(name))]
        linear = w.dim() == 2 and "embed_tokens" not in name and "res_proj" not in name
        if linear and bool(ignored) == is_expert(name):
            listed.append(name)
    return count, gap, listed
