"""Every scale byte and every code of MXFP4 through its numbers and back: tests and the benchmark count them."""

from __future__ import annotations

import math

import torch

from kernels.mx import E2M1_VALUES
from kernels.mx_pack import e8m0_values, pack_mxfp4, unpack_mxfp4

CODES = [*E2M1_VALUES, *(-v for v in E2M1_VALUES)]
"""Value of each of the 16 codes of E2M1."""


def scales_and_codes_that_return(rule: str) -> tuple[int, int]:
    """How many of the 256 E8M0 bytes and of the 16 E2M1 codes give their exact numbers, and those the same bytes.

    float32 does not hold 6 under the scales 253 and 254: there, codes up to 1 keep their numbers under a smaller scale.
    255 is NaN, and NaN is 255.
    """
    packed = torch.tensor([2 * i | (2 * i + 1) << 4 for i in range(8)] * 2, dtype=torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8).unsqueeze(1)
    exact = unpack_mxfp4(packed, scales, torch.float64)
    right, codes = 0, set(range(16))
    for s in range(255):
        want = [math.ldexp(v, s - 127) for v in CODES * 2]
        signs = [math.copysign(1, v) for v in want]
        fits = exact[s].tolist() == want and [math.copysign(1, v) for v in exact[s].tolist()] == signs
        fits = fits and float(e8m0_values(scales)[s]) == math.ldexp(1.0, s - 127)
        if s < 253:
            again, back = pack_mxfp4(exact[s].float(), rule)
            fits = fits and int(back) == s
            both = zip(_codes(packed[s]), _codes(again), strict=True)
            codes -= {mine for mine, theirs in both if mine != theirs}
        else:
            small = unpack_mxfp4(torch.tensor([[0x21] * 16], dtype=torch.uint8), scales[s : s + 1])
            fits = fits and bool(small.isfinite().all())
            fits = fits and torch.equal(unpack_mxfp4(*pack_mxfp4(small, rule)), small)
        right += fits
    broken = pack_mxfp4(exact[255].float(), rule)[1]
    right += bool(exact[255].isnan().all()) and bool(e8m0_values(scales)[255].isnan()) and int(broken) == 255
    return right, len(codes)


def _codes(packed: torch.Tensor) -> list[int]:
    return torch.stack((packed & 15, packed >> 4), -1).flatten().tolist()
