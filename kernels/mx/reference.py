"""MX rounding by its definition, one block of float64 numbers at a time: every element of the grid is looked at."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.mx.torch import BLOCK, Format, check_rule


def grid(fmt: Format) -> Tensor:
    """The magnitudes of an element format, ascending, float64: the place in the list is the code."""
    steps = 2**fmt.mantissa
    values = [m / steps * 2.0**fmt.emin for m in range(steps)]
    values += [(1 + m / steps) * 2.0**e for e in range(fmt.emin, fmt.emax + 1) for m in range(steps)]
    return torch.tensor([v for v in values if v <= fmt.largest], dtype=torch.float64)


def fake_quantise(x: Tensor, fmt: Format, rule: str) -> Tensor:
    """Values that the format stores for x, in x's dtype; see `kernels.mx`."""
    check_rule(rule)
    values = grid(fmt)
    out = torch.empty(x.shape, dtype=torch.float64)
    given = x.detach().double().cpu()
    for row, target in zip(given.reshape(-1, x.shape[-1]), out.view(-1, x.shape[-1]), strict=True):
        for start in range(0, len(row), BLOCK):
            target[start : start + BLOCK] = _block(row[start : start + BLOCK], values, fmt, rule)
    return out.to(device=x.device, dtype=x.dtype)


def _block(x: Tensor, values: Tensor, fmt: Format, rule: str) -> Tensor:
    amax = x.abs().max()
    if not bool(x.isfinite().all()):
        return torch.full_like(x, torch.nan)
    if amax == 0:
        return x.abs() if fmt.mantissa > 1 else x.clone()
    mantissa, exponent = torch.frexp(amax)
    e = int(exponent) - 1 - fmt.emax + (1 if rule == "even" and float(mantissa) * 2 >= 1.75 else 0)
    scale = 2.0 ** min(max(e, -127), 127 - fmt.emax)
    distance = (x.abs().unsqueeze(1) / scale - values).abs()
    nearest = distance.amin(1, keepdim=True)
    # Of two nearest neighbours the one with the even code.
    tied = (distance == nearest).double() * torch.where(torch.arange(len(values)) % 2 == 0, 2.0, 1.0)
    rounded = values[tied.argmax(1)] * scale
    signed = torch.copysign(rounded, x)
    return signed if fmt.mantissa == 1 else torch.where(rounded == 0, 0.0, signed)
