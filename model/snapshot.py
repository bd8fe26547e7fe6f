"""One sequence's decode state outside a model: what it is of, how it lies, and its bytes."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from model.config import K3Config

Layout = Literal["key_first", "value_first"]
"""Axes of the recurrent state of a head: [K, V] (this model, fla) or [V, K] (FlashKDA and vLLM). K = V, so a swap would
raise no error by itself."""

FORMAT = "k3-decode-state-1"
"""Raised when tensors or header change; another one is refused."""


def fingerprint(config: K3Config) -> str:
    """16 hex digits of every number of the architecture; names, storage and keys that the model does not read do not
    count.
    """
    numbers = asdict(config)
    for key in ("extra", "wrapper", "index_keys", "quantization_config"):
        numbers.pop(key)
    for section in (numbers["linear_attn_config"], numbers["vision"] or {}):
        section.pop("extra", None)
    return hashlib.blake2b(json.dumps(numbers, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state after `length` tokens: recurrent [L_kda, heads, K, V], conv [L_kda, W-1, 3D], latent [L_full, length,
    kv_rank + pe] and, with an indexer, index [L_full, length, d].
    """

    tensors: dict[str, Tensor]
    length: int
    model: str
    """`fingerprint` of the config."""
    version: int
    """Of the weights that computed it."""
    layout: Layout = "key_first"

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())

    def as_layout(self, layout: Layout) -> Snapshot:
        """The same state with the recurrent part laid out so: for an engine that wants the other axis first."""
        if layout == self.layout:
            return self
        turned = self.tensors["recurrent"].mT.contiguous()
        return replace(self, tensors=self.tensors | {"recurrent": turned}, layout=layout)

    def check(self, into: Mapping[str, Tensor], model: str, version: int) -> None:
        """Raise ValueError naming what keeps this state from being copied into these tensors of a model."""
        if self.model != model:
            raise ValueError(f"exported state of another model: config {self.model}, this one is {model}")
        if self.version != version:
            raise ValueError(f"exported state was computed with weights of version {self.version}, not {version}")
        if self.layout != "key_first":
            raise ValueError(f"exported recurrent state is {self.layout}: turn it with as_layout('key_first')")
        if set(self.tensors) != set(into):
            raise ValueError(f"exported state holds {sorted(self.tensors)}, this model needs {sorted(into)}")
        for name, mine in into.items():
            theirs = self.tensors[name]
            if theirs.shape != mine.shape or theirs.dtype != mine.dtype:
                raise ValueError(
                    f"exported state does not fit: {name} is {theirs.dtype} {tuple(theirs.shape)}, "
                    f"this state holds {mine.dtype} {tuple(mine.shape)}"
                )

    def to_bytes(self) -> bytes:
        """A safetensors file: the tensors with their dtypes, and a header that names all the rest."""
        header = {"format": FORMAT, "length": str(self.length), "model": self.model, "version": str(self.version)}
        return safetensors.torch.save(self.tensors, header | {"layout": self.layout})

    @classmethod
    def from_bytes(cls, blob: bytes) -> Snapshot:
        """What `to_bytes` gave. Raises ValueError for other bytes, a cut file, a missing field or another format."""
        try:
            tensors = safetensors.torch.load(blob)
            (size,) = struct.unpack("<Q", blob[:8])
            header = json.loads(blob[8 : 8 + size]).get("__metadata__", {})
        except (SafetensorError, struct.error) as e:
            raise ValueError(f"these {len(blob)} bytes are no decode state: {e}") from e
        if header.get("format") != FORMAT:
            raise ValueError(f"decode state of format {header.get('format')!r}: this reads {FORMAT!r}")
        missing = {"length", "model", "version", "layout"} - set(header)
        if missing or header["layout"] not in ("key_first", "value_first"):
            raise ValueError(f"decode state without {sorted(missing)}, layout {header.get('layout')!r}")
        return cls(tensors, int(header["length"]), header["model"], int(header["version"]), header["layout"])
