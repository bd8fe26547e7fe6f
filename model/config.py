"""The K3 family's architecture as numbers: public config names, checked, and exact arithmetic. Torch-free.

`model/public_config.py` reads and writes the public config.json, `model/presets.py` names configurations,
`model/arithmetic.py` counts parameters, state and operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any

from model import arithmetic
from model.vision_config import VisionConfig

MX_BLOCK = 32
"""Neighbouring weights of a row that share a scale in the MX formats (OCP MX 1.0)."""


MEDIA_TOKENS = 4
"""Marks of an image: begin, content, end, placeholder; neighbours in that order in the public vocabulary (the
placeholder is 163605) as in ours (`model.xtml.Media`)."""


@dataclass(frozen=True)
class LinearAttnConfig:
    """`linear_attn_config` of the public config.json: the KDA mixer and the layer pattern. Layer lists are 1-BASED.

    Raises ValueError naming the key if a value is impossible.
    """

    num_heads: int
    head_dim: int
    kda_layers: tuple[int, ...]
    """1-based indices of the KDA layers."""
    full_attn_layers: tuple[int, ...]
    """1-based indices of the MLA/DSA layers."""
    short_conv_kernel_size: int = 4
    gate_lower_bound: float = -5.0
    """The log-decay lies in (gate_lower_bound, 0); the chunk kernel is finite for 16 x |bound| < 2 x 88."""
    extra: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Public keys that the model does not read; kept for export."""

    def __post_init__(self) -> None:
        check_numbers(self, "linear_attn_config.")
        for name in ("kda_layers", "full_attn_layers"):
            layers = getattr(self, name)
            if type(layers) is not tuple or any(type(i) is not int for i in layers):
                raise ValueError(f"linear_attn_config.{name}={layers!r}: must be a list of layer numbers")
            if any(i < 1 for i in layers):
                raise ValueError(f"linear_attn_config.{name} has {min(layers)}: layers are counted from 1")
            if len(set(layers)) < len(layers):
                raise ValueError(f"linear_attn_config.{name} names a layer twice: {layers}")
        if not -5.0 <= self.gate_lower_bound < 0:
            raise ValueError(
                f"linear_attn_config.gate_lower_bound={self.gate_lower_bound}: must be in [-5, 0), the range in which "
                "the chunk kernel is finite"
            )

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
    """One policy of the K3 family. `index_topk=None` is K3 (gated MLA); a number is K3.1 (gated DSA).

    Field names are the public keys. Raises ValueError naming the key if values are impossible or contradict.
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
    moe_renormalize: bool = True
    """Divide the chosen experts' scores by their sum; without it they are the weights as they are."""
    activation_situ_beta: float = 4.0
    activation_situ_linear_beta: float | None = 25.0
    """Cap of the up branch; None leaves it uncapped."""
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    max_position_embeddings: int = 1048576
    logit_scale: float = 1.0
    """Factor of the logits."""
    num_nextn_predict_layers: int = 0
    """Multi-token-prediction layers (0 or 1), named as layer num_hidden_layers; K3 trained with one, ships none.
    Counted apart (`mtp_count`)."""
    vision: VisionConfig | None = None
    """The public `vision_config`, or None for a text model."""
    media_placeholder_token_id: int | None = None
    """Token that stands for one merged patch of a picture; needed with `vision`."""
    quantization_config: dict[str, Any] | None = field(default=None, hash=False)
    """How the checkpoint stores routed experts: None (bf16) or `public_config.mxfp4_packed()`."""
    index_keys: tuple[str, str, str] = ("index_topk", "index_n_heads", "index_head_dim")
    """What config.json calls these three: no public file of K3.1 says."""
    extra: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Public keys of the text config that the model does not read; kept for export."""
    wrapper: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    """Public keys beside `text_config`, kept for export; None: config.json is the text config itself, if no vision."""

    def __post_init__(self) -> None:
        check_numbers(self, "")
        la, n = self.linear_attn_config, self.num_hidden_layers
        kda, full = set(la.kda_layers), set(la.full_attn_layers)
        absent = next(i for i in count(1) if i not in kda and i not in full)
        for name, wrong in (
            ("linear_attn_config.kda_layers and full_attn_layers both have", kda & full),
            (
                f"num_hidden_layers={n}, but linear_attn_config.kda_layers and full_attn_layers name",
                {i for i in kda | full if i > n},
            ),
            (
                f"num_hidden_layers={n}, but linear_attn_config.kda_layers and full_attn_layers (counted from 1) lack",
                {absent} if absent <= n else set(),
            ),
        ):
            if wrong:
                raise ValueError(f"{name} layer {min(wrong)}: they must divide 1..{n} between them")
        if self.num_experts_per_token >= self.num_experts:
            raise ValueError(
                f"num_experts_per_token={self.num_experts_per_token}: must be less than num_experts={self.num_experts}"
            )
        if self.num_nextn_predict_layers > 1:
            raise ValueError(f"num_nextn_predict_layers={self.num_nextn_predict_layers}: this family has 0 or 1")
        if self.first_k_dense_replace >= n:
            raise ValueError(f"first_k_dense_replace={self.first_k_dense_replace} leaves no MoE layer of {n}")
        if self.index_topk is not None:
            for name in ("index_n_heads", "index_head_dim"):
                if getattr(self, name) < 1:
                    raise ValueError(f"{name}={getattr(self, name)}: index_topk={self.index_topk} needs an indexer")
        if self.vision is not None and self.media_placeholder_token_id is None:
            raise ValueError("media_placeholder_token_id is missing: vision_config needs the token of a picture")
        if (token := self.media_placeholder_token_id) is not None and not token < self.vocab_size:
            raise ValueError(f"media_placeholder_token_id={token} is beyond vocab_size={self.vocab_size}")
        if self.vision is not None and min(self.media_tokens) < 0:
            raise ValueError(f"media_placeholder_token_id={token}: the other marks of an image are the ids before it")
        if self.quantization_config is not None:
            for name in ("moe_intermediate_size", "routed_expert_hidden_size"):
                if getattr(self, name) % MX_BLOCK:
                    raise ValueError(
                        f"{name}={getattr(self, name)}: quantization_config packs blocks of {MX_BLOCK} along it"
                    )

    @property
    def media_tokens(self) -> tuple[int, ...]:
        """Ids of the marks of an image, the placeholder last: they are given, never sampled. None for a text model."""
        last = self.media_placeholder_token_id
        return () if self.vision is None or last is None else tuple(range(last + 1 - MEDIA_TOKENS, last + 1))

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
    def from_hf(
        cls,
        config: Mapping[str, Any],
        index_keys: tuple[str, str, str] = ("index_topk", "index_n_heads", "index_head_dim"),
    ) -> K3Config:
        """From a public config.json, whole or its text config alone; what the model does not read is kept.

        index_keys: what this file calls top-k, heads and head size of the indexer.
        Raises ValueError naming the key for what is missing, contradicts, or cannot be honoured.
        """
        from model.public_config import read

        return read(config, index_keys)

    def to_hf(self) -> dict[str, Any]:
        """The public config.json; `from_hf` restores this object, and a file that was read comes back as it was."""
        from model.public_config import write

        return write(self)

    def part_counts(self) -> dict[str, int]:
        """Parameters by part of the text model, selection-bias buffers included."""
        return arithmetic.part_counts(self)

    def param_count(self) -> int:
        """All parameters of the text model, selection-bias buffers included; vision and MTP are counted apart."""
        return sum(self.part_counts().values())

    def active_count(self) -> int:
        """Parameters that one token reads; the input embedding table is left out, as in the report."""
        parts = self.part_counts()
        parts["routed_experts"] = parts["routed_experts"] // self.num_experts * self.num_experts_per_token
        return sum(parts.values()) - parts["embed"]

    def mtp_count(self) -> int:
        """Parameters of the MTP layer; its head is its own, its embedding the model's."""
        return arithmetic.mtp_count(self)

    def vision_count(self) -> int:
        """Parameters of vision tower and projector; 0 for a text model."""
        if self.vision is None:
            return 0
        return self.vision.param_count() + self.vision.projector_count(self.hidden_size)

    def total_count(self) -> int:
        """All parameters of the policy: text, vision and MTP."""
        return self.param_count() + self.vision_count() + self.mtp_count()

    def routed_count(self) -> int:
        """Parameters of the routed experts of all layers, that of MTP included: what expert parallelism divides."""
        layers = len(self.moe_layers) + self.num_nextn_predict_layers
        return self.part_counts()["routed_experts"] // len(self.moe_layers) * layers

    def state_values(self, length: int) -> dict[str, int]:
        """Values (not bytes) that the decode state of one sequence of `length` tokens holds, by kind."""
        return arithmetic.state_values(self, length)

    def state_bytes(
        self, length: int, recurrent: str = "fp32", conv: str = "bf16", latent: str = "bf16", index: str = "bf16"
    ) -> dict[str, int]:
        """Bytes of the decode state of one sequence of `length` tokens, by kind; see `arithmetic.STATE_FORMATS`."""
        return arithmetic.state_bytes(self, length, recurrent, conv, latent, index)

    def flops(self, length: int) -> dict[str, float]:
        """Operations, by part, of decoding one token behind `length` tokens: 2 for each multiply-add."""
        return arithmetic.flops(self, length)

    def prefill_flops(self, length: int) -> dict[str, float]:
        """Operations, by part, of one token of a prompt of `length`, on average; forward only."""
        return arithmetic.prefill_flops(self, length)


_ZERO = (
    "index_n_heads",
    "index_head_dim",
    "first_k_dense_replace",
    "num_nextn_predict_layers",
    "media_placeholder_token_id",
)
"""Integers that may be zero."""


def check_numbers(config: Any, where: str) -> None:
    """Raises ValueError, naming the key behind `where`, for a number that has the wrong type or is no possible size."""
    for f in fields(config):
        value, kind = getattr(config, f.name), str(f.type)
        if value is None and kind.endswith("| None"):
            continue
        kind = kind.removesuffix(" | None")
        if kind == "int" and (type(value) is not int or value < (0 if f.name in _ZERO else 1)):
            least = "an integer >= 0" if f.name in _ZERO else "a positive integer"
            raise ValueError(f"{where}{f.name}={value!r}: must be {least}")
        if kind == "float" and (type(value) not in (int, float) or not math.isfinite(value)):
            raise ValueError(f"{where}{f.name}={value!r}: must be a finite number")
        if kind == "float" and value <= 0 and f.name != "gate_lower_bound":
            raise ValueError(f"{where}{f.name}={value!r}: must be positive")
        if kind == "bool" and type(value) is not bool:
            raise ValueError(f"{where}{f.name}={value!r}: must be true or false")
