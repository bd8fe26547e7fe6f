"""MX block formats: MXFP4 (E2M1) and MXFP8 (E4M3, E5M2) with one shared E8M0 scale per 32 values of the last axis.

`torch` says the rules; `reference` is the definition, `triton` one pass over device memory, all three the same bits.
"""

from __future__ import annotations

from torch import Tensor

from kernels.mx.torch import (
    BLOCK,
    E2M1_VALUES,
    MXFP4,
    MXFP8,
    MXFP8_E5M2,
    Format,
    RoundMxfp8,
    blocks,
    check_rule,
    fake_quantise,
    nonfinite_blocks,
    scaled,
)
from kernels.paths import pick

__all__ = [
    "BLOCK",
    "E2M1_VALUES",
    "MXFP4",
    "MXFP8",
    "MXFP8_E5M2",
    "Format",
    "RoundMxfp8",
    "blocks",
    "check_rule",
    "fake_quantise_mxfp4",
    "fake_quantise_mxfp8",
    "nonfinite_blocks",
    "scaled",
]


def fake_quantise_mxfp4(x: Tensor, rule: str = "even") -> Tensor:
    """Values that MXFP4 stores for x, same shape and dtype; no gradient. Raises ValueError for an unknown rule."""
    return _fake_quantise(x, MXFP4, rule)


def fake_quantise_mxfp8(x: Tensor, rule: str = "even", fmt: Format = MXFP8) -> Tensor:
    """Values that MXFP8 stores for x, same shape and dtype; no gradient. Raises ValueError for an unknown rule."""
    return _fake_quantise(x, fmt, rule)


def _fake_quantise(x: Tensor, fmt: Format, rule: str) -> Tensor:
    path = pick("mx", x)
    if path == "triton":
        from kernels.mx import triton

        return triton.fake_quantise(x, fmt, rule)
    if path == "reference":
        from kernels.mx import reference

        return reference.fake_quantise(x, fmt, rule)
    return fake_quantise(x, fmt, rule)
