"""A folder of safetensors shards: read header by header, written tensor by tensor, one tensor in memory at a time.

Knows nothing of the model, and needs no torch. The layout is Hugging Face's: `model-00001-of-00003.safetensors`, and an
index that says which tensor is in which file; `manifest.json` holds the size and the SHA-256 of every file. Every error
names the file or the tensor at fault and what to do.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
MANIFEST = "manifest.json"
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
ITEM_BYTES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U64": 8, "U32": 4, "U16": 2, "C64": 8}
_MAX_HEADER = 100_000_000
"""What the safetensors library refuses to read beyond."""
_AGAIN = "copy it again from where it was complete"
_OTHER = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""What reading a file of somebody else's JSON raises."""


class WeightsError(ValueError):
    """Weights that are missing, torn, altered or not those of the model; the message names what, and what to do."""


@dataclass(frozen=True)
class Spec:
    """One stored tensor: its name, safetensors' word for its dtype, its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Entry:
    """A stored tensor and where it lies: `nbytes` from `begin`, counted from the start of the file."""

    spec: Spec
    file: Path
    begin: int

    def read(self) -> bytearray:
        """Its bytes."""
        data = bytearray(self.spec.nbytes)
        with self.file.open("rb", buffering=0) as f:
            f.seek(self.begin)
            view, at = memoryview(data), 0
            while at < len(data):  # one call reads 2 GiB at most
                got = f.readinto(view[at:])
                if not got:
                    raise WeightsError(f"{self.file} ends inside {self.spec.name}: {_AGAIN}")
                at += got
        return data


# --- reading ----------------------------------------------------------------------------------------------------------


def read_header(file: Path) -> dict[str, Entry]:
    """The tensors of one file by name. Raises WeightsError unless header and size agree to the byte."""
    if not file.is_file():
        raise WeightsError(f"{file} is missing: {_AGAIN}")
    size = file.stat().st_size
    with file.open("rb") as f:
        length = int.from_bytes(f.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise WeightsError(
                f"{file} is not a whole safetensors file: its header would have {length} bytes, the file has {size}; "
                + _AGAIN
            )
        text = f.read(length)
    try:
        header = read_json(text, file)
        table = {name: _entry(name, said, file, 8 + length) for name, said in header.items() if name != "__metadata__"}
    except WeightsError:
        raise
    except _OTHER as e:
        raise WeightsError(f"{file} is not a safetensors file: its header is not readable ({e!r}); {_AGAIN}") from e
    at = 8 + length
    for entry in sorted(table.values(), key=lambda e: (e.begin, e.spec.nbytes)):
        if entry.begin != at:
            raise WeightsError(f"{file}: {entry.spec.name} begins at byte {entry.begin}, not {at}: write it again")
        at += entry.spec.nbytes
    if at != size:
        what = "truncated" if size < at else "longer than its header says"
        raise WeightsError(f"{file} is {what}: {size} bytes for {at}; {_AGAIN}")
    return table


def read_json(text: str | bytes, file: Path) -> Any:
    """The JSON of a file. Raises WeightsError for a key that stands twice in an object, ValueError for no JSON."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) < len(pairs):
            twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
            raise WeightsError(f"{file} holds {twice} twice: keep one of them")
        return out

    return json.loads(text, object_pairs_hook=once)


def _entry(name: str, said: dict[str, Any], file: Path, data: int) -> Entry:
    begin, end = said["data_offsets"]
    if type(said["shape"]) is not list or any(type(n) is not int for n in (begin, end, *said["shape"])):
        raise WeightsError(
            f"{file}: {name} has shape {said['shape']!r} at {said['data_offsets']!r}: these are lists of whole numbers"
        )
    if said["dtype"] not in ITEM_BYTES:
        raise WeightsError(
            f"{file}: {name} has the unknown dtype {said['dtype']!r}: store one of {', '.join(ITEM_BYTES)}"
        )
    spec = Spec(name, said["dtype"], tuple(said["shape"]))
    if min(spec.shape, default=0) < 0 or end - begin != spec.nbytes:
        raise WeightsError(
            f"{file}: {name} holds {end - begin} bytes; {spec.dtype} {list(spec.shape)} has {spec.nbytes}: {_AGAIN}"
        )
    return Entry(spec, file, data + begin)


def read_folder(folder: Path) -> dict[str, Entry]:
    """Every tensor of the folder by name, in the order of the files. Reads headers only.

    Raises WeightsError if the files, the index and the headers do not say the same, or a tensor is in two files, and
    OSError where it may not be read.
    """
    if not folder.is_dir():
        is_file = (
            f"{folder} is a file: give the folder that holds it" if folder.exists() else f"{folder} does not exist"
        )
        raise WeightsError(is_file)
    files = sorted(file for file in folder.iterdir() if file.suffix == ".safetensors")  # glob hides what is forbidden
    weight_map = None
    if (folder / INDEX).is_file():
        weight_map = _weight_map(folder / INDEX)
        named = {folder / name for name in weight_map.values()}
        if stray := sorted(set(files) - named):
            raise WeightsError(f"{stray[0]} is not in {INDEX}: remove the file, or write the index again")
        files = sorted(named)
    elif not files:
        raise WeightsError(f"{folder} has no safetensors file: give a folder that `jointrl ckpt export` wrote")
    elif len(files) > 1:
        raise WeightsError(f"{folder} has {len(files)} shards and no {INDEX}: {_AGAIN}")
    table: dict[str, Entry] = {}
    for file in files:
        for name, entry in read_header(file).items():
            if name in table:
                raise WeightsError(f"{name} is in {table[name].file.name} and in {file.name}: keep one of them")
            table[name] = entry
    if weight_map is not None:
        for name in sorted(weight_map.keys() | table.keys()):
            said, found = weight_map.get(name), table[name].file.name if name in table else None
            if said != found:
                raise WeightsError(
                    f"{name} is in {found or 'no file'}, {INDEX} says {said or 'nothing of it'}: {_AGAIN}"
                )
    return table


def _weight_map(file: Path) -> dict[str, str]:
    try:
        weight_map = read_json(file.read_text(), file)["weight_map"]
        names = {str(file): str(where) for file, where in weight_map.items()}
    except WeightsError:
        raise
    except _OTHER as e:
        raise WeightsError(f"{file} is not readable as an index ({e!r}): {_AGAIN}") from e
    if odd := [where for where in names.values() if Path(where).name != where or not where.endswith(".safetensors")]:
        raise WeightsError(f"{file} names {odd[0]!r}: a shard is a .safetensors file beside its index")
    return names


def check_manifest(folder: Path) -> bool:
    """Whether there is a manifest; raises WeightsError naming a file that is not as it says. Reads every byte.

    A manifest that leaves out a file with weights vouches for nothing, and is an error too.
    """
    path = folder / MANIFEST
    if not os.path.lexists(path):  # a dead link is there, and is an error
        return False
    try:
        said = read_json(path.read_text(), path)["files"]
        files = {str(name): (one["bytes"], one["sha256"]) for name, one in said.items()}
    except WeightsError:
        raise
    except _OTHER as e:
        raise WeightsError(f"{path} is not readable ({e!r}): {_AGAIN}, or remove it") from e
    weights = [file.name for file in sorted(folder.iterdir()) if file.suffix == ".safetensors"]
    if absent := [name for name in (*weights, INDEX) if name not in files and (folder / name).exists()]:
        raise WeightsError(f"{path} does not name {absent[0]}: {_AGAIN}, or remove {MANIFEST}")
    for name, (size, digest) in files.items():
        file = folder / name
        if not file.is_file():
            raise WeightsError(f"{file} is missing ({MANIFEST} names it): {_AGAIN}")
        if file.stat().st_size != size:
            raise WeightsError(f"{file} has {file.stat().st_size} bytes, {MANIFEST} says {size}: {_AGAIN}")
        with file.open("rb") as f:
            if hashlib.file_digest(f, "sha256").hexdigest() != digest:
                raise WeightsError(f"{file} does not have the SHA-256 of {MANIFEST}: {_AGAIN}")
    return True


# --- writing ----------------------------------------------------------------------------------------------------------

Unit = tuple[Spec, ...]
"""Tensors that stay in one shard."""


def by_size(units: Iterable[Unit], limit: int) -> list[list[Spec]]:
    """Shards of at most `limit` bytes of data, in order. Raises WeightsError naming a unit that is larger."""
    shards: list[list[Spec]] = []
    room = 0
    for unit in units:
        size = sum(spec.nbytes for spec in unit)
        if size > limit:
            raise WeightsError(f"shard size {limit}: {unit[0].name} alone has {size} bytes; give at least that")
        if not shards or size > room:
            shards.append([])
            room = limit
        shards[-1] += unit
        room -= size
    return shards


def by_number(units: list[Unit], number: int) -> list[list[Spec]]:
    """Exactly `number` shards of about the same size, in order. Raises WeightsError if there are fewer units."""
    if not 0 < number <= len(units):
        raise WeightsError(f"{number} shards: give a number from 1 to {len(units)}, what can be stored apart")
    total = sum(spec.nbytes for unit in units for spec in unit)
    shards, done, at = [], 0, 0
    for i in range(number):
        first = at
        while at < len(units) - (number - 1 - i) and (at == first or done < total * (i + 1) / number):
            done += sum(spec.nbytes for spec in units[at])
            at += 1
        shards.append([spec for unit in units[first:at] for spec in unit])
    return shards


def refuse_target(out: Path) -> None:
    """Raise WeightsError if `out` is there already, or a writer of it is at work or was killed."""
    if os.path.lexists(out):
        raise WeightsError(f"{out} exists: give another folder, or remove it")
    if (half := _half(out)).exists():
        raise WeightsError(f"{half} is being written, or was when its writer was killed: remove it if nobody writes it")


def _half(out: Path) -> Path:
    return out.with_name(f".{out.name}.partial")


def write_folder(
    out: Path,
    shards: list[list[Spec]],
    tensors: Callable[[list[Spec]], Iterator[bytes | bytearray | memoryview]],
    others: Callable[[Path], None],
) -> None:
    """Write `out`, which must not exist, as a whole or not at all.

    tensors(specs): the bytes of these tensors, in their order, one at a time. others(folder) writes what else belongs
    there (config.json). Raises WeightsError as `refuse_target`, and if the disk has too little room or a tensor has not
    the size that was said; OSError naming the file that could not be written.
    """
    refuse_target(out)
    total = sum(spec.nbytes for shard in shards for spec in shard)
    out.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(out.parent).free) < total:
        raise WeightsError(
            f"{out} takes {total / 1e9:.3g} GB, {free / 1e9:.3g} GB are free there: make room, or give another disk"
        )
    half = _half(out)
    half.mkdir()
    try:
        others(half)
        hashes = {file.name: _sha256(file) for file in sorted(half.iterdir())}
        where: dict[str, str] = {}
        for i, shard in enumerate(shards):
            name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
            # Larger items first, so that every tensor is aligned.
            ordered = sorted(shard, key=lambda spec: -ITEM_BYTES[spec.dtype])
            hashes[name] = _write_shard(half / name, ordered, tensors(ordered))
            where |= {spec.name: name for spec in ordered}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        (half / INDEX).write_text(json.dumps(index, indent=1) + "\n")
        hashes[INDEX] = _sha256(half / INDEX)
        files = {name: {"bytes": (half / name).stat().st_size, "sha256": digest} for name, digest in hashes.items()}
        (half / MANIFEST).write_text(json.dumps({"format": 1, "files": files}, indent=1) + "\n")
        half.rename(out)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)  # what went wrong is said, not that this did not succeed either
        raise


def _write_shard(file: Path, specs: list[Spec], tensors: Iterator[bytes | bytearray | memoryview]) -> str:
    """Write one file; returns its SHA-256."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for spec in specs:
        header[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": (at, at + spec.nbytes)}
        at += spec.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sha = hashlib.sha256()

    def put(data: bytes | bytearray | memoryview) -> None:
        sha.update(data)
        view = memoryview(data)
        while view:
            try:
                view = view[f.write(view) :]
            except OSError as error:  # a full disk: the system does not say of which file
                raise OSError(error.errno, error.strerror, str(file)) from None

    with file.open("wb", buffering=0) as f:
        put(len(text).to_bytes(8, "little") + text)
        for spec, data in zip(specs, tensors, strict=True):
            if len(data) != spec.nbytes:
                raise WeightsError(f"{spec.name} has {len(data)} bytes, {spec.nbytes} were announced")
            put(data)
        os.fsync(f.fileno())
    return sha.hexdigest()


def _sha256(file: Path) -> str:
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
