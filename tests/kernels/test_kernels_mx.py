"""Laws of MXFP4 and MXFP8: golden tables, both scale rules, tails, tiny and broken blocks, the stored bytes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.mx import (
    E2M1_VALUES,
    RoundMxfp8,
    fake_quantise_mxfp4,
    fake_quantise_mxfp8,
    nonfinite_blocks,
)
from kernels.mx_pack import pack_mxfp4, unpack_mxfp4

BOTH = [fake_quantise_mxfp4, fake_quantise_mxfp8]


def slow(x: list[float], rule: str, fp4: bool) -> list[float]:
    """One block in Python floats: the definition."""
    grid = list(E2M1_VALUES)
    if not fp4:
        grid = [m / 8 * 2.0**-6 for m in range(8)] + [(1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8)]
        grid = grid[:-1]  # 480 is no E4M3 value
    amax = max(abs(v) for v in x)
    if amax == 0:
        return [0.0] * len(x)
    mantissa, exponent = math.frexp(amax)  # amax = mantissa * 2^exponent, mantissa in [0.5, 1)
    e = exponent - 1 - (2 if fp4 else 8) + (1 if rule == "even" and mantissa * 2 >= 1.75 else 0)
    out = []
    for v in x:
        y = min(abs(v) / 2.0**e, grid[-1])
        best = min(range(len(grid)), key=lambda i: (abs(grid[i] - y), i % 2))  # codes are in order: even code on a tie
        out.append(math.copysign(grid[best] * 2.0**e, v))
    return out


@pytest.mark.parametrize("rule", ["even", "floor"])
@pytest.mark.parametrize("fp4", [True, False])
def test_is_the_definition(rule: str, fp4: bool) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 32, generator=g) * torch.exp(6 * torch.randn(60, 1, generator=g))
    x[:20] = (x[:20] / x[:20].abs().amax(1, keepdim=True) * 16).round() / 8  # many exact ties
    got = (fake_quantise_mxfp4 if fp4 else fake_quantise_mxfp8)(x, rule)
    want = torch.tensor([slow(row.tolist(), rule, fp4) for row in x])
    assert torch.equal(got, want)


def scale_of(amax: float, rule: str) -> float:
    _, scale = pack_mxfp4(torch.tensor([amax] + [0.0] * 31), rule)
    return 2.0 ** (int(scale) - 127)


def test_scale_is_the_exponent_of_the_maximum_not_of_a_sixth_of_it() -> None:
    for amax, scale in ((2.7, 0.5), (5.5, 1.0), (1.2, 0.25)):
        assert scale_of(amax, "floor") == scale_of(amax, "even") == scale
    for amax, floor, even in ((6.1, 1.0, 1.0), (6.99, 1.0, 1.0), (7.0, 1.0, 2.0), (7.99, 1.0, 2.0), (8.0, 2.0, 2.0)):
        assert (scale_of(amax, "floor"), scale_of(amax, "even")) == (floor, even)


def test_a_block_maximum_above_the_largest_element() -> None:
    """957: floor saturates at 896, as OCP allows; even does not. 511.9999 keeps its exponent."""
    one = lambda v, rule: float(fake_quantise_mxfp8(torch.tensor([v]), rule))
    assert (one(957.0, "floor"), one(957.0, "even")) == (896.0, 960.0)
    assert (one(960.0, "floor"), one(960.0, "even")) == (896.0, 960.0)
    assert (one(511.9999, "floor"), one(511.9999, "even")) == (448.0, 512.0)
    assert (one(447.0, "floor"), one(447.0, "even")) == (448.0, 448.0)
    assert one(447.999, "even") == 448.0


@pytest.mark.parametrize("rule", ["even", "floor"])
def test_ties_go_to_the_even_element(rule: str) -> None:
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    want = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]
    assert fake_quantise_mxfp4(x, rule).tolist() == want
    assert fake_quantise_mxfp4(-x, rule).tolist() == [-v for v in want]
    assert float(fake_quantise_mxfp4(torch.tensor([7.0]), "floor")) == 6.0
    y = torch.tensor([1.0625, 1.1875, 1.3125, 2.125, 2.375, 256.0])  # halves of E4M3's steps
    assert fake_quantise_mxfp8(y, rule).tolist() == [1.0, 1.25, 1.25, 2.0, 2.5, 256.0]


@pytest.mark.parametrize("quantise", BOTH)
def test_tiny_and_empty_blocks(quantise) -> None:  # type: ignore[no-untyped-def]
    for amax in (1e-45, 9.18e-40, 1e-38, 1.2e-38, 1e-37, 1e-36):
        x = torch.full((32,), amax)
        y = quantise(x)
        assert y.isfinite().all()
        step = 2.0**-127 if quantise is fake_quantise_mxfp4 else 2.0**-135
        assert (y - x).abs().max() <= max(step / 2, amax / 4 if quantise is fake_quantise_mxfp4 else amax / 16)
    assert torch.equal(quantise(torch.zeros(2, 40)), torch.zeros(2, 40))
    assert quantise(torch.zeros(0, 32)).shape == (0, 32)
    mixed = torch.tensor([9.18e-40, 1e-37, -5e-38])
    assert quantise(mixed.bfloat16()).isfinite().all()
    big = torch.tensor([3.4e38, 1.0])
    assert quantise(big).isfinite().all() and quantise(-big).isfinite().all()


@pytest.mark.parametrize("quantise", BOTH)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_broken_block_is_loud_and_alone(quantise, bad: float) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(3, 100, generator=torch.Generator().manual_seed(0))
    good = quantise(x)
    x[1, 40] = bad
    y = quantise(x)
    assert y[1, 32:64].isnan().all()
    y[1, 32:64] = good[1, 32:64]
    assert torch.equal(y, good)
    assert nonfinite_blocks(x) == 1 and nonfinite_blocks(good) == 0


@pytest.mark.parametrize("quantise", BOTH)
@pytest.mark.parametrize("n", [1, 31, 32, 33, 63, 64, 65])
def test_a_tail_is_a_block_of_its_own(quantise, n: int) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(n))
    x[:, -1] = 500.0
    y = quantise(x)
    assert y.shape == x.shape
    for start in range(0, n, 32):
        assert torch.equal(y[:, start : start + 32], quantise(x[:, start : start + 32].contiguous()))
    assert torch.equal(quantise(x.T.contiguous().T), y)  # layout does not matter


@pytest.mark.parametrize("quantise", BOTH)
def test_rounding_again_changes_nothing(quantise) -> None:  # type: ignore[no-untyped-def]
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    for rule in ("even", "floor"):
        once = quantise(x, rule)
        assert torch.equal(quantise(once, rule), once)
        assert torch.equal(quantise(-x, rule), -once)
        assert torch.equal(quantise(x * 2**20, rule), once * 2**20)
        assert torch.equal(quantise(x.double(), rule), once.double())
        assert quantise(x.bfloat16(), rule).dtype == torch.bfloat16
        x.requires_grad_(True)
        assert not quantise(x, rule).requires_grad
        x = x.detach()


@pytest.mark.parametrize("rule", ["even", "floor"])
def test_the_rounding_of_decoding_is_the_same_bits(rule: str) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(400, 100, generator=g) * torch.exp2(torch.randint(-75, 100, (400, 1), generator=g).float())
    x[:100] *= torch.exp2(torch.randint(-30, 1, (100, 100), generator=g).float())
    x[100:120] = (x[100:120] / x[100:120].abs().amax(1, keepdim=True) * 32).round() / 16  # ties
    x[120], x[121, 5], x[122, 40], x[123, 99] = 0.0, math.nan, math.inf, -math.inf
    x[124], x[125] = -0.0, 1.75 * 2.0**60
    got, want = RoundMxfp8(rule)(x), fake_quantise_mxfp8(x, rule)
    assert torch.equal(got.view(torch.int32)[~want.isnan()], want.view(torch.int32)[~want.isnan()])
    assert torch.equal(got.isnan(), want.isnan()) and want.isnan().sum() == 32 + 32 + 4
    assert RoundMxfp8(rule)(torch.full((32,), 3e38)).isnan().all()
    assert (RoundMxfp8(rule)(torch.full((32,), 1e-37)) - 1e-37).abs().max() <= 1e-37 / 16
    with pytest.raises(ValueError, match="unknown MX scale rule"):
        RoundMxfp8("up")


def test_all_sixteen_codes() -> None:
    values = [*E2M1_VALUES, *(-v for v in E2M1_VALUES)]
    packed = torch.tensor([[2 * i | (2 * i + 1) << 4 for i in range(8)] * 2], dtype=torch.uint8)
    for scale in (1, 100, 127, 252):
        got = unpack_mxfp4(packed, torch.tensor([[scale]], dtype=torch.uint8))
        assert got[0, :16].tolist() == [float(torch.tensor(v * 2.0 ** (scale - 127))) for v in values]
        again, back = pack_mxfp4(got)
        assert int(back) == scale
        codes = again[0, :8].tolist()
        assert [c & 15 for c in codes] == [0, 2, 4, 6, 8, 10, 12, 14]
        assert [c >> 4 for c in codes] == [1, 3, 5, 7, 9, 11, 13, 15]
    assert unpack_mxfp4(packed, torch.tensor([[255]], dtype=torch.uint8)).isnan().all()


def test_the_low_nibble_is_the_even_column() -> None:
    packed, scale = pack_mxfp4(torch.tensor([1.0, 6.0] + [0.0] * 30))
    assert packed[0] == 0x72 and scale == 127


@pytest.mark.parametrize("rule", ["even", "floor"])
def test_what_is_stored_is_what_training_saw(rule: str) -> None:
    x = torch.randn(8, 96, generator=torch.Generator().manual_seed(0)) * 0.02
    packed, scales = pack_mxfp4(x, rule)
    assert packed.shape == (8, 48) and scales.shape == (8, 3)
    assert torch.equal(unpack_mxfp4(packed, scales), fake_quantise_mxfp4(x, rule))
    x[2, 5] = math.nan
    packed, scales = pack_mxfp4(x, rule)
    assert scales[2, 0] == 255 and unpack_mxfp4(packed, scales)[2, :32].isnan().all()
    with pytest.raises(ValueError, match="multiple"):
        pack_mxfp4(torch.zeros(3, 33))


def test_even_is_the_rule_of_compressed_tensors() -> None:
    oracle = pytest.importorskip("compressed_tensors.quantization.utils.mxfp_utils")
    x = torch.randn(400, 32, generator=torch.Generator().manual_seed(0)) * torch.logspace(-10, 10, 400).unsqueeze(1)
    amax = x.abs().amax(1)
    _, scales = pack_mxfp4(x, "even")
    assert torch.equal(scales[:, 0].float(), oracle.generate_mx_scales(amax))


def test_mxfp8_elements_are_torchs_float8() -> None:
    x = torch.randn(500, 32, generator=torch.Generator().manual_seed(0))
    e = torch.floor(torch.log2(x.abs().amax(1, keepdim=True))) - 8
    scaled: Tensor = (x * torch.exp2(-e)).clamp(-448, 448)
    want = scaled.to(torch.float8_e4m3fn).float() * torch.exp2(e)
    assert torch.equal(fake_quantise_mxfp8(x, "floor"), want)


@pytest.mark.parametrize("quantise", BOTH)
def test_an_unknown_rule_is_refused(quantise) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="rule"):
        quantise(torch.ones(32), "ceil")
