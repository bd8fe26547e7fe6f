"""The Triton kernels of MXFP4 and MXFP8 give the bits of the torch path, and both those of the definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from triton_cases import DEVICE, beyond, poisoned

from kernels.mx import MXFP4, MXFP8, MXFP8_E5M2, Format, fake_quantise_mxfp4, fake_quantise_mxfp8
from kernels.mx_pack import pack_mxfp4, pack_mxfp8, unpack_mxfp4, unpack_mxfp8
from kernels.paths import ran, use

FORMATS = [MXFP4, MXFP8, MXFP8_E5M2]
INTEGER = {
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float64: torch.int64,
}


def hard(columns: int, rows: int = 40) -> Tensor:
    """Every size of block maximum, ties, both zeros, NaN, both infinities, the largest and the smallest numbers."""
    g = torch.Generator().manual_seed(columns)
    x = torch.randn(rows, columns, generator=g) * torch.exp2(torch.randint(-140, 127, (rows, 1), generator=g).float())
    x[:8] = torch.randn(8, columns, generator=g)
    x[8:16] = (torch.randn(8, columns, generator=g) * 8).round() / 4
    x[16], x[17], x[18, 0], x[19, -1], x[20, 0] = 0.0, -0.0, math.nan, math.inf, -math.inf
    x[21, 0], x[22, 0], x[23] = 3.4e38, 1e-45, -9.2e-40
    return x.to(DEVICE)


def quantise(x: Tensor, fmt: Format, rule: str) -> Tensor:
    return fake_quantise_mxfp4(x, rule) if fmt is MXFP4 else fake_quantise_mxfp8(x, rule, fmt)


def same(got: Tensor, want: Tensor) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.equal(got.isnan(), want.isnan())
    whole = ~want.isnan()
    assert torch.equal(got.view(INTEGER[got.dtype])[whole], want.view(INTEGER[want.dtype])[whole])


@pytest.mark.parametrize("rule", ["even", "floor"])
@pytest.mark.parametrize("fmt", FORMATS, ids=["fp4", "e4m3", "e5m2"])
@pytest.mark.parametrize("columns", [1, 31, 32, 33, 100, 4096 + 32])
def test_fake_quantise_gives_the_same_bits(columns: int, fmt: Format, rule: str) -> None:
    x = hard(columns)
    with use("torch"):
        want = quantise(x, fmt, rule)
    with use("triton"), poisoned():
        got = quantise(beyond(x), fmt, rule)
    assert ran("mx") == "triton"
    same(got, want)


@pytest.mark.parametrize("rule", ["even", "floor"])
@pytest.mark.parametrize("fmt", FORMATS, ids=["fp4", "e4m3", "e5m2"])
def test_both_are_the_definition(fmt: Format, rule: str) -> None:
    x = hard(40)[:30]
    with use("reference"):
        want = quantise(x, fmt, rule)
    with use("torch"):
        same(quantise(x, fmt, rule), want)
    with use("triton"):
        same(quantise(x, fmt, rule), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_and_layouts(dtype: torch.dtype) -> None:
    x = hard(64).to(dtype)
    for view in (x, x.T.contiguous().T, x.view(4, 10, 64)):
        with use("torch"):
            want = fake_quantise_mxfp4(view)
        with use("triton"):
            same(fake_quantise_mxfp4(view), want)
            assert fake_quantise_mxfp4(view[:0]).shape == view[:0].shape


@pytest.mark.parametrize("rule", ["even", "floor"])
@pytest.mark.parametrize("fmt", FORMATS, ids=["fp4", "e4m3", "e5m2"])
def test_stored_bytes_are_the_same(fmt: Format, rule: str) -> None:
    x = hard(96)
    pack = pack_mxfp4 if fmt is MXFP4 else lambda x, rule: pack_mxfp8(x, rule, fmt)
    with use("torch"):
        elements, scales = pack(x, rule)
    with use("triton"), poisoned():
        got, got_scales = pack(beyond(x), rule)
    assert ran("mx_pack") == "triton" and got.dtype == elements.dtype
    assert torch.equal(got_scales, scales)
    broken = scales == 255
    same_bytes = (got.view(torch.uint8) == elements.view(torch.uint8)).unflatten(-1, (3, -1)).all(-1)
    assert bool((same_bytes | broken).all())
    with use("triton"), pytest.raises(ValueError, match="multiple of 32"):
        pack(hard(33), rule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_byte_unpacks_to_the_same_number(dtype: torch.dtype) -> None:
    scales = torch.arange(256, dtype=torch.uint8, device=DEVICE).unsqueeze(1)
    nibbles = torch.tensor([[2 * i | (2 * i + 1) << 4 for i in range(8)] * 2], dtype=torch.uint8, device=DEVICE)
    elements = [(unpack_mxfp4, nibbles.repeat(256, 1), scales)]
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        every = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(kind).repeat(256, 1)
        elements.append((unpack_mxfp8, every, scales.repeat(1, 8)))
    for unpack, packed, scale in elements:
        with use("torch"):
            want = unpack(packed, scale, dtype)
        with use("triton"), poisoned():
            got = unpack(packed, scale, dtype)
        assert ran("mx_unpack") == "triton"
        # Triton 3.6's interpreter makes zeros of what is subnormal in bfloat16, as are the numbers of the least scales.
        least = 20 if dtype == torch.bfloat16 and DEVICE == "cpu" else 0
        same(got[least:], want[least:])
    with use("triton"), pytest.raises(ValueError, match="float64"):
        unpack_mxfp4(nibbles, scales[:1], torch.float64)


def test_the_path_is_told_and_said() -> None:
    x = torch.randn(2, 32)
    fake_quantise_mxfp4(x)
    assert ran("mx") == "torch"
    with use("reference", "mx"):
        fake_quantise_mxfp4(x)
        assert ran("mx") == "reference"
        with use("triton", "mx_pack"):
            fake_quantise_mxfp4(x)
            assert ran("mx") == "reference"
    with pytest.raises(ValueError, match="unknown path"), use("cuda"):
        pass
