"""MoonViT-V2 and its projector as numbers: the public `vision_config`, checked, and exact counts. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

HONOURED: dict[str, Any] = {
    "pos_emb_type": "divided_fixed",
    "pos_emb_interpolation_mode": "bilinear",
    "norm_type": "rmsnorm",
    "attn_bias": False,
    "patch_embed_proj_bias": False,
    "linear_bias": False,
    "mlp_type": "mlp2",
    "activation_func": "gelu_pytorch_tanh",
    "merge_type": "sd2_tpool",
    "mm_projector_type": "patchmergerv2",
    "projector_hidden_act": "gelu",
}
"""Public keys of which our tower computes one value only; that value is also the one of an absent key."""
PUBLIC_EPS = 2.0**-23
"""Epsilon of norms to which public code gives none (`torch.nn.RMSNorm(dim)`). Its documentation says that of the dtype,
2^-7 in bfloat16, but torch computes the norm in float32 and takes that one's (measured with 2.13, in bfloat16, float16
and float32 alike). The same in every dtype, so that learner, engine and public code are one model."""
_PRIVATE = ("rope_theta", "rope_max_size", "norm_eps")
"""Fields that are no public keys; written only where they differ from their default or were read."""


@dataclass(frozen=True)
class VisionConfig:
    """One vision tower and projector; the defaults are Kimi K3's. Field names are the public keys.

    Raises ValueError naming the key if a size is impossible.
    """

    patch_size: int = 14
    """Side of a patch in pixels; patches come from a bias-free convolution over 3 channels."""
    vt_hidden_size: int = 1024
    qkv_hidden_size: int = 1536
    """Inner width of attention, heads x head_dim; wider than the hidden size."""
    vt_num_attention_heads: int = 12
    vt_num_hidden_layers: int = 27
    vt_intermediate_size: int = 4096
    init_pos_emb_height: int = 64
    """Rows of the learned position table, resized bilinearly to a picture's height in patches."""
    init_pos_emb_width: int = 64
    init_pos_emb_time: int = 4
    """Frames for which there is a fixed sine-cosine time embedding."""
    merge_kernel_size: tuple[int, int] = (2, 2)
    """(height, width) in patches that one image token stands for."""
    projector_ln_eps: float = 1e-5
    rope_theta: float = 10000.0
    """Base of the 2D rotary frequencies. Not a public key, nor are the two below."""
    rope_max_size: int = 512
    """Longest side in patches that the rotary table covers."""
    norm_eps: float | None = None
    """Epsilon of the tower's norms; None, as in the public file, is PUBLIC_EPS in every dtype."""
    extra: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Public keys that the tower does not read; kept for export."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type == "int" and (type(value) is not int or value < 1):
                raise ValueError(f"vision_config.{f.name}={value!r}: must be a positive integer")
            number = type(value) in (int, float) and 0 < value < float("inf")
            if not (number or f.type not in ("float", "float | None") or (value is None and "None" in f.type)):
                raise ValueError(f"vision_config.{f.name}={value!r}: must be a positive number")
        merge = self.merge_kernel_size
        if type(merge) is not tuple or len(merge) != 2 or any(type(m) is not int or m < 1 for m in merge):
            raise ValueError(f"vision_config.merge_kernel_size={merge!r}: must be two positive integers")
        heads = self.vt_num_attention_heads
        if self.qkv_hidden_size % heads or self.head_dim % 4:
            raise ValueError(
                f"vision_config.qkv_hidden_size={self.qkv_hidden_size} over vt_num_attention_heads={heads}: each head "
                "needs a multiple of 4 dims, a complex pair for x and one for y"
            )
        if self.vt_hidden_size % 2:
            raise ValueError(f"vision_config.vt_hidden_size={self.vt_hidden_size}: sine-cosine time needs an even size")

    @property
    def eps(self) -> float:
        """Epsilon of the tower's norms, the same in learner, engine and every dtype."""
        return PUBLIC_EPS if self.norm_eps is None else self.norm_eps

    @property
    def head_dim(self) -> int:
        """Query-key width of one head; its inverse root scales the scores."""
        return self.qkv_hidden_size // self.vt_num_attention_heads

    @property
    def merged_size(self) -> int:
        """Width of one image token before the projector: the hidden states of all merged patches."""
        return self.merge_kernel_size[0] * self.merge_kernel_size[1] * self.vt_hidden_size

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], text_hidden: int) -> VisionConfig:
        """From a public `vision_config` beside a text model of `text_hidden`; unread keys are kept in `extra`.

        Raises ValueError naming the key for a value that the tower cannot honour.
        """
        rest = dict(config)
        only(rest, HONOURED, "vision_config.", optional=True)
        only(rest, {"text_hidden_size": text_hidden}, "vision_config.", optional=True)
        own = {f.name: rest.pop(f.name) for f in fields(cls) if f.name in rest and f.name != "extra"}
        rest |= {k: own[k] for k in _PRIVATE if k in own and own[k] == getattr(cls, k)}  # stated, so written again
        if isinstance(own.get("merge_kernel_size"), list):
            own["merge_kernel_size"] = tuple(own["merge_kernel_size"])
        vision = cls(**own, extra=rest)
        only(rest, {"mm_hidden_size": vision.vt_hidden_size}, "vision_config.", optional=True)
        return vision

    def to_hf(self, text_hidden: int) -> dict[str, Any]:
        """The public `vision_config` beside a text model of `text_hidden`; `from_hf` restores this object."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        own = {k: v for k, v in own.items() if k not in _PRIVATE or v != getattr(VisionConfig, k)}
        own["merge_kernel_size"] = list(self.merge_kernel_size)
        return self.extra | HONOURED | own | {"mm_hidden_size": self.vt_hidden_size, "text_hidden_size": text_hidden}

    def param_count(self) -> int:
        """Parameters of the tower, its position table included, without the projector."""
        h, inner = self.vt_hidden_size, self.qkv_hidden_size
        block = 4 * inner * h + 2 * h * self.vt_intermediate_size + 2 * h
        table = self.init_pos_emb_height * self.init_pos_emb_width
        return self.vt_num_hidden_layers * block + (3 * self.patch_size**2 + table + 1) * h

    def projector_count(self, text_hidden: int) -> int:
        """Parameters of the projector into a text model of `text_hidden`."""
        return self.merged_size**2 + self.merged_size * text_hidden + text_hidden


def only(config: dict[str, Any], honoured: Mapping[str, Any], where: str, optional: bool = False) -> None:
    """Take the keys of `honoured` out of `config`; raises ValueError where a value is another one, or is missing.

    where: what stands before the key in the error. optional: an absent key means the honoured value.
    """
    for key, value in honoured.items():
        if key not in config and not optional:
            raise ValueError(f"{where}{key} is missing: this model computes {value!r} only")
        given = config.pop(key, value)
        if given != value or isinstance(given, bool) != isinstance(value, bool):
            raise ValueError(f"{where}{key}={given!r}: this model computes {value!r} only")
