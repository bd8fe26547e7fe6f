"""The config.json of a public checkpoint: read into a K3Config, written from one. Torch-free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model.config import K3Config
from model.shards import WeightsError

CONFIG = "config.json"
PACKED = "mxfp4-pack-quantized"
"""compressed-tensors' name of the packed format."""


def architecture(preset: str, path: str | Path | None = None) -> K3Config:
    """The architecture of a checkpoint folder, or of a preset where there is no path; raises ValueError for neither."""
    return K3Config.preset(preset) if path is None else read_config(Path(path))[0]


def read_config(folder: Path) -> tuple[K3Config, bool]:
    """The architecture that the folder's config.json says, and whether it says that experts are packed.

    Raises WeightsError naming what is wrong with it.
    """
    file = folder / CONFIG
    if not file.is_file():
        raise WeightsError(
            f"{file} is missing: give the folder of a public checkpoint, with the config.json of its weights"
        )
    try:
        public = json.loads(file.read_text())
        text = public.get("text_config", public)
        quantised = text.get("quantization_config") or public.get("quantization_config")
        said = None if quantised is None else quantised.get("format")
        config = K3Config.from_hf(public)
    except KeyError as e:
        raise WeightsError(f"{file} has no key {e}: give the config.json of a K3 model") from e
    except (AttributeError, TypeError, ValueError) as e:
        raise WeightsError(f"{file} is not a K3 configuration ({e}): give the config.json of these weights") from e
    if quantised is not None and said != PACKED:
        raise WeightsError(
            f"{file}: quantization_config.format is {said!r}; only {PACKED} is read: export the weights again"
        )
    return config, quantised is not None


def public_config(config: K3Config, fmt: str) -> dict[str, Any]:
    """The config.json of weights stored as mxfp4, bf16 or fp32."""
    out = config.to_hf()
    text = out.get("text_config", out)
    text.pop("quantization_config", None)  # of what the config was read from
    text["dtype"] = "float32" if fmt == "fp32" else "bfloat16"
    if fmt == "mxfp4":
        text["quantization_config"] = _quantization()
    return out


def _quantization() -> dict[str, Any]:
    """`quantization_config` of packed experts: weights alone, in compressed-tensors' words."""
    weights = {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "strategy": "group",
        "group_size": 32,
        "dynamic": False,
        "scale_dtype": "torch.uint8",
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    kept = [
        "self_attn",
        "shared_experts",
        r"mlp\.(gate|up|gate_up|down)_proj",
        "lm_head",
        "vision_tower",
        "mm_projector",
    ]
    # The released list leaves these out, though it stores them in bfloat16; a reader that goes by the list needs them.
    kept += [r"block_sparse_moe\.gate", r"routed_expert_(down|up)_proj"]
    return {
        "quant_method": "compressed-tensors",
        "format": PACKED,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group | {"format": PACKED}},
        "ignore": [f"re:.*{part}.*" for part in kept],
        "kv_cache_scheme": None,
    }
