"""Laws of packed records: any number comes back to the bit, none is cut, and the size is what was promised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout import packing, picks, routes
from rollout.routes import NO_ROUTE

BITS = range(1, 17)


def numbers(seed: int, n: int, bits: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 << bits, n, dtype=np.uint64).astype(packing.word(bits))


@pytest.mark.parametrize("bits", [*BITS, 17, 20, 31, 32])
def test_every_width_and_length_comes_back(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BLOCK", 128)  # lengths below go over blocks
    for n in [*range(70), 127, 128, 129, 255, 256, 300]:
        for kind in (packing.word(bits), np.dtype(np.int64)):
            values = numbers(n, n, bits).astype(kind)
            packed = packing.pack(values, bits)
            assert packed.dtype == packing.word(bits) and len(packed) == packing.words(n, bits)
            np.testing.assert_array_equal(packing.unpack(packed, bits, n), values)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 16), st.integers(0, 900), st.integers(0, 900), st.integers(0, 900))
def test_a_slice_is_unpacked_alone(bits: int, n: int, a: int, b: int) -> None:
    begin, end = sorted((min(a, n), min(b, n)))
    values = numbers(n, n, bits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "BLOCK", 256)
        packed = packing.pack(values, bits)
        np.testing.assert_array_equal(packing.unpack(packed, bits, n, begin, end), values[begin:end])


def test_bits_are_laid_out_as_the_first_page_says() -> None:
    values = numbers(3, 40, 5)  # 3 words a run
    text = {r: [int(v) for v in values[3 * r : 3 * r + 3]] for r in range(16)}
    packed = packing.pack(values, 5).reshape(5, 3)
    for lane in range(3):
        bits = sum(v[lane] << (5 * r) for r, v in text.items() if lane < len(v))
        assert [int(w) for w in packed[:, lane]] == [(bits >> (16 * w)) & 0xFFFF for w in range(5)]


@pytest.mark.parametrize("bits", BITS)
def test_what_does_not_fit_is_refused(bits: int) -> None:
    for bad in (1 << bits, -1, 1 << 20):
        with pytest.raises(ValueError, match=f"{bad} does not fit {bits} bits: 0 to {(1 << bits) - 1}"):
            packing.pack(np.array([0, bad, 0], np.int32), bits)
    with pytest.raises(ValueError, match="words, not"):
        packing.unpack(np.zeros(3, packing.word(bits)), bits, 400)
    for wrong in (0, 33):
        with pytest.raises(ValueError, match="1 to 32"):
            packing.pack(np.zeros(1, np.int32), wrong)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(0, 3), st.integers(0, 4), st.integers(1, 65535), st.data())
def test_routes_come_back_to_the_bit(t: int, layers: int, k: int, experts: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    table = rng.integers(0, experts, (t, layers, k)).astype(np.uint16)
    table[rng.random(t) < 0.2] = NO_ROUTE
    if table.size and data.draw(st.booleans()):
        table.reshape(-1)[0] = NO_ROUTE  # one slot of a token alone
    record = routes.pack(table)
    back = routes.unpack(record)
    assert back.dtype == np.uint16 and back.shape == table.shape
    assert routes.token_bytes(record) == 2 * layers * k
    np.testing.assert_array_equal(back, table)


@pytest.mark.parametrize(("experts", "bits"), [(2, 1), (8, 3), (128, 7), (256, 8), (896, 10), (1024, 10)])
def test_routes_take_the_bits_of_their_experts(experts: int, bits: int) -> None:
    table = np.random.default_rng(0).integers(0, experts, (4096, 4, 8)).astype(np.uint16)
    table[0] = experts - 1
    table[::64] = NO_ROUTE  # the last tokens of turns cost a bit each
    assert abs(len(routes.pack(table)) - table.size * bits / 8) < 600
    if experts == 896:
        assert len(routes.pack(table)) <= 0.32 * 4 * table.size
    for wrong in (table.astype(np.int32), table[0]):
        with pytest.raises(ValueError, match="give uint16"):
            routes.pack(wrong)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 20), st.integers(0, 3), st.integers(0, 140), st.booleans(), st.data())
def test_any_picks_come_back_to_the_bit(t: int, layers: int, k: int, wide: bool, data: st.DataObject) -> None:
    kind = np.dtype(np.uint32 if wide else np.uint16)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    table = rng.integers(0, np.iinfo(kind).max, (t, layers, k), dtype=kind, endpoint=True)
    if data.draw(st.booleans()):
        table.sort(-1)
    table[rng.random(t) < 0.3] = picks.no_pick(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picks, "_SLAB", data.draw(st.sampled_from([1, 500, 1 << 20])))
        back = picks.unpack(picks.pack(table))
    assert back.dtype == kind and back.shape == table.shape
    np.testing.assert_array_equal(back, table)


def test_ascending_picks_are_short_and_missing_ones_shorter() -> None:
    rng = np.random.default_rng(0)
    far = np.stack([np.sort(rng.choice(1 << 20, 2048, replace=False)) for _ in range(4)]).astype(np.uint32)
    assert len(picks.pack(far[:, None])) < 0.4 * far.nbytes  # evenly over 1M tokens: 9 bits are in any code
    near = np.arange(2048, dtype=np.uint32)[None, None].repeat(4, 0) + np.uint32(1_000_000)
    assert len(picks.pack(near)) < 0.1 * near.nbytes
    none = picks.nothing((64, 2, 2048), np.dtype(np.uint32))
    assert len(picks.pack(none)) < 0.02 * none.nbytes
