"""The stored form of MX blocks: elements as codes, scales as E8M0 bytes; compressed-tensors' layout, bit for bit.

`torch` says the layout and is its own reference (the tests hold it to a table of every code); `kernels.mx.triton` packs
and unpacks in one pass over device memory.
"""

from __future__ import annotations

import torch as _torch
from torch import Tensor

from kernels.mx.torch import MXFP4, MXFP8, MXFP8_E5M2, Format
from kernels.mx_pack import torch as path_torch
from kernels.mx_pack.torch import DTYPES, NAN_SCALE, e8m0_values
from kernels.paths import pick

__all__ = ["NAN_SCALE", "e8m0_values", "pack_mxfp4", "pack_mxfp8", "unpack_mxfp4", "unpack_mxfp8"]


def pack_mxfp4(x: Tensor, rule: str = "even") -> tuple[Tensor, Tensor]:
    """Stored form of x [..., n], n a multiple of 32: (packed uint8 [..., n/2], scales uint8 [..., n/32]).

    A block that holds NaN or Inf gets the NaN scale. Raises ValueError if n is not a multiple of 32.
    """
    if pick("mx_pack", x) != "triton":
        return path_torch.pack_mxfp4(x, rule)
    from kernels.mx import triton

    return triton.pack(x, MXFP4, rule)


def unpack_mxfp4(packed: Tensor, scales: Tensor, dtype: _torch.dtype = _torch.float32) -> Tensor:
    """Numbers [..., n] of packed uint8 [..., n/2] and scales uint8 [..., n/32]; a NaN scale gives NaN.

    float32 holds all that `pack_mxfp4` writes; other scales than its (253, 254) may need float64.
    """
    if pick("mx_unpack", packed, _misfit(dtype)) != "triton":
        return path_torch.unpack_mxfp4(packed, scales, dtype)
    from kernels.mx import triton

    return triton.unpack(packed, scales, MXFP4, dtype)


def pack_mxfp8(x: Tensor, rule: str = "even", fmt: Format = MXFP8) -> tuple[Tensor, Tensor]:
    """Stored form of x [..., n], n a multiple of 32: (float8 [..., n], scales uint8 [..., n/32]); see `pack_mxfp4`."""
    if pick("mx_pack", x) != "triton":
        return path_torch.pack_mxfp8(x, rule, fmt)
    from kernels.mx import triton

    elements, scales = triton.pack(x, fmt, rule)
    return elements.view(DTYPES[fmt]), scales


def unpack_mxfp8(packed: Tensor, scales: Tensor, dtype: _torch.dtype = _torch.float32) -> Tensor:
    """Numbers [..., n] of float8 [..., n] (E4M3 or E5M2) and scales uint8 [..., n/32]; see `unpack_mxfp4`."""
    if pick("mx_unpack", packed, _misfit(dtype)) != "triton":
        return path_torch.unpack_mxfp8(packed, scales, dtype)
    from kernels.mx import triton

    fmt = MXFP8 if packed.dtype == DTYPES[MXFP8] else MXFP8_E5M2
    return triton.unpack(packed.contiguous().view(_torch.uint8), scales, fmt, dtype)


def _misfit(dtype: _torch.dtype) -> str:
    return "float64, as it multiplies in float32" if dtype == _torch.float64 else ""
