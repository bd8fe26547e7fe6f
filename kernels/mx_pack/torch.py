"""The stored form of MX blocks: elements as codes, scales as E8M0 bytes; compressed-tensors' layout, bit for bit.

MXFP4: two codes in a byte, the LOW nibble is the even column. MXFP8: torch's float8 dtypes. A scale byte s means
2^(s - 127), 255 is NaN. What is packed is what `kernels.mx` rounds to: `unpack(pack(x))` is the fake-quantised x (MXFP8
keeps the sign of a zero in its bytes alone). `pack(unpack(...))` of what was packed is the same bytes, but for MXFP8 by
the rule `even`, where a maximum that was rounded up to 1.75 takes the next scale. Bytes from elsewhere may keep a
block's numbers under a larger scale than either rule takes (a block whose largest MXFP4 code is below 4): packing them
again keeps the numbers alone.
Packing refuses what training would round differently: a last axis that is not a multiple of 32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.mx.torch import BLOCK, E2M1_VALUES, MXFP4, MXFP8, MXFP8_E5M2, Format, blocks, check_rule, scaled

NAN_SCALE = 255
"""E8M0's only NaN."""
DTYPES = {MXFP8: torch.float8_e4m3fn, MXFP8_E5M2: torch.float8_e5m2}
"""Element dtypes of the 8-bit formats."""


def pack_mxfp4(x: Tensor, rule: str = "even") -> tuple[Tensor, Tensor]:
    """Stored form of x [..., n], n a multiple of 32: (packed uint8 [..., n/2], scales uint8 [..., n/32]).

    A block that holds NaN or Inf gets the NaN scale. Raises ValueError if n is not a multiple of 32.
    """
    y, given, scales = _rounded(x, MXFP4, rule)
    table = torch.tensor(E2M1_VALUES, device=x.device)
    codes = torch.searchsorted(table, y.abs().nan_to_num_(0.0)) + 8 * torch.signbit(given)
    codes = codes.to(torch.uint8).flatten(-2)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), scales


def unpack_mxfp4(packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers [..., n] of packed uint8 [..., n/2] and scales uint8 [..., n/32]; a NaN scale gives NaN.

    float32 holds all that `pack_mxfp4` writes; other scales than its (253, 254) may need float64.
    """
    values = torch.tensor((*E2M1_VALUES, *(-v for v in E2M1_VALUES)), dtype=torch.float64, device=packed.device)
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    # Every product in the table is exact, and 16 numbers for each scale are fewer than 32.
    table = (values * e8m0_values(scales).unsqueeze(-1)).to(dtype)
    return table.gather(-1, codes.unflatten(-1, (-1, BLOCK)).long()).flatten(-2)


def pack_mxfp8(x: Tensor, rule: str = "even", fmt: Format = MXFP8) -> tuple[Tensor, Tensor]:
    """Stored form of x [..., n], n a multiple of 32: (float8 [..., n], scales uint8 [..., n/32]); see `pack_mxfp4`."""
    y, given, scales = _rounded(x, fmt, rule)
    return torch.copysign(y.nan_to_num_(0.0), given).to(DTYPES[fmt]).flatten(-2), scales


def unpack_mxfp8(packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers [..., n] of float8 [..., n] (E4M3 or E5M2) and scales uint8 [..., n/32]; see `unpack_mxfp4`."""
    values = packed.double().unflatten(-1, (-1, BLOCK))
    return (values * e8m0_values(scales).unsqueeze(-1)).to(dtype).flatten(-2)


def e8m0_values(scales: Tensor) -> Tensor:
    """float64 of E8M0 bytes: 2^(s - 127), NaN for 255."""
    return torch.where(scales == NAN_SCALE, torch.nan, torch.exp2(scales.double() - 127.0))


def _rounded(x: Tensor, fmt: Format, rule: str) -> tuple[Tensor, Tensor, Tensor]:
    """(elements in units of their scale, x itself, both [..., blocks, 32]; scales uint8 [..., blocks])."""
    check_rule(rule)
    if x.shape[-1] % BLOCK:
        raise ValueError(f"cannot pack a last axis of {x.shape[-1]}: not a multiple of {BLOCK}")
    given = blocks(x.detach())
    y, code, amax = scaled(given, fmt, rule)
    return y, given, torch.where(amax.isfinite(), code >> 23, NAN_SCALE).to(torch.uint8).squeeze(-1)
