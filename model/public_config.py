"""The public config.json of the K3 family, read and written: a key is honoured, kept, or refused by name. Torch-free.

Whole files have model_type kimi_k3 with `text_config` (model_type kimi_linear) and `vision_config` in it; a text model
alone is the text config itself. Keys that change what is computed are fields of K3Config or stand in the tables below;
other keys (generation settings, names of remote code) are kept for export.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from model.config import MX_BLOCK, K3Config, LinearAttnConfig
from model.vision_config import VisionConfig, only

REQUIRED: dict[str, Any] = {
    "hidden_act": "situ",
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "latent_moe_use_norm": True,
}
"""Text keys of which the model computes one value only, and which mean another one to public code where they lack."""
OPTIONAL: dict[str, Any] = {
    "tie_word_embeddings": False,
    "moe_layer_freq": 1,
    "moe_router_activation_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_expert_group": 1,
    "topk_group": 1,
}
"""As above, but public code takes an absent key for this value too."""
OFF: dict[str, Any] = {"attn_value_gate": False, "index_rope": False, "index_hadamard": False, "index_kpool": 1}
"""What write-ups and relatives of K3.1 have and this model has not; written only where it was read."""
LINEAR_REQUIRED: dict[str, Any] = {"use_full_rank_gate": True}

_EXPLICIT = (
    "first_k_dense_replace",
    "activation_situ_beta",
    "activation_situ_linear_beta",
    "rms_norm_eps",
    "max_position_embeddings",
)
"""Fields with a default here that a file must state: public code has other defaults."""
_BESIDE = ("linear_attn_config", "vision", "media_placeholder_token_id", "index_keys", "extra", "wrapper")
"""Fields that are no keys of the text config."""
_QUIET = ("index_topk", "index_n_heads", "index_head_dim", "logit_scale", "quantization_config")
"""Fields that are written only where they differ from their default, as in the public file of K3."""
_TOP = ("vision_config", "media_placeholder_token_id")
"""Fields that are keys beside the text config; kept there as they are only where they are null."""
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def mxfp4_packed() -> dict[str, Any]:
    """The public `quantization_config`: routed experts packed as MXFP4 (compressed-tensors), nothing else."""
    weights: dict[str, Any] = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": MX_BLOCK,
        "num_bits": 4,
        "observer": "minmax",
        "observer_kwargs": {},
        "scale_dtype": "torch.uint8",
        "strategy": "group",
        "symmetric": True,
        "type": "float",
        "zp_dtype": None,
    }
    group = {
        "format": "mxfp4-pack-quantized",
        "input_activations": None,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": "mxfp4-pack-quantized",
        "global_compression_ratio": None,
        "ignore": [
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            "re:.*lm_head.*",
            "re:.*vision_tower.*",
            "re:.*mm_projector.*",
        ],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def read(config: Mapping[str, Any], index_keys: tuple[str, str, str]) -> K3Config:
    """See `K3Config.from_hf`."""
    if not isinstance(config, Mapping):
        raise ValueError(f"a configuration is a section with keys, not {config!r:.40}")
    whole = dict(config)
    nested = "text_config" in whole or whole.get("model_type") == "kimi_k3"
    text = dict(_section(whole, "text_config", "")) if nested else whole
    top = {k: v for k, v in whole.items() if k != "text_config"} if nested else {}
    where = "text_config." if nested else ""
    if nested:
        only(top, {"model_type": "kimi_k3"}, "")
        only(top, {"tie_word_embeddings": False}, "", optional=True)
    only(text, {"model_type": "kimi_linear"}, where)
    vision = None if top.get("vision_config") is None else _section(top, "vision_config", "")
    _old_names(text, where)
    linear = _linear(_section(text, "linear_attn_config", where), where)
    del text["linear_attn_config"]
    only(text, REQUIRED, where)
    only(text, OPTIONAL, where, optional=True)
    only(dict(text), OFF, where, optional=True)
    own = _fields(text, index_keys, where)
    pairs = text.pop("num_key_value_heads", own["num_attention_heads"])
    for key in text:
        if key.startswith("index_") and key not in (*OFF, *index_keys):
            raise ValueError(f"{where}{key}={text[key]!r}: this model has no such indexer; see `index_keys` for names")
    if "quantization_config" in top:  # public code copies it there
        if own.get("quantization_config", top["quantization_config"]) != top["quantization_config"]:
            raise ValueError(f"quantization_config differs from {where}quantization_config")
        if "quantization_config" in own:
            text["quantization_config"] = own["quantization_config"]  # in both places, so written to both again
        if top["quantization_config"] is not None:
            own["quantization_config"] = top["quantization_config"]
    if own.get("quantization_config") is not None:
        check_quantization(_section(own, "quantization_config", where))
    read = K3Config(
        **own,
        linear_attn_config=linear,
        vision=None if vision is None else VisionConfig.from_hf(vision, own["hidden_size"]),
        media_placeholder_token_id=top.get("media_placeholder_token_id"),
        index_keys=index_keys,
        extra=text,
        wrapper={k: v for k, v in top.items() if k not in _TOP or v is None} if nested else None,
    )
    only({"num_key_value_heads": pairs}, {"num_key_value_heads": read.num_attention_heads}, where)
    _check_kept(read, where)
    return read


def write(c: K3Config) -> dict[str, Any]:
    """See `K3Config.to_hf`."""
    own = {f.name: getattr(c, f.name) for f in fields(c) if f.name not in _BESIDE}
    defaults = {f.name: f.default for f in fields(c)}
    names = dict(zip(("index_topk", "index_n_heads", "index_head_dim"), c.index_keys, strict=True))
    own = {names.get(k, k): v for k, v in own.items() if k not in _QUIET or v != defaults[k]}
    top = dict(c.wrapper or {})
    if "quantization_config" in top:
        top["quantization_config"] = c.quantization_config
        if "quantization_config" not in c.extra:
            own.pop("quantization_config", None)
    la = c.linear_attn_config
    linear = {f.name: getattr(la, f.name) for f in fields(la) if f.name != "extra"}
    linear = {k: list(v) if isinstance(v, tuple) else v for k, v in linear.items()}
    text = {
        "architectures": ["KimiLinearForCausalLM"],
        **c.extra,
        "model_type": "kimi_linear",
        "num_key_value_heads": c.num_attention_heads,
        **REQUIRED,
        **OPTIONAL,
        **own,
        "linear_attn_config": la.extra | LINEAR_REQUIRED | linear,
    }
    if c.vision is None and c.wrapper is None:
        return text
    out = {
        "architectures": ["KimiK3ForConditionalGeneration"],
        **top,
        "model_type": "kimi_k3",
        "tie_word_embeddings": False,
        "text_config": text,
    }
    if c.media_placeholder_token_id is not None:
        out["media_placeholder_token_id"] = c.media_placeholder_token_id
    if c.vision is not None:
        out["vision_config"] = c.vision.to_hf(c.hidden_size)
    return out


def check_quantization(config: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the key, if this is not packed MXFP4 with nothing else quantised."""
    where, given = "quantization_config.", dict(config)
    whole = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
    only(given, whole, where)
    only(given, {"kv_cache_scheme": None}, where, optional=True)
    groups = dict(_section(given, "config_groups", where))
    if len(groups) != 1:
        raise ValueError(
            f"{where}config_groups has {len(groups)} groups: this model packs routed experts alone, in one"
        )
    (name,) = groups
    group = _section(groups, name, f"{where}config_groups.")
    where = f"{where}config_groups.{name}."
    weights = dict(_section(group, "weights", where))
    only(dict(group), {"input_activations": None, "output_activations": None}, where, optional=True)
    packed = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": MX_BLOCK, "symmetric": True}
    only(weights, packed, f"{where}weights.")
    also = {"dynamic": False, "scale_dtype": "torch.uint8", "actorder": None}
    only(weights, also, f"{where}weights.", optional=True)


def _section(config: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    section = config.get(key)
    if not isinstance(section, Mapping):
        fault = f"{where}{key}={section!r:.40}" if key in config else f"{where}{key} is missing"
        raise ValueError(f"{fault}: it must be a section with keys")
    return section


def _old_names(text: dict[str, Any], where: str) -> None:
    """Names of other releases for the same key."""
    for old, new in {"num_experts_per_tok": "num_experts_per_token"}.items():
        if old in text:
            value = text.pop(old)
            if text.setdefault(new, value) != value:
                raise ValueError(f"{where}{old}={value!r} contradicts {where}{new}={text[new]!r}")


def _fields(text: dict[str, Any], index_keys: tuple[str, str, str], where: str) -> dict[str, Any]:
    """Take the fields of K3Config out of the text config; a quiet one stays where it says the default."""
    names = dict(zip(("index_topk", "index_n_heads", "index_head_dim"), index_keys, strict=True))
    own, missing = {}, []
    for f in fields(K3Config):
        key = names.get(f.name, f.name)
        if f.name in _BESIDE:
            continue
        if key in text:
            own[f.name] = text[key] if f.name in _QUIET and text[key] == f.default else text.pop(key)
        elif f.default is MISSING or f.name in _EXPLICIT:
            missing.append(where + key)
    if missing:
        raise ValueError(f"config.json lacks {', '.join(missing)}")
    return own


def _linear(section: Mapping[str, Any], where: str) -> LinearAttnConfig:
    where, rest = f"{where}linear_attn_config.", dict(section)
    own: dict[str, Any] = {}
    for f in fields(LinearAttnConfig):
        if f.name == "extra":
            continue
        if rest.get(f.name) is None:
            why = (
                ": without it the gate is Kimi Linear's, which this model lacks" if f.name == "gate_lower_bound" else ""
            )
            raise ValueError(f"{where}{f.name} is missing{why}")
        value = rest.pop(f.name)
        own[f.name] = tuple(value) if isinstance(value, list) else value
    only(rest, LINEAR_REQUIRED, where)
    return LinearAttnConfig(**own, extra=rest)


def _check_kept(c: K3Config, where: str) -> None:
    """What is kept but not read must not contradict what is."""
    extra, top = c.extra, c.wrapper or {}
    for key in _TOKENS:
        for at, value in ((where + key, extra.get(key)), (key, top.get(key))):
            for token in value if isinstance(value, list) else [value]:
                if token is not None and not (type(token) is int and 0 <= token < c.vocab_size):
                    raise ValueError(f"{at}={value!r} is beyond {where}vocab_size={c.vocab_size}")
        if key in extra and key in top and extra[key] != top[key]:
            raise ValueError(f"{key}={top[key]!r} contradicts {where}{key}={extra[key]!r}")
    if (kinds := extra.get("layer_types")) is not None:
        read = ["kda" if "linear" in str(kind) or "kda" in str(kind) else "full" for kind in kinds]
        if read != c.layer_types:
            raise ValueError(f"{where}layer_types contradicts {where}linear_attn_config.kda_layers (counted from 1)")
    if (kind := extra.get("attention_type")) is not None and kind != ("mla" if c.index_topk is None else "dsa"):
        raise ValueError(f"{where}attention_type={kind!r} contradicts {where}{c.index_keys[0]}={c.index_topk!r}")
