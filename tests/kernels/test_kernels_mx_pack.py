"""Laws of the stored form: compressed-tensors' bytes, every code and scale, what training saw, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from mx_cases import scales_and_codes_that_return
from torch import Tensor

from kernels.mx import E2M1_VALUES, MXFP8, MXFP8_E5M2, RoundMxfp8, fake_quantise_mxfp4, fake_quantise_mxfp8
from kernels.mx_pack import pack_mxfp4, pack_mxfp8, unpack_mxfp4, unpack_mxfp8

RULES = ["even", "floor"]


def spread(rows: int, columns: int, seed: int = 0) -> Tensor:
    """Blocks of every size that float32 has; ties, rule boundaries and zeros of both signs among them."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=g)
    x *= torch.exp2(torch.randint(-120, 120, (rows, 1), generator=g).float())
    x[::5] = (x[::5] / x[::5].abs().amax(1, keepdim=True) * 16).round() / 8
    x[1::7, 0] = 1.75 * x[1::7].abs().amax(1).log2().ceil().exp2()  # amax at the boundary of the two rules
    x[2::9, :8], x[3::9, :8] = 0.0, -0.0
    x[4::11] *= -(2.0**-30)
    return x


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("rule", RULES)
def test_what_is_stored_is_what_training_saw_to_the_bit(rule: str) -> None:
    x = spread(3000, 96)
    x = x[x.abs().amax(1) < 2.0**120]
    packed, scales = pack_mxfp4(x, rule)
    assert (packed.dtype, scales.dtype) == (torch.uint8, torch.uint8)
    assert (packed.shape, scales.shape) == ((len(x), 48), (len(x), 3))
    assert same_bits(unpack_mxfp4(packed, scales), fake_quantise_mxfp4(x, rule))
    for other in (x.double(), x.bfloat16()):
        values = unpack_mxfp4(*pack_mxfp4(other, rule), dtype=other.dtype)
        assert torch.equal(values, fake_quantise_mxfp4(other, rule)) and values.dtype == other.dtype
    assert all(map(torch.equal, pack_mxfp4(x.double(), rule), (packed, scales)))
    for fmt in (MXFP8, MXFP8_E5M2):
        stored = pack_mxfp8(x, rule, fmt)
        assert torch.equal(unpack_mxfp8(*stored), fake_quantise_mxfp8(x, rule, fmt))
        assert torch.equal(unpack_mxfp8(*stored, dtype=torch.float64).float(), fake_quantise_mxfp8(x, rule, fmt))


@pytest.mark.parametrize("rule", RULES)
def test_packing_again_gives_the_same_bytes(rule: str) -> None:
    x = spread(2000, 64, seed=1)
    packed, scales = pack_mxfp4(x, rule)
    again = pack_mxfp4(unpack_mxfp4(packed, scales), rule)
    assert torch.equal(again[0], packed) and torch.equal(again[1], scales)
    for fmt in (MXFP8, MXFP8_E5M2) if rule == "floor" else ():
        stored = pack_mxfp8(x, rule, fmt)
        again = pack_mxfp8(unpack_mxfp8(*stored), rule, fmt)
        assert torch.equal(again[0].view(torch.uint8), stored[0].view(torch.uint8))
        assert torch.equal(again[1], stored[1])


@pytest.mark.parametrize("rule", RULES)
def test_every_scale_times_every_code(rule: str) -> None:
    assert scales_and_codes_that_return(rule) == (256, 16)
    sixes, largest = torch.full((1, 16), 0x77, dtype=torch.uint8), torch.tensor([[254]], dtype=torch.uint8)
    assert unpack_mxfp4(sixes, largest).isinf().all()


@pytest.mark.parametrize("rule", RULES)
def test_bytes_from_elsewhere_keep_their_numbers(rule: str) -> None:
    """A block whose largest code is below 4 has another scale in our rules, and the same numbers."""
    g = torch.Generator().manual_seed(3)
    packed = torch.randint(256, (4000, 16), generator=g).to(torch.uint8)
    packed[:2000] &= 0x33  # codes 0..3: at most 1.5
    scales = torch.randint(4, 250, (4000, 1), generator=g).to(torch.uint8)
    values = unpack_mxfp4(packed, scales)
    assert same_bits(unpack_mxfp4(*pack_mxfp4(values, rule)), values)


@pytest.mark.parametrize("rule", RULES)
def test_the_definition_in_float64(rule: str) -> None:
    """An oracle of its own: exponents by frexp, the nearest code by search, ties to the even code."""
    x = spread(120, 32, seed=4)
    packed, scales = pack_mxfp4(x, rule)
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    for row, got, scale in zip(x.double().tolist(), codes.tolist(), scales[:, 0].tolist(), strict=True):
        mantissa, exponent = math.frexp(max(map(abs, row)))
        e = exponent - 1 - 2 + (rule == "even" and 2 * mantissa >= 1.75)
        e = max(e, -127) if mantissa else -127
        assert scale == e + 127
        for v, code in zip(row, got, strict=True):
            y = min(abs(v) / 2.0**e, 6.0)
            best = min(range(8), key=lambda i: (abs(E2M1_VALUES[i] - y), i % 2))
            assert code == best + 8 * (math.copysign(1, v) < 0)


def test_mxfp8_elements_are_torchs_float8() -> None:
    x = spread(500, 32, seed=5)
    x = x[x.abs().amax(1) > 2.0**-100]
    for fmt, dtype, most, emax in (
        (MXFP8, torch.float8_e4m3fn, 448.0, 8),
        (MXFP8_E5M2, torch.float8_e5m2, 57344.0, 15),
    ):
        e = torch.floor(torch.log2(x.double().abs().amax(1, keepdim=True))) - emax
        want = (x.double() * torch.exp2(-e)).clamp(-most, most).to(dtype)
        elements, scales = pack_mxfp8(x, "floor", fmt)
        assert torch.equal(elements.view(torch.uint8), want.view(torch.uint8))
        assert torch.equal(scales.double(), e + 127)


@pytest.mark.parametrize("rule", RULES)
def test_the_rounding_of_decoding_knows_e5m2(rule: str) -> None:
    x = spread(400, 96, seed=6)
    x = x[(x.abs().amax(1) > 2.0**-100) & (x.abs().amax(1) < 2.0**100)]
    assert torch.equal(RoundMxfp8(rule, fmt=MXFP8_E5M2)(x), fake_quantise_mxfp8(x, rule, MXFP8_E5M2))
    assert not torch.equal(RoundMxfp8(rule)(x), fake_quantise_mxfp8(x, rule, MXFP8_E5M2))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_broken_block_is_nan_and_alone(bad: float) -> None:
    x = torch.randn(2, 96, generator=torch.Generator().manual_seed(0))
    good, good_scales = pack_mxfp4(x)
    x[1, 40] = bad
    packed, scales = pack_mxfp4(x)
    assert int(scales[1, 1]) == 255 and unpack_mxfp4(packed, scales)[1, 32:64].isnan().all()
    packed[1, 16:32], scales[1, 1] = good[1, 16:32], good_scales[1, 1]
    assert torch.equal(packed, good) and torch.equal(scales, good_scales)
    for fmt in (MXFP8, MXFP8_E5M2):
        assert unpack_mxfp8(*pack_mxfp8(x, fmt=fmt))[1, 32:64].isnan().all()
    assert int(pack_mxfp4(torch.full((32,), 1e300, dtype=torch.float64))[1]) == 255  # beyond float32


@pytest.mark.parametrize("n", [1, 31, 33, 48, 65])
def test_a_tail_is_refused(n: int) -> None:
    for pack in (pack_mxfp4, pack_mxfp8):
        with pytest.raises(ValueError, match=f"last axis of {n}"):
            pack(torch.ones(2, n))
        with pytest.raises(ValueError, match="scale rule"):
            pack(torch.ones(2, 32), "up")


@pytest.fixture(scope="module")
def oracle():  # type: ignore[no-untyped-def]
    """compressed-tensors' own compressor and its scheme of MXFP4."""
    mxfp4 = pytest.importorskip("compressed_tensors.compressors.mxfp4.base")
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(
        num_bits=4, type="float", strategy="group", group_size=32, symmetric=True, scale_dtype=torch.uint8
    )
    return mxfp4.MXFP4PackedCompressor, QuantizationScheme(targets=["Linear"], weights=args)


def test_compressed_tensors_writes_our_bytes(oracle) -> None:  # type: ignore[no-untyped-def]
    from compressed_tensors.quantization.utils.helpers import calculate_qparams

    compressor, scheme = oracle
    x = spread(600, 64, seed=7)
    x = x[(x.abs().amax(1) > 1e-30) & (x.abs().amax(1) < 1e30)]
    x[x == 0] = 0.0  # it has no code for a zero that comes in with a sign
    parts = x.unflatten(1, (2, 32))
    scale, _ = calculate_qparams(parts.amin(2), parts.amax(2), scheme.weights)
    with torch.compiler.set_stance("force_eager"):
        theirs = compressor.compress({"weight": x, "weight_scale": scale.float()}, scheme)
    packed, scales = pack_mxfp4(x)
    assert torch.equal(theirs["weight_scale"], scales)
    assert torch.equal(theirs["weight_packed"], packed)


def test_compressed_tensors_reads_our_bytes(oracle) -> None:  # type: ignore[no-untyped-def]
    compressor, scheme = oracle
    x = spread(600, 64, seed=8)
    x = x[(x.abs().amax(1) > 1e-30) & (x.abs().amax(1) < 1e30)]
    for rule in RULES:
        packed, scales = pack_mxfp4(x, rule)
        theirs = compressor.decompress({"weight_packed": packed, "weight_scale": scales}, scheme)["weight"]
        assert torch.equal(theirs.float(), fake_quantise_mxfp4(x, rule))
