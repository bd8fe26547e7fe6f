"""Public checkpoints of the K3 family: folders of safetensors shards with a config.json, streamed in and out.

`export` writes one from any source of weights, `Checkpoint` reads one, a tensor at a time: neither holds a second copy
of the model, and a rank that asks for its own experts reads no others. What is stored is said in `model.stored`.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from kernels.mx_pack import NAN_SCALE, pack_mxfp4, unpack_mxfp4
from model.checkpoint_config import CONFIG, public_config, read_config
from model.config import K3Config
from model.shards import (
    INDEX,
    MANIFEST,
    Entry,
    Spec,
    Unit,
    WeightsError,
    by_number,
    by_size,
    check_manifest,
    read_folder,
    refuse_target,
    write_folder,
)
from model.stored import DTYPES, VISION, is_expert, keeps_float32, layout

SHARD_BYTES = 5 * 10**9
_SHOWN = 5
"""Faults that one error names."""
_BEYOND = 64
"""Times the stored values that a config may describe before it is no config of theirs; nearer, tensors are named."""


@dataclass(frozen=True)
class Summary:
    """What `verify` found."""

    format: str
    """mxfp4, bf16 or fp32; "float" if bfloat16 and float32 are mixed otherwise than we write them."""
    tensors: int
    shards: int
    bytes: int
    """Of tensor data."""
    parameters: int
    unread: tuple[str, ...]
    """Tensors of parts that this policy does not have (a vision tower)."""
    hashed: bool
    """Whether a manifest was there, so that every byte is as it was written."""


# --- writing ----------------------------------------------------------------------------------------------------------


def export(
    config: K3Config,
    read: Callable[[str], Tensor],
    out: Path,
    fmt: str = "mxfp4",
    rule: str = "even",
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write the folder `out` as a whole or not at all; holds one weight at a time.

    read(name): the full-precision weight that `Policy.named_weights` calls so. rule: the scale rule of packed experts,
    which must be the one they were trained with. Raises WeightsError naming a weight that is not finite or of another
    shape, an unknown format, a shard size below the largest weight, or an `out` that exists.
    """
    refuse_target(out)
    units = layout(config, fmt)
    owner = {spec.name: name for name, unit in units.items() for spec in unit}

    def tensors(specs: list[Spec]) -> Iterator[memoryview]:
        waiting: dict[str, Tensor] = {}
        for spec in specs:
            if spec.name not in waiting:
                name = owner[spec.name]
                waiting |= _encode(name, read(name), units[name], config, rule)
            yield _bytes(waiting.pop(spec.name))

    def others(folder: Path) -> None:
        (folder / CONFIG).write_text(json.dumps(public_config(config, fmt), indent=1) + "\n")

    write_folder(out, by_size(units.values(), shard_bytes), tensors, others)


@torch.no_grad()
def _encode(name: str, weight: Tensor, unit: Unit, config: K3Config, rule: str) -> dict[str, Tensor]:
    """The stored tensors of one weight by their names."""
    stored, packed = unit[0].name.removesuffix("_packed"), len(unit) == 2
    if name.endswith(".A_log"):
        weight = weight.clone()
        weight[config.linear_attn_config.num_heads :] = 0.0  # no head uses these: zeros, as in the released files
    shape = (unit[0].shape[0], 2 * unit[0].shape[1]) if packed else unit[0].shape
    if tuple(weight.shape) != shape:
        raise WeightsError(
            f"{stored}: the weight has shape {tuple(weight.shape)}, the config says {shape}: give the preset, or the "
            "config.json, of these weights"
        )
    parts: tuple[Tensor, ...]
    if packed:
        parts = pack_mxfp4(weight.cpu(), rule)
        broken = (parts[1] == NAN_SCALE).any()
    else:
        parts = (weight.cpu().to(DTYPES[unit[0].dtype]),)
        broken = ~parts[0].isfinite().all()
    if broken:
        raise WeightsError(
            f"{stored}: the weight holds NaN or infinity, which is not exported: give another checkpoint"
        )
    return {spec.name: part for spec, part in zip(unit, parts, strict=True)}


def _bytes(tensor: Tensor) -> memoryview:
    return cast(Any, tensor.contiguous().view(torch.uint8).flatten().numpy()).data


# --- reading ----------------------------------------------------------------------------------------------------------


class Checkpoint:
    """A folder whose headers, index and config.json agree. Opening reads headers only.

    Raises WeightsError naming the tensor, key or file at fault: see `read_folder`, and everything that the config does
    not explain: a tensor that is missing, unknown, of another shape or dtype, half of a packed pair.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries = read_folder(folder)
        self.config, packed = read_config(folder)
        self._check_size()
        self._units = layout(self.config, "mxfp4" if packed else "bf16")
        self.unread = tuple(n for n in self._entries if n.startswith(VISION) and not self._known(n))
        self._check(packed)

    def _known(self, stored: str) -> bool:
        return stored in self._units  # a vision weight's own name is its public one

    def read(self, name: str) -> Tensor:
        """The weight that `Policy.named_weights` calls so, float32; packed experts are dequantised.

        Raises WeightsError if the policy has no such weight, or what is stored is not finite.
        """
        if name not in self._units:
            raise WeightsError(f"{name}: the policy of {self.folder / CONFIG} has no such weight")
        unit = self._units[name]
        parts = [self._tensor(spec.name) for spec in unit]
        if len(parts) == 1:
            weight = parts[0].float()
        else:
            if (parts[1] == NAN_SCALE).any():
                raise WeightsError(f"{unit[1].name} holds a NaN scale (255): export the weights again")
            weight = unpack_mxfp4(parts[0], parts[1])
        if not weight.isfinite().all():
            raise WeightsError(f"{unit[0].name} holds numbers that float32 does not: export the weights again")
        return weight

    @torch.no_grad()
    def fill(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy into these weights, each by the name that `Policy.named_weights` has for it, one after the other.

        What is not asked for is not read. Call `refresh_quantized` afterwards. Raises WeightsError as `read`, and for a
        weight of another shape.
        """
        for name, tensor in weights:
            stored = self.read(name)
            if stored.shape != tensor.shape:
                raise WeightsError(f"{name}: {tuple(stored.shape)} is stored for {tuple(tensor.shape)}")
            tensor.copy_(stored)

    def _tensor(self, stored: str) -> Tensor:
        entry = self._entries[stored]
        return torch.frombuffer(entry.read(), dtype=DTYPES[entry.spec.dtype]).view(entry.spec.shape)

    def _check_size(self) -> None:
        """Raise for sizes far beyond what is stored, before a model of them is laid out: that takes all memory."""
        parts = self.config.part_counts() | {"vision": self.config.vision_count(), "mtp": self.config.mtp_count()}
        stored = sum(2 * e.spec.nbytes for e in self._entries.values())  # a byte holds two values at most
        if (total := self.config.total_count()) > _BEYOND * stored:
            raise WeightsError(
                f"{self.folder / CONFIG} describes {total:,} parameters, most of them "
                f"{max(parts, key=lambda part: parts[part])}, the tensors hold {stored:,} at most: correct the config"
            )

    def _check(self, packed: bool) -> None:
        """Raise for what the headers and the config do not say alike, before any data is read."""
        wrong: list[str] = []
        for name, unit in self._units.items():
            there = [spec for spec in unit if spec.name in self._entries]
            if not there:
                wrong.append(self._absent(name, unit, packed))
            elif len(there) < len(unit):
                (absent,) = set(unit) - set(there)
                wrong.append(f"{absent.name} is missing beside {there[0].name}: export the weights again")
            for spec in there:
                found = self._entries[spec.name].spec
                if found.shape != spec.shape:
                    hint = ""
                    if name.endswith(".A_log"):
                        heads = self.config.linear_attn_config.num_heads
                        hint = f" (the first {heads} are used: pad with zeros)"
                    wrong.append(
                        f"{spec.name} has shape {list(found.shape)}, {CONFIG} asks for {list(spec.shape)}{hint}"
                    )
                if found.dtype not in (allowed := _dtypes(name, spec)):
                    wrong.append(
                        f"{spec.name} is {found.dtype}, must be {' or '.join(allowed)}: export the weights again"
                    )
        expected = {spec.name for unit in self._units.values() for spec in unit}
        wrong += [self._unknown(n, packed) for n in self._entries if n not in expected and n not in self.unread]
        wrong = [fault for fault in wrong if fault]
        if wrong:
            more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            raise WeightsError(f"{self.folder}: " + "; ".join(wrong[:_SHOWN]) + more)

    def _absent(self, name: str, unit: Unit, packed: bool) -> str:
        stored = unit[0].name.removesuffix("_packed")
        if is_expert(name):
            if packed and stored in self._entries:
                return f"{stored} is not packed, but {CONFIG} has quantization_config: remove that key, or export again"
            if not packed and f"{stored}_packed" in self._entries:
                return f"{stored}_packed is there, but {CONFIG} has no quantization_config: take the one of these files"
        return f"{stored} is missing: copy the shard that holds it, or export again"

    def _unknown(self, stored: str, packed: bool) -> str:
        """What to say of a tensor that is not expected; nothing if it stands for one whose absence was told."""
        plain = stored.removesuffix("_packed").removesuffix("_scale")
        units = {unit[0].name.removesuffix("_packed") for unit in self._units.values()} if is_expert(plain) else set()
        if plain in units:
            other = plain if packed else f"{plain}_packed"
            pair = [f"{plain}_packed", f"{plain}_scale"]
            if packed and stored == other and any(n in self._entries for n in pair):
                return f"{stored} is stored beside its packed form: remove one of them"
            if not packed and plain in self._entries:
                return f"{stored} is stored beside {plain}: remove one of them"
            return ""
        experts = f" (num_experts={self.config.num_experts})" if is_expert(plain) else ""
        return f"{stored} is unknown to {CONFIG}{experts}: remove it, or correct the config"

    # --- the whole ----------------------------------------------------------------------------------------------------

    def summary(self, hashed: bool = False) -> Summary:
        """Counts, from the headers."""
        entries = self._entries.values()
        dtypes = Counter(e.spec.dtype for e in entries if not e.spec.name.startswith(VISION))
        plain = {
            self._entries[unit[0].name].spec.dtype for name, unit in self._units.items() if not keeps_float32(name)
        } - {"U8"}
        fmt = "mxfp4" if dtypes["U8"] else {"BF16": "bf16", "F32": "fp32"}[plain.pop()] if len(plain) == 1 else "float"
        return Summary(
            fmt,
            len(self._entries),
            len({e.file for e in entries}),
            sum(e.spec.nbytes for e in entries),
            self.config.total_count(),
            self.unread,
            hashed,
        )

    def units(self) -> list[tuple[Entry, ...]]:
        """All tensors in order, those that belong together together."""
        known = [tuple(self._entries[spec.name] for spec in unit) for unit in self._units.values()]
        return known + [(self._entries[name],) for name in self.unread]


def _dtypes(name: str, spec: Spec) -> tuple[str, ...]:
    if spec.dtype == "U8":
        return ("U8",)
    return ("F32",) if keeps_float32(name) else ("BF16", "F32")


def verify(folder: Path) -> Summary:
    """Read everything: structure, hashes (if there is a manifest), scales and numbers. Raises WeightsError."""
    found = Checkpoint(folder)
    hashed = check_manifest(folder)
    for name in found._units:
        found.read(name)
    return found.summary(hashed)


def reshard(folder: Path, out: Path, number: int) -> list[str]:
    """Write the same tensors, byte for byte, as `number` shards of about the same size, with all other files.

    A packed pair stays in one shard. Returns the names of what is no file and was left out (folders, dead links).
    Raises WeightsError if the folder is not whole, `out` exists or lies in it, or the number is odd.
    """
    refuse_target(out)
    if out.resolve().is_relative_to(folder.resolve()):
        raise WeightsError(f"{out} lies in {folder}, which would then hold it: give a folder elsewhere")
    found = Checkpoint(folder)
    check_manifest(folder)  # what is copied is hashed anew: never what was altered
    entries = {entry.spec.name: entry for unit in found.units() for entry in unit}
    units = [tuple(entry.spec for entry in unit) for unit in found.units()]
    shards = {entry.file for entry in entries.values()} | {folder / INDEX, folder / MANIFEST}
    rest = [file for file in sorted(folder.iterdir()) if file not in shards]

    def others(half: Path) -> None:
        for file in rest:
            if file.is_file():
                shutil.copyfile(file, half / file.name)

    write_folder(out, by_number(units, number), lambda specs: (entries[s.name].read() for s in specs), others)
    return [file.name for file in rest if not file.is_file()]


def parse_size(text: str) -> int:
    """Bytes of "5GB", "512MB", "64KB" (powers of ten, as Hugging Face counts) or a number; raises WeightsError."""
    number = text.strip().upper().removesuffix("B")
    factor = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}.get(number[-1:], 1)
    try:
        size = float(number if factor == 1 else number[:-1]) * factor
    except ValueError:
        size = math.nan
    if not 1 <= size < math.inf:
        raise WeightsError(f"shard size {text!r}: give for example 5GB, 512MB or a number of bytes")
    return int(size)
