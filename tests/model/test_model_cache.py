"""Laws of whole decode states: forks are separate runs, frozen means frozen, bytes bring back every bit or an error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact_cases import PLAIN, build, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.cache import DecodeState
from model.config import K3Config
from model.decoder import Policy
from model.quant import QuantSpec
from model.snapshot import Snapshot, fingerprint

WIDE, NARROW = build("tiny"), build("tiny", QuantSpec(), torch.float32)


def filled(policy: Policy, n: int = 2, length: int = 9, max_len: int = 40, seed: int = 0) -> DecodeState:
    state = policy.new_state(n, max_len)
    policy.prefill(tokens(n, length, seed), torch.full((n,), length), state, range(n))
    return state


def same(a: DecodeState, b: DecodeState) -> bool:
    return all(
        torch.equal(x, y)
        for row in range(a.capacity)
        for x, y in zip(a.export(row).tensors.values(), b.export(row).tensors.values(), strict=True)
    )


def feed(policy: Policy, state: DecodeState, ids: Tensor) -> list[Tensor]:
    """Decode ids [n, T] into rows 0..n-1."""
    return [policy.decode(ids[:, t], state, len(ids))[0] for t in range(ids.shape[1])]


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 6), st.booleans(), st.integers(0, 2**20))
def test_forks_that_diverge_are_separate_runs(prompt: int, first: int, second: int, frozen: bool, seed: int) -> None:
    start = filled(NARROW, length=prompt, seed=seed)
    if frozen:
        start.freeze()
    forks, more = [start.fork(), start.fork()], [tokens(2, first, seed + 1), tokens(2, second, seed + 2)]
    got: list[list[Tensor]] = [[], []]
    for t in range(max(first, second)):  # in turns: what one writes must not reach the other
        for i in (0, 1):
            if t < more[i].shape[1]:
                got[i] += feed(NARROW, forks[i], more[i][:, t : t + 1])
    for i in (0, 1):
        alone = filled(NARROW, length=prompt, seed=seed)
        want = feed(NARROW, alone, more[i])
        assert all(torch.equal(a, b) for a, b in zip(got[i], want, strict=True))
        assert same(forks[i], alone)
    assert same(start, filled(NARROW, length=prompt, seed=seed))


def test_a_frozen_state_refuses_every_write_and_keeps_its_bits() -> None:
    other, before = filled(WIDE, seed=1), filled(WIDE)
    state = filled(WIDE).freeze()
    saved = other.export(0)
    for write in (
        lambda: WIDE.decode(torch.tensor([1, 2]), state, 2),
        lambda: WIDE.extend(tokens(1, 3), torch.tensor([3]), state, [1]),
        lambda: WIDE.prefill(tokens(1, 3), torch.tensor([3]), state, [0]),
        lambda: state.copy_rows([0], other, [1]),
        lambda: state.clear([0]),
        lambda: state.restore(1, saved),
    ):
        with pytest.raises(RuntimeError, match=r"frozen: write to a fork"):
            write()
    assert same(state, before) and state.lengths.tolist() == [9, 9]
    assert state.export(0).length == 9
    WIDE.decode(torch.tensor([1, 2]), state.fork(), 2)
    assert same(state, before)


def test_freezing_and_forking_a_frozen_state_copy_nothing_before_a_write() -> None:
    state = filled(WIDE)
    address = state.latent.data_ptr()
    assert state.freeze() is state and state.latent.data_ptr() == address
    fork = state.fork()
    twice = fork.freeze().fork()
    assert fork.recurrent.data_ptr() == twice.recurrent.data_ptr() == state.recurrent.data_ptr()
    WIDE.decode(torch.tensor([1, 2]), twice, 2)
    assert twice.recurrent.data_ptr() != state.recurrent.data_ptr() and not twice.frozen
    assert state.latent.data_ptr() == address


def test_a_live_fork_is_a_copy_at_once() -> None:
    state = filled(WIDE)
    fork = state.fork()
    assert fork.index is not None and state.index is not None
    for a, b in zip(
        (fork.lengths, fork.recurrent, fork.conv, fork.latent, fork.index),
        (state.lengths, state.recurrent, state.conv, state.latent, state.index),
        strict=True,
    ):
        assert a.data_ptr() != b.data_ptr() and torch.equal(a, b)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 30), st.integers(0, 8), st.integers(0, 1), st.booleans(), st.integers(0, 2**20))
def test_a_restored_sequence_continues_to_the_bit(prompt: int, steps: int, row: int, wide: bool, seed: int) -> None:
    policy = WIDE if wide else NARROW
    state = filled(policy, length=prompt, seed=seed)
    feed(policy, state, tokens(2, steps, seed + 1))
    blob = state.export(row).to_bytes()
    after = feed(policy, state, tokens(2, 3, seed + 2))
    fresh = filled(policy, length=35, seed=seed + 3)  # rows that held something else
    fresh.copy_rows([1 - row], filled(policy, length=prompt + steps, seed=seed), [1 - row])
    fresh.restore(row, Snapshot.from_bytes(blob))
    assert fresh.lengths[row] == prompt + steps
    for got, want in zip(feed(policy, fresh, tokens(2, 3, seed + 2)), after, strict=True):
        assert torch.equal(got[row], want[row])


@pytest.mark.parametrize("preset", ["tiny", "tiny_odd", "k3"])
@pytest.mark.parametrize("length", [0, 1, 30])
def test_sizes_are_those_of_the_formula(preset: str, length: int) -> None:
    config = K3Config.preset("tiny_odd" if preset == "k3" else preset)
    config = replace(config, index_topk=None) if preset == "k3" else config
    for dtype, size in ((torch.float32, 4), (torch.float64, 8)):
        policy = Policy(config, PLAIN).to(dtype)
        state = policy.new_state(3, 30)
        values = config.state_values
        assert state.nbytes == 3 * (size * sum(values(30).values()) + 8)
        state.lengths[1] = length
        saved = state.export(1)
        assert saved.nbytes == size * sum(values(length).values())
        assert {k: t.numel() for k, t in saved.tensors.items()} == {
            k: n for k, n in values(length).items() if k in saved.tensors
        }
        assert 0 < len(saved.to_bytes()) - saved.nbytes < 700


def test_bytes_hold_all_that_a_snapshot_holds() -> None:
    saved = replace(filled(WIDE).export(1), version=7, layout="key_first")
    again = Snapshot.from_bytes(saved.to_bytes())
    assert (again.length, again.model, again.version, again.layout) == (9, fingerprint(WIDE.config), 7, "key_first")
    assert again.tensors.keys() == saved.tensors.keys()
    for name, t in saved.tensors.items():
        assert torch.equal(t, again.tensors[name]) and t.dtype == again.tensors[name].dtype


def test_a_transposed_state_is_refused_until_it_is_turned() -> None:
    """K = V: nothing but the tag tells the two layouts apart."""
    state = filled(WIDE)
    saved = state.export(0)
    turned = saved.as_layout("value_first")
    assert turned.tensors["recurrent"].shape == saved.tensors["recurrent"].shape
    assert not torch.equal(turned.tensors["recurrent"], saved.tensors["recurrent"])
    fresh = WIDE.new_state(1, 40)
    for blob in (turned, Snapshot.from_bytes(turned.to_bytes())):
        with pytest.raises(ValueError, match="value_first"):
            fresh.restore(0, blob)
    assert fresh.lengths.tolist() == [0]
    fresh.restore(0, Snapshot.from_bytes(turned.to_bytes()).as_layout("key_first"))
    assert torch.equal(fresh.recurrent[:, 0], state.recurrent[:, 0])


def other_model(saved: Snapshot) -> DecodeState:
    return Policy(replace(WIDE.config, rms_norm_eps=1e-6), PLAIN).to(torch.float64).new_state(1, 40)


@pytest.mark.parametrize(
    ("target", "change", "says"),
    [
        (other_model, lambda s: s, "another model: config"),
        (lambda s: WIDE.new_state(1, 8), lambda s: s, "9 tokens does not fit max_len 8"),
        (lambda s: WIDE.new_state(1, 8), lambda s: replace(s, length=-1), "-1 tokens does not fit max_len 8"),
        (lambda s: NARROW.new_state(1, 40), lambda s: s, "recurrent is torch.float64"),
        (lambda s: WIDE.new_state(1, 40), lambda s: replace(s, version=3), "version 3, not 0"),
        (lambda s: WIDE.new_state(1, 40), lambda s: replace(s, length=8), r"latent is torch.float64 \(2, 9, 40\)"),
        (
            lambda s: WIDE.new_state(1, 40),
            lambda s: replace(s, tensors={k: v for k, v in s.tensors.items() if k != "index"}),
            "this model needs",
        ),
        (
            lambda s: WIDE.new_state(1, 40),
            lambda s: replace(s, tensors=s.tensors | {"conv": s.tensors["conv"].bfloat16()}),
            "conv is torch.bfloat16",
        ),
    ],
)
def test_what_does_not_belong_here_is_refused_and_nothing_is_written(target, change, says: str) -> None:
    saved = filled(WIDE).export(0)
    state = target(saved)
    with pytest.raises(ValueError, match=says):
        state.restore(0, change(saved))
    assert state.lengths.tolist() == [0] and not state.recurrent.any() and not state.conv.any()


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_cut_or_foreign_bytes_are_refused(cut: int) -> None:
    blob = filled(WIDE).export(0).to_bytes()
    with pytest.raises(ValueError, match="decode state"):
        Snapshot.from_bytes(blob[:cut])
    with pytest.raises(ValueError, match="format 'k3-decode-state-0'"):
        Snapshot.from_bytes(blob.replace(b"k3-decode-state-1", b"k3-decode-state-0"))
    with pytest.raises(ValueError, match="layout"):
        Snapshot.from_bytes(blob.replace(b'"key_first"', b'"key_last_"'))


def test_rows_of_another_model_or_version_are_not_copied() -> None:
    state = filled(WIDE)
    with pytest.raises(ValueError, match="configs differ"):
        state.copy_rows([0], other_model(state.export(0)), [0])
    newer = DecodeState(WIDE.config, 2, 40, torch.float64, version=1)
    with pytest.raises(ValueError, match="version 0, not 1"):
        newer.copy_rows([0], state, [0])


def test_the_fingerprint_is_of_the_architecture() -> None:
    config = K3Config.preset("tiny")
    assert fingerprint(config) == fingerprint(replace(config, extra={"model_type": "kimi_linear"}))
    k3 = K3Config.preset("k3")
    la, vision = replace(k3.linear_attn_config, extra={"note": 1}), replace(k3.vision, extra={"note": 1})
    same = replace(k3, wrapper={"dtype": "float32"}, quantization_config=None, linear_attn_config=la, vision=vision)
    assert fingerprint(same) == fingerprint(k3) != fingerprint(replace(k3, vision=replace(vision, patch_size=16)))
    assert len({fingerprint(K3Config.preset(p)) for p in ("tiny", "tiny_odd", "small", "k3", "k31_pro")}) == 5
    la = replace(config.linear_attn_config, kda_layers=(1, 2), full_attn_layers=(3, 4))
    assert fingerprint(replace(config, linear_attn_config=la)) != fingerprint(config)
