"""Weights are served only after every tensor was compared with its manifest. Knows numpy alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from rollout.engine.base import WeightManifest

_DIGEST = 16
"""Bytes of a tensor's checksum: 128 bits, far beyond accidents."""


def checksum(array: np.ndarray) -> str:
    """Hex blake2b of an array's raw bytes in C order."""
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=_DIGEST).hexdigest()


def describe(version: int, tensors: Mapping[str, np.ndarray]) -> WeightManifest:
    """The manifest of a weight set: dtype (numpy's name), shape and checksum of every tensor."""
    return WeightManifest(version, {n: (str(a.dtype), tuple(a.shape), checksum(a)) for n, a in tensors.items()})


def verify(
    manifest: WeightManifest, tensors: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Compare tensors with their manifest, and its names and shapes with the model's (`expected`: name -> shape).

    Raises ValueError naming the first tensor that is missing, unknown, or differs in dtype, shape or checksum.
    """
    for what, names in (("model", expected.keys()), ("buckets", tensors.keys())):
        if odd := sorted(names ^ manifest.tensors.keys()):
            raise ValueError(f"manifest and {what} differ in {len(odd)} tensors, first {odd[0]}")
    for name, (dtype, shape, digest) in manifest.tensors.items():
        array = tensors[name]
        if tuple(shape) != tuple(expected[name]):
            raise ValueError(f"{name}: shape {tuple(shape)} in the manifest, {tuple(expected[name])} in the model")
        if (str(array.dtype), array.shape) != (dtype, tuple(shape)):
            raise ValueError(f"{name}: got {array.dtype} {array.shape}, the manifest says {dtype} {tuple(shape)}")
        if checksum(array) != digest:
            raise ValueError(f"{name}: checksum {checksum(array)} is not the manifest's {digest}")
