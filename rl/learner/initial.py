"""The weights that a run starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from model.checkpoint_config import CONFIG, architecture, read_config
from model.shards import WeightsError, check_manifest, read_folder
from rl.config import Config
from rl.errors import UserError, cannot

ASSETS = Path(__file__).resolve().parents[2] / "assets"
"""Where the committed starts lie: `<preset>.safetensors`, written by `jointrl warmup`."""
_STORED = ("quantization_config", "index_keys")
"""Keys of a configuration that say how weights and keys are written, not what is computed."""


def start_files(config: Config) -> list[Path]:
    """Files of `policy.init`; none for scratch, and none where a Hugging Face folder brings its own weights.

    Raises UserError where there is no such start, it may not be read, or its config.json is of another architecture.
    """
    try:
        return _files(config)
    except OSError as error:
        raise UserError(cannot(error)) from None


def check_start(config: Config) -> None:
    """`start_files`, and every byte of a folder beside its manifest, if it has one: once, for it may take minutes.

    Raises UserError naming the file that is not as its manifest says.
    """
    start_files(config)
    init, path = config.policy.init, config.model.path
    folder = Path(path) if init == "warm" and path else Path(init)
    if init == "scratch" or not folder.is_dir():
        return
    try:
        check_manifest(folder)
    except WeightsError as error:
        raise UserError(f"the start of this run: {error}") from None
    except OSError as error:
        raise UserError(cannot(error)) from None


def _files(config: Config) -> list[Path]:
    init = config.policy.init
    if init == "scratch" or (init == "warm" and config.model.kind == "hf"):
        return []
    if folder := public_folder(config):
        return _shards(folder, config)
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


def public_folder(config: Config) -> Path | None:
    """The public checkpoint (a folder with a config.json) that a K3 run starts from, if it is one."""
    if config.model.kind != "k3" or config.policy.init == "scratch":
        return None
    if config.policy.init == "warm":
        return Path(config.model.path) if config.model.path else None
    folder = Path(config.policy.init)
    return folder if (folder / CONFIG).is_file() else None


def _shards(folder: Path, config: Config) -> list[Path]:
    try:
        entries = read_folder(folder)
        theirs, _ = read_config(folder)
        ours = architecture(config.model.preset, config.model.path, config.model.vision)
    except ValueError as error:
        raise UserError(str(error)) from None
    computed = [f.name for f in fields(theirs) if f.compare and f.name not in _STORED]
    names = [name for name in computed if getattr(theirs, name) != getattr(ours, name)]
    if names:
        said = ", ".join(f"{n}={getattr(theirs, n)} (not {getattr(ours, n)})" for n in names[:5])
        raise UserError(
            f"{folder / CONFIG} is of another architecture than the run's: {said}; set model.preset to its preset, or "
            f"model.path={folder}"
        )
    return sorted({entry.file for entry in entries.values()})


def load(config: Config, policy: Any) -> None:
    """Fill a policy, whose experts may be spread over ranks, with the weights that the run starts from, if any.

    A public checkpoint is streamed: a rank reads its own experts alone. Raises UserError or ValueError naming what does
    not fit. Call `refresh_quantized` afterwards.
    """
    from rl.learner import weights

    files = start_files(config)
    if folder := public_folder(config):
        from model.checkpoint import Checkpoint

        Checkpoint(folder).fill(weights.owned_weights(policy))
    elif files:
        start = read(files)
        if config.model.vision != "none":
            start = with_fresh_sight(start, dict(weights.owned_weights(policy)), policy.config.media_tokens)
        weights.load(policy, start)


def with_fresh_sight(
    start: dict[str, np.ndarray], own: Mapping[str, Any], marks: Sequence[int]
) -> dict[str, np.ndarray]:
    """A text model's start under a tower that `model.vision` put on it: what sees, and the rows of the marks of images
    behind the vocabulary, are the policy's own random ones. A start that has them stays as it is.
    """
    seeing = {name: w.cpu().numpy() for name, w in own.items() if name.startswith(("vision_tower.", "mm_projector."))}
    if seeing.keys() & start.keys():
        return start
    out = start | seeing
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in out and len(out[name]) == marks[0]:
            out[name] = np.concatenate([out[name], own[name][marks[0] :].cpu().numpy()])
    return out


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
