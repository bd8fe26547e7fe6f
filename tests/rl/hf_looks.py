"""A folder that looks like a small Hugging Face mixture of experts to whoever reads JSON and file headers alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from model.hf_tiny import build_tokenizer

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 2048,
    "num_experts": 6,
}


def write_config(folder: Path, **changes: Any) -> None:
    """config.json; None leaves a key out."""
    content = {k: v for k, v in (CONFIG | changes).items() if v is not None}
    (folder / "config.json").write_text(json.dumps(content))


def write_folder(folder: Path) -> Path:
    """Configuration, tokenizer, an embedding and one matrix of each expert of one layer."""
    write_config(folder)
    tensors = {f"model.layers.0.mlp.experts.{e}.up_proj.weight": np.zeros((8, 64), np.float32) for e in range(6)}
    save_file({"model.embed_tokens.weight": np.zeros((320, 64), np.float32)} | tensors, folder / "model.safetensors")
    build_tokenizer().save_pretrained(folder)
    return folder
