"""Trained weights as a Hugging Face folder: the folder that the run started from, with other values in its tensors."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from model.hf import empty_model
from model.hf_folder import read_folder
from model.hf_layout import layout, own_tensors
from model.shards import INDEX, MANIFEST, Spec, WeightsError, by_size, write_folder

FORMATS = {"fp32": (torch.float32, "F32"), "bf16": (torch.bfloat16, "BF16")}
"""Format -> torch's and safetensors' dtype of every floating-point tensor."""
_KEPT = ("*.json", "*.jinja", "*.txt", "*.model", "LICENSE*")
"""Files of the first folder that belong to the new one: configuration, tokenizer, chat template, licence."""


class Weights:
    """Where the trained weights are read from, by the names of the model's own parameters."""

    def __init__(self, read: Callable[[str], Tensor], expert: Callable[[str, int], Tensor]) -> None:
        """read(parameter): all of it. expert(parameter, e): entry e of a stack of experts."""
        self.read, self.expert = read, expert


def export(start: str | Path, weights: Weights, out: Path, fmt: str, shard_bytes: int) -> None:
    """Write `out`, as a whole or not at all, one tensor in memory at a time.

    start: the folder that the run began with, for architecture, tokenizer and public names. Raises WeightsError for an
    unknown format, a weight that is not finite or of another shape, or an `out` that exists; what `read_folder` raises.
    """
    if fmt not in FORMATS:
        raise WeightsError(f"a Hugging Face model is exported as {' or '.join(FORMATS)}, not {fmt}: set --format")
    folder, (dtype, word) = read_folder(start), FORMATS[fmt]
    model = empty_model(folder)
    parts, own = layout(model), own_tensors(model)
    specs = {name: Spec(name, word, tuple(part.of(own[part.parameter]).shape)) for name, part in sorted(parts.items())}

    def tensors(some: list[Spec]) -> Iterator[memoryview]:
        for spec in some:
            part = parts[spec.name]
            if part.expert is None:
                tensor = weights.read(part.parameter)
            else:
                tensor = part.of_expert(weights.expert(part.parameter, part.expert))
            if tuple(tensor.shape) != spec.shape:
                raise WeightsError(f"{spec.name} has shape {tuple(tensor.shape)}, {start} says {spec.shape}")
            tensor = tensor.to(dtype)
            if not tensor.isfinite().all():
                raise WeightsError(f"{spec.name} holds NaN or infinity, which is not exported: give another checkpoint")
            yield cast(Any, tensor.contiguous().view(torch.uint8).flatten().numpy()).data

    def others(target: Path) -> None:
        for pattern in _KEPT:
            for file in folder.path.glob(pattern):
                if file.name not in (INDEX, MANIFEST) and not file.name.endswith("start.json"):
                    shutil.copyfile(file, target / file.name)
        config = json.loads((target / "config.json").read_text())
        config.pop("torch_dtype", None)
        config["dtype"] = str(dtype).removeprefix("torch.")
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    write_folder(out, by_size(((s,) for s in specs.values()), shard_bytes), tensors, others)


def summary(folder: Path) -> str:
    """What a written folder holds, in words."""
    tensors = read_folder(folder).tensors
    count = sum(math.prod(t.shape) for t in tensors.values())
    return f"{count:,} parameters, {len(tensors):,} tensors in {len({t.file for t in tensors.values()})} shard(s)"
