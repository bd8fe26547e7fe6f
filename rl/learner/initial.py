"""The weights that a run starts from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rl.config import Config
from rl.errors import UserError

ASSETS = Path(__file__).resolve().parents[2] / "assets"
"""Where the committed starts lie: `<preset>.safetensors`, written by `jointrl warmup`."""


def start_files(config: Config) -> list[Path]:
    """Files of `policy.init`; none for scratch, and none where a Hugging Face folder brings its own weights.

    Raises UserError where there is no such start.
    """
    init = config.policy.init
    if init == "scratch" or (init == "warm" and config.model.kind == "hf"):
        return []
    if init == "warm":
        file = ASSETS / f"{config.model.preset}.safetensors"
        if not file.is_file():
            raise UserError(
                f"policy.init=warm: no start is committed for preset {config.model.preset} ({file}); "
                "set policy.init=scratch, or a folder with safetensors weights (`jointrl warmup` makes them)"
            )
        return [file]
    path = Path(init)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path] if path.suffix == ".safetensors" else []
    if not files or not all(f.is_file() for f in files):
        raise UserError(f"policy.init={init}: neither warm, scratch, nor a folder with safetensors weights")
    return files


def read(files: list[Path]) -> dict[str, np.ndarray]:
    """All tensors of the files by name, float32. Raises ValueError for a name that two files hold."""
    from safetensors import safe_open

    out: dict[str, np.ndarray] = {}
    for file in files:
        with safe_open(file, framework="pt") as f:
            for name in f.keys():  # noqa: SIM118 (not a dict)
                if name in out:
                    raise ValueError(f"{name} is in more than one of {[p.name for p in files]}")
                out[name] = f.get_tensor(name).float().numpy()
    return out
