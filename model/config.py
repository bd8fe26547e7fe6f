"""The K3 family's architecture as numbers: public config names, presets, and exact parameter arithmetic. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class LinearAttnConfig:
    """`linear_attn_config` of the public config.json: the KDA mixer and the layer pattern. Layer lists are 1-BASED."""

    num_heads: int
    head_dim: int
    kda_layers: tuple[int, ...]
    """1-based indices of the KDA layers."""
    full_attn_layers: tuple[int, ...]
    """1-based indices of the MLA/DSA layers."""
    short_conv_kernel_size: int = 4
    gate_lower_bound: float = -5.0
    """The log-decay lies in (gate_lower_bound, 0); the chunk kernel is finite for 16 x |bound| < 2 x 88."""

    @property
    def width(self) -> int:
        """Inner width: heads x head_dim (not the hidden size)."""
        return self.num_heads * self.head_dim

    @property
    def a_log_size(self) -> int:
        """Stored length of A_log, of which the first `num_heads` are used (K3 stores 128 for 96 heads)."""
        return max(self.num_heads, self.head_dim)


@dataclass(frozen=True)
class K3Config:
    """One text model of the K3 family. `index_topk=None` is K3 (gated MLA); a number is K3.1 (gated DSA).

    Raises ValueError if the layer lists are not a partition of 1..num_hidden_layers or a size is impossible.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    """Width of the dense MLP of the first `first_k_dense_replace` layers."""
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    """Shared experts, fused as one full-width MLP of num_shared_experts x moe_intermediate_size."""
    moe_intermediate_size: int
    routed_expert_hidden_size: int
    """Latent width that the routed experts read and write."""
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    """Key dims shared by all heads; NoPE: they are never rotated."""
    v_head_dim: int
    attn_res_block_size: int
    linear_attn_config: LinearAttnConfig
    index_topk: int | None = None
    index_n_heads: int = 0
    index_head_dim: int = 0
    first_k_dense_replace: int = 1
    routed_scaling_factor: float = 1.0
    activation_situ_beta: float = 4.0
    activation_situ_linear_beta: float = 25.0
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    max_position_embeddings: int = 1048576
    num_nextn_predict_layers: int = 0
    """Multi-token-prediction layers (0 or 1), named as layer num_hidden_layers; K3 trained with one, ships none."""
    extra: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Public keys that the model does not read; kept for export."""

    def __post_init__(self) -> None:
        la, n = self.linear_attn_config, self.num_hidden_layers
        if sorted((*la.kda_layers, *la.full_attn_layers)) != list(range(1, n + 1)):
            raise ValueError(f"kda_layers and full_attn_layers must partition 1..{n} (1-based): {la}")
        if not 0 < self.num_experts_per_token < self.num_experts:
            raise ValueError(f"num_experts_per_token {self.num_experts_per_token} of {self.num_experts} experts")
        if self.index_topk is not None and min(self.index_topk, self.index_n_heads, self.index_head_dim) < 1:
            raise ValueError("index_topk needs index_n_heads and index_head_dim")
        if self.num_nextn_predict_layers not in (0, 1):
            raise ValueError(f"num_nextn_predict_layers {self.num_nextn_predict_layers}: this family has 0 or 1")
        if not 0 < -la.gate_lower_bound <= 5.0:
            raise ValueError(f"gate_lower_bound {la.gate_lower_bound}: must be in [-5, 0), the chunk kernel's range")

    @property
    def layer_types(self) -> list[str]:
        """Mixer of each layer, 0-based: "kda" or "full"."""
        full = set(self.linear_attn_config.full_attn_layers)
        return ["full" if i + 1 in full else "kda" for i in range(self.num_hidden_layers)]

    @property
    def moe_layers(self) -> list[int]:
        """0-based indices of the MoE layers; the order of the `L_moe` axis of routes."""
        return list(range(self.first_k_dense_replace, self.num_hidden_layers))

    @property
    def shared_intermediate_size(self) -> int:
        """Width of the fused shared experts."""
        return self.num_shared_experts * self.moe_intermediate_size

    @property
    def qk_head_dim(self) -> int:
        """Query-key width of one MLA head; its inverse root scales the scores."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Cached values per token and full layer: [c_kv | k_pe]."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @classmethod
    def preset(cls, name: str) -> K3Config:
        """A named config: tiny, tiny_odd, small, k3, k31_pro. Raises ValueError for another name."""
        from model.presets import PRESETS

        if name not in PRESETS:
            raise ValueError(f"unknown model preset {name!r}; choose from {sorted(PRESETS)}")
        return PRESETS[name]()

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> K3Config:
        """From a public config.json (its text_config if multimodal); unread keys are kept in `extra`."""
        text = dict(config.get("text_config", config))
        la = dict(text.pop("linear_attn_config"))
        la = {
            f.name: tuple(v) if isinstance(v := la[f.name], list) else v
            for f in fields(LinearAttnConfig)
            if f.name in la
        }
        known = {f.name for f in fields(cls)} - {"extra", "linear_attn_config"}
        own = {k: text.pop(k) for k in list(text) if k in known}
        return cls(**own, linear_attn_config=LinearAttnConfig(**la), extra=text)

    def to_hf(self) -> dict[str, Any]:
        """The public config.json's text part; `from_hf` restores it."""
        out = dict(self.extra)
        out |= {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("extra", "linear_attn_config")}
        la = self.linear_attn_config
        out["linear_attn_config"] = {
            f.name: list(v) if isinstance(v := getattr(la, f.name), tuple) else v for f in fields(la)
        }
        return out

    def part_counts(self) -> dict[str, int]:
        """Parameters by part, selection-bias buffers included."""
        h, la = self.hidden_size, self.linear_attn_config
        d, hd, nh = la.width, la.head_dim, self.num_attention_heads
        kda = 5 * d * h + hd * h + d * hd + la.num_heads * h + 3 * d * la.short_conv_kernel_size
        kda += d + hd + la.a_log_size
        v_width = nh * self.v_head_dim
        mla = self.q_lora_rank * (h + 1 + nh * self.qk_head_dim) + self.latent_dim * h + self.kv_lora_rank
        mla += nh * (self.qk_nope_head_dim + self.v_head_dim) * self.kv_lora_rank + 2 * v_width * h
        index = 0
        if self.index_topk is not None:
            index = self.index_n_heads * (self.index_head_dim * self.q_lora_rank + h)
            index += self.index_head_dim * (h + 2)
        latent, moe = self.routed_expert_hidden_size, len(self.moe_layers)
        n_full = len(la.full_attn_layers)
        return {
            "kda": len(la.kda_layers) * kda,
            "mla": n_full * mla,
            "indexer": n_full * index,
            "routed_experts": moe * self.num_experts * 3 * latent * self.moe_intermediate_size,
            "shared_experts": moe * 3 * h * self.shared_intermediate_size,
            "latent": moe * (2 * h * latent + latent),
            "router": moe * self.num_experts * (h + 1),
            "dense": self.first_k_dense_replace * 3 * h * self.intermediate_size,
            "embed": self.vocab_size * h,
            "head": self.vocab_size * h,
            "norms": self.num_hidden_layers * 6 * h + 3 * h,
        }

    def param_count(self) -> int:
        """All parameters of the text model, selection-bias buffers included; `mtp_count` comes on top."""
        return sum(self.part_counts().values())

    def mtp_count(self) -> int:
        """Parameters of the multi-token-prediction layer: one MLA and one MoE, two norms' and a head's width more."""
        h, parts, moe = self.hidden_size, self.part_counts(), len(self.moe_layers)
        block = parts["mla"] // len(self.linear_attn_config.full_attn_layers)
        block += sum(parts[p] for p in ("routed_experts", "shared_experts", "latent", "router")) // moe
        return self.num_nextn_predict_layers * (block + 2 * h * h + 5 * h + self.vocab_size * h)

    def active_count(self) -> int:
        """Parameters that one token reads; the input embedding table is left out, as in the report."""
        parts = self.part_counts()
        parts["routed_experts"] = parts["routed_experts"] // self.num_experts * self.num_experts_per_token
        return sum(parts.values()) - parts["embed"]

    def state_values(self, length: int) -> dict[str, int]:
        """Values (not bytes) that the decode state of one sequence of `length` tokens holds, by kind."""
        la = self.linear_attn_config
        n_kda, n_full = len(la.kda_layers), len(la.full_attn_layers)
        return {
            "recurrent": n_kda * la.width * la.head_dim,
            "conv": n_kda * 3 * la.width * (la.short_conv_kernel_size - 1),
            "latent": n_full * self.latent_dim * length,
            "index": 0 if self.index_topk is None else n_full * self.index_head_dim * length,
        }
