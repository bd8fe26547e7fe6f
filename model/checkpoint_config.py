"""The config.json of a public checkpoint: read into a K3Config, written from one. Torch-free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from model.config import K3Config
from model.presets import with_tower
from model.public_config import mxfp4_packed
from model.shards import WeightsError, read_json

CONFIG = "config.json"


def architecture(preset: str, path: str | Path | None = None, vision: str = "none") -> K3Config:
    """The architecture of a checkpoint folder, or of a preset where there is no path.

    vision: a tower for a preset that has none (`model.presets.TOWERS`). Raises ValueError for what there is not.
    """
    if path is not None and vision != "none":
        raise ValueError(f"model.vision={vision}: a checkpoint (model.path) says itself what it sees: set it to none")
    config = K3Config.preset(preset) if path is None else read_config(Path(path))[0]
    return config if vision == "none" else with_tower(config, vision)


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
        config = K3Config.from_hf(read_json(file.read_text(), file))
    except WeightsError:
        raise
    except (RecursionError, ValueError) as e:
        raise WeightsError(f"{file} is not a K3 configuration ({e}): give the config.json of these weights") from e
    return config, config.quantization_config is not None


def public_config(config: K3Config, fmt: str) -> dict[str, Any]:
    """The config.json of weights stored as mxfp4, bf16 or fp32."""
    extra = {k: v for k, v in config.extra.items() if k != "quantization_config"}  # of what the config was read from
    extra["dtype"] = "float32" if fmt == "fp32" else "bfloat16"
    return replace(config, quantization_config=_quantization() if fmt == "mxfp4" else None, extra=extra).to_hf()


def _quantization() -> dict[str, Any]:
    """The public one, and what its list leaves out though it is stored in bfloat16: readers go by the list."""
    packed = mxfp4_packed()
    packed["ignore"] += [r"re:.*block_sparse_moe\.gate.*", r"re:.*routed_expert_(down|up)_proj.*"]
    return packed
