"""Exact counts of a K3 configuration: parameters by part, bytes of decode state, operations. Torch-free.

The published totals that these formulas give are pinned in tests/model/test_model_config.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model.config import K3Config

KDA_CHUNK = 64
"""Tokens of one chunk of the KDA prefill kernel (public kernels, `fla.ops.kda`)."""
_SCALED = 128
"""Values that share one float32 scale in the fp8 caches of latents and index keys (FlashMLA, DeepSeek-V3.2)."""


def _fp8_scaled(values: int) -> int:
    return values + 4 * -(-values // _SCALED)


STATE_FORMATS: dict[str, dict[str, Callable[[int, int], int]]] = {
    "recurrent": {"fp32": lambda main, rest: 4 * main, "bf16": lambda main, rest: 2 * main},
    "conv": {"fp32": lambda main, rest: 4 * main, "bf16": lambda main, rest: 2 * main},
    "latent": {
        "fp32": lambda main, rest: 4 * (main + rest),
        "bf16": lambda main, rest: 2 * (main + rest),
        "fp8": lambda main, rest: main + rest,
        "fp8_ds_mla": lambda main, rest: _fp8_scaled(main) + 2 * rest,
    },
    "index": {
        "fp32": lambda main, rest: 4 * main,
        "bf16": lambda main, rest: 2 * main,
        "fp8": lambda main, rest: _fp8_scaled(main),
    },
}
"""Formats of each kind of state: bytes of one row from its values and, for latents, the unrotated key dims beside them.

`fp8_ds_mla` keeps c_kv in e4m3 with a float32 scale for each 128 values, and the key dims in bf16 (FlashMLA).
"""


def mixer_counts(c: K3Config) -> dict[str, int]:
    """Parameters of one KDA mixer, one MLA mixer and one indexer (0 without)."""
    h, la = c.hidden_size, c.linear_attn_config
    d, hd, nh = la.width, la.head_dim, c.num_attention_heads
    kda = 5 * d * h + hd * h + d * hd + la.num_heads * h + 3 * d * la.short_conv_kernel_size
    kda += d + hd + la.a_log_size
    v_width = nh * c.v_head_dim
    mla = c.q_lora_rank * (h + 1 + nh * c.qk_head_dim) + c.latent_dim * h + c.kv_lora_rank
    mla += nh * (c.qk_nope_head_dim + c.v_head_dim) * c.kv_lora_rank + 2 * v_width * h
    index = 0
    if c.index_topk is not None:
        index = c.index_n_heads * (c.index_head_dim * c.q_lora_rank + h)
        index += c.index_head_dim * (h + 2)
    return {"kda": kda, "mla": mla, "indexer": index}


def moe_counts(c: K3Config) -> dict[str, int]:
    """Parameters of one MoE layer by part, its selection bias included."""
    h, latent = c.hidden_size, c.routed_expert_hidden_size
    return {
        "routed_experts": c.num_experts * 3 * latent * c.moe_intermediate_size,
        "shared_experts": 3 * h * c.shared_intermediate_size,
        "latent": 2 * h * latent + latent,
        "router": c.num_experts * (h + 1),
    }


def part_counts(c: K3Config) -> dict[str, int]:
    """See `K3Config.part_counts`."""
    h, la, mixer = c.hidden_size, c.linear_attn_config, mixer_counts(c)
    n_full = len(la.full_attn_layers)
    return {
        "kda": len(la.kda_layers) * mixer["kda"],
        "mla": n_full * mixer["mla"],
        "indexer": n_full * mixer["indexer"],
        **{part: len(c.moe_layers) * count for part, count in moe_counts(c).items()},
        "dense": c.first_k_dense_replace * 3 * h * c.intermediate_size,
        "embed": c.vocab_size * h,
        "head": c.vocab_size * h,
        "norms": c.num_hidden_layers * 6 * h + 3 * h,
    }


def mtp_count(c: K3Config) -> int:
    """See `K3Config.mtp_count`: an MLA + MoE block without indexer, what joins embedding and hidden state, a head."""
    h = c.hidden_size
    block = mixer_counts(c)["mla"] + sum(moe_counts(c).values())
    return c.num_nextn_predict_layers * (block + 2 * h * h + 5 * h + c.vocab_size * h)


def state_values(c: K3Config, length: int) -> dict[str, int]:
    """See `K3Config.state_values`."""
    la = c.linear_attn_config
    n_kda, n_full = len(la.kda_layers), len(la.full_attn_layers)
    return {
        "recurrent": n_kda * la.width * la.head_dim,
        "conv": n_kda * 3 * la.width * (la.short_conv_kernel_size - 1),
        "latent": n_full * c.latent_dim * length,
        "index": 0 if c.index_topk is None else n_full * c.index_head_dim * length,
    }


def state_bytes(c: K3Config, length: int, recurrent: str, conv: str, latent: str, index: str) -> dict[str, int]:
    """See `K3Config.state_bytes`. Raises ValueError naming the kind for a format that it has not."""
    chosen = {"recurrent": recurrent, "conv": conv, "latent": latent, "index": index}
    for kind, name in chosen.items():
        if name not in STATE_FORMATS[kind]:
            raise ValueError(f"{kind}={name!r}: must be one of {', '.join(STATE_FORMATS[kind])}")
    of = {kind: STATE_FORMATS[kind][name] for kind, name in chosen.items()}
    values, n_full = state_values(c, length), len(c.linear_attn_config.full_attn_layers)
    return {
        "recurrent": of["recurrent"](values["recurrent"], 0),
        "conv": of["conv"](values["conv"], 0),
        "latent": n_full * length * of["latent"](c.kv_lora_rank, c.qk_rope_head_dim),
        "index": 0 if c.index_topk is None else n_full * length * of["index"](c.index_head_dim, 0),
    }


def flops(c: K3Config, length: int) -> dict[str, float]:
    """See `K3Config.flops`: absorbed MLA over all tokens, or over the indexer's choice of them."""
    la = c.linear_attn_config
    return {
        "weights": 2.0 * c.active_count(),
        "kda": 7.0 * len(la.kda_layers) * la.width * la.head_dim,
        "attention": _absorbed(c) * (length if c.index_topk is None else min(length, c.index_topk)),
        "indexer": _indexer(c) * length,
    }


def prefill_flops(c: K3Config, length: int) -> dict[str, float]:
    """See `K3Config.prefill_flops`: a token sees half of the prompt; chunked KDA, MLA with keys and values written out.

    Sparse attention gathers latents and is absorbed; it counts where it is the cheaper one of the two.
    """
    la = c.linear_attn_config
    attention = 2.0 * len(la.full_attn_layers) * c.num_attention_heads * (c.qk_head_dim + c.v_head_dim) * length / 2
    k = c.index_topk
    if k is not None and length > k:
        attention = min(attention, _absorbed(c) * (k - k * k / (2 * length)))
    chunk = 6 * la.head_dim + 10 * KDA_CHUNK
    return {
        "weights": 2.0 * c.active_count(),
        "kda": 1.0 * len(la.kda_layers) * la.width * chunk,
        "attention": attention,
        "indexer": _indexer(c) * length / 2,
    }


def _absorbed(c: K3Config) -> float:
    """Operations of all layers' absorbed attention for one key that a token sees."""
    return 2.0 * len(c.linear_attn_config.full_attn_layers) * c.num_attention_heads * (c.latent_dim + c.kv_lora_rank)


def _indexer(c: K3Config) -> float:
    """Operations of all layers' index scores for one key; its projections count among the weights."""
    if c.index_topk is None:
        return 0.0
    return 2.0 * len(c.linear_attn_config.full_attn_layers) * c.index_n_heads * (c.index_head_dim + 1)
