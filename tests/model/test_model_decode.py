"""Laws of the decode state: the forward's numbers, whatever is forked, moved, exported, cleared or interleaved."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact_cases import PLAIN, build, prefill_against_decode, tokens

from model.config import K3Config
from model.quant import QuantSpec


@pytest.mark.parametrize("preset", ["tiny", "tiny_odd"])
def test_prefill_extend_and_decode_are_the_forward(preset: str) -> None:
    policy = build(preset, **({"index_topk": 64} if preset == "tiny" else {}))
    time = 90 if preset == "tiny" else 45  # both sides of the indexer's top-k
    ids, lengths = tokens(4, time), torch.tensor([time, 34, 19, 12])
    out = policy(ids, lengths)
    want, routes = policy.logits(out.hidden), out.routes
    state = policy.new_state(6, time + 1)
    start = torch.tensor([17, 1, 16, 3])
    got, seen = policy.prefill(ids[:, :17], start, state, [0, 1, 2, 3])
    at = start.clone()
    torch.testing.assert_close(got, want[range(4), at - 1], rtol=0, atol=1e-10)
    assert torch.equal(seen[0, :17], routes[0, :17]) and (seen[1, 1:] == -1).all()
    for _ in range(3):
        got, seen = policy.decode(ids[range(4), at], state, 4)
        torch.testing.assert_close(got, want[range(4), at], rtol=0, atol=1e-10)
        assert torch.equal(seen, routes[range(4), at])
        at += 1
    turn, rows = torch.tensor([14, time - 20, 5]), [1, 0, 3]
    more = torch.zeros(3, time - 20, dtype=torch.int64)
    for i, (r, n) in enumerate(zip(rows, turn.tolist(), strict=True)):
        more[i, :n] = ids[r, at[r] : at[r] + n]
    got, seen = policy.extend(more, turn, state, torch.tensor(rows))
    at[rows] += turn
    torch.testing.assert_close(got, want[rows, at[rows] - 1], rtol=0, atol=1e-10)
    assert torch.equal(seen[1, : time - 20], routes[0, 20:])
    assert state.lengths.tolist() == [*at.tolist(), 0, 0]


@pytest.mark.parametrize("taps", [1, 2, 6])
def test_a_convolution_of_any_width_decodes_as_it_trains(taps: int) -> None:
    linear = replace(K3Config.preset("tiny_odd").linear_attn_config, short_conv_kernel_size=taps)
    assert prefill_against_decode(build(linear_attn_config=linear), 9) <= 1e-11


@pytest.mark.parametrize("rows", [[0, 0], [0], [0, 1, 2]])
def test_every_prompt_needs_a_row_of_its_own(rows: list[int]) -> None:
    policy = build("tiny")
    state = policy.new_state(3, 20)
    policy.prefill(tokens(3, 4), torch.tensor([4, 4, 4]), state, [0, 1, 2])
    with pytest.raises(ValueError, match="for 2 prompts: each needs a row of its own"):
        policy.extend(tokens(2, 5), torch.tensor([5, 5]), state, rows)
    assert state.lengths.tolist() == [4, 4, 4]


@pytest.mark.parametrize(("preset", "changes"), [("tiny", {"index_topk": 9}), ("tiny", {"index_topk": None}),
                                               ("tiny_odd", {})])  # fmt: skip
def test_a_prompt_is_its_tokens_one_by_one(preset: str, changes: dict) -> None:
    assert prefill_against_decode(build(preset, **changes), 40) <= 1e-12


@pytest.mark.parametrize("cut", [1, 2, 3, 15, 16, 17, 31, 33])
def test_a_prompt_may_be_cut_anywhere(cut: int) -> None:
    policy = build()
    ids = tokens(1, 34)
    whole, parts = policy.new_state(1, 34), policy.new_state(1, 34)
    want, _ = policy.prefill(ids, torch.tensor([34]), whole, [0])
    policy.prefill(ids[:, :cut], torch.tensor([cut]), parts, [0])
    got, _ = policy.extend(ids[:, cut:], torch.tensor([34 - cut]), parts, [0])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    torch.testing.assert_close(parts.recurrent, whole.recurrent, rtol=0, atol=1e-10)
    torch.testing.assert_close(parts.conv, whole.conv, rtol=0, atol=1e-10)


def test_forks_and_compaction_keep_every_sequence() -> None:
    policy = build("tiny")
    prompt = policy.new_state(2, 40)
    policy.prefill(tokens(2, 20), torch.tensor([20, 9]), prompt, [0, 1])
    state = policy.new_state(6, 60)
    state.copy_rows([0, 1, 2, 3], prompt, [0, 1, 0, 1])
    steps = tokens(4, 3, seed=2)
    for t in range(3):
        live, _ = policy.decode(steps[:, t], state, 4)
    alone = policy.new_state(1, 60)
    for i, row in enumerate((0, 1, 0, 1)):
        alone.copy_rows([0], prompt, [row])
        for t in range(3):
            got, _ = policy.decode(steps[i : i + 1, t], alone, 1)
        torch.testing.assert_close(got[0], live[i], rtol=0, atol=1e-10)
    state.copy_rows([0, 1], state, [1, 3])  # rows 0 and 2 have finished: compact in place
    got, _ = policy.decode(torch.tensor([5, 5]), state, 2)
    assert state.lengths[:2].tolist() == [13, 13]
    torch.testing.assert_close(policy.decode(torch.tensor([5]), alone, 1)[0][0], got[1], rtol=0, atol=1e-10)


def test_swapping_rows_within_a_state() -> None:
    policy = build("tiny")
    state = policy.new_state(2, 30)
    policy.prefill(tokens(2, 12), torch.tensor([12, 7]), state, [0, 1])
    a, b = state.export(0), state.export(1)
    state.copy_rows([0, 1], state, [1, 0])
    for name, value in state.export(0).tensors.items():
        assert torch.equal(value, b.tensors[name]) and torch.equal(state.export(1).tensors[name], a.tensors[name])


def test_export_and_restore_are_exact_and_cut_at_the_length() -> None:
    policy = build("tiny", QuantSpec(), torch.float32)
    state = policy.new_state(3, 80)
    policy.prefill(tokens(3, 70), torch.tensor([70, 8, 30]), state, [0, 1, 2])
    saved = state.export(0)
    assert saved.tensors["latent"].shape[1] == 70 and saved.tensors["index"].shape[1] == 70
    want, _ = policy.decode(torch.tensor([7, 7, 7]), state, 3)
    fresh = policy.new_state(3, 80)
    policy.prefill(tokens(3, 80, seed=4), torch.tensor([80, 80, 80]), fresh, [0, 1, 2])  # old content everywhere
    fresh.copy_rows([1, 2], state, [1, 2])
    fresh.restore(0, saved)
    fresh.lengths[1:] -= 1
    got, _ = policy.decode(torch.tensor([7, 7, 7]), fresh, 3)
    assert torch.equal(got[0], want[0])
    with pytest.raises(ValueError, match="does not fit"):
        policy.new_state(1, 60).restore(0, saved)


def test_a_reused_row_remembers_nothing() -> None:
    policy = build("tiny")
    used, new = policy.new_state(2, 40), policy.new_state(2, 40)
    policy.prefill(tokens(2, 33), torch.tensor([33, 20]), used, [0, 1])
    for state in (used, new):
        state.clear([0, 1])
        policy.extend(tokens(2, 9, seed=1), torch.tensor([9, 4]), state, [0, 1])
    for mine, theirs in zip(used.export(0).tensors.items(), new.export(0).tensors.items(), strict=True):
        assert torch.equal(mine[1], theirs[1])
    used.lengths[0] = 0  # even if only its length was reset
    policy.extend(tokens(2, 5, seed=8), torch.tensor([5, 2]), used, [0, 1])
    policy.prefill(tokens(2, 5, seed=8)[:1], torch.tensor([5]), new, [0])
    torch.testing.assert_close(used.recurrent[:, 0], new.recurrent[:, 0], rtol=0, atol=1e-12)
    torch.testing.assert_close(used.conv[:, 0], new.conv[:, 0], rtol=0, atol=1e-12)


def test_decoding_a_prefix_leaves_the_other_rows_alone() -> None:
    policy = build("tiny")
    state = policy.new_state(4, 40)
    policy.prefill(tokens(4, 10), torch.tensor([10, 4, 7, 9]), state, [0, 1, 2, 3])
    before = [state.export(2), state.export(3)]
    policy.decode(torch.tensor([1, 2]), state, 2)
    assert state.lengths.tolist() == [11, 5, 7, 9]
    for row, saved in zip((2, 3), before, strict=True):
        assert all(torch.equal(v, state.export(row).tensors[k]) for k, v in saved.tensors.items())


@pytest.mark.parametrize("rows", [[0, -1], [4], [0, 9]])
def test_a_row_outside_is_refused_not_wrapped(rows: list[int]) -> None:
    policy = build("tiny")
    state = policy.new_state(4, 20)
    with pytest.raises(IndexError):
        policy.prefill(tokens(len(rows), 4), torch.full((len(rows),), 4), state, rows)
    with pytest.raises(IndexError):
        state.clear(rows)
    assert not state.recurrent.any() and not state.lengths.any()


def test_a_full_row_is_refused() -> None:
    policy = build("tiny")
    state = policy.new_state(1, 6)
    with pytest.raises(ValueError, match="does not fit"):
        policy.prefill(tokens(1, 7), torch.tensor([7]), state, [0])
    policy.prefill(tokens(1, 6), torch.tensor([6]), state, [0])
    with pytest.raises(ValueError, match="full"):
        policy.decode(torch.tensor([1]), state, 1)


def test_recurrent_state_is_wide_and_counted() -> None:
    policy = build("tiny", PLAIN, torch.float32)
    state = policy.new_state(3, 10)
    assert state.recurrent.dtype == torch.float32 and state.recurrent.shape == (2, 3, 4, 16, 16)
    values = policy.config.state_values(10)
    assert state.nbytes == 3 * (4 * sum(values.values()) + 8)


def test_the_quantised_decode_is_the_quantised_forward() -> None:
    """float32 with both roundings: equal to rounding noise, but for the rare input on an MXFP8 boundary."""
    policy = build("tiny", QuantSpec(), torch.float32)
    ids = tokens(16, 24)
    with torch.no_grad():
        want = policy.logits(policy(ids, torch.full((16,), 24)).hidden).log_softmax(-1)
    state = policy.new_state(16, 24)
    got, _ = policy.prefill(ids[:, :8], torch.full((16,), 8), state, range(16))
    gaps = []
    for t in range(8, 24):
        gaps.append((got.log_softmax(-1) - want[:, t - 1]).abs().amax(-1))
        got, _ = policy.decode(ids[:, t], state, 16)
    assert torch.stack(gaps).quantile(0.9) < 1e-4


@pytest.mark.parametrize("preset", ["tiny", "tiny_odd"])
def test_the_bits_of_a_row_do_not_depend_on_the_other_rows(preset: str) -> None:
    """Any multiple of 16 rows in any order, beside longer or shorter ones (tiny_odd: on both sides of the top-k).

    Of tiny_odd the last bits may differ: on some processors those of a product of odd width depend on where it lies in
    memory. So it is compared in float64, without the rounding that would make more of a bit.
    """
    odd = preset == "tiny_odd"
    policy = build(preset, QuantSpec("mxfp4", "none") if odd else QuantSpec(), torch.float64 if odd else torch.float32)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 60, (256,), generator=generator)
    lengths[7] = 90
    ids, fed = tokens(256, 90), torch.randint(0, 512, (256,), generator=generator)
    filled, state = policy.new_state(256, 92), policy.new_state(256, 92)
    policy.prefill(ids, lengths, filled, range(256))
    state.copy_rows(range(256), filled, range(256))
    want = [policy.decode(fed, state, 256) for _ in range(2)]
    for n in (16, 48, 112, 128, 144, 224, 256):
        rows = torch.randperm(256, generator=generator)[:n]
        state.copy_rows(range(n), filled, rows)
        for logits, routes in want:
            got, chosen = policy.decode(fed[rows], state, n)
            assert torch.equal(chosen, routes[rows])
            assert float((got - logits[rows]).abs().max()) <= (1e-9 if odd else 0.0)


def test_steps_of_two_states_do_not_mix() -> None:
    policy = build("tiny")
    fed = tokens(2, 4, seed=3)
    alone = []
    for seed in (0, 1):
        state = policy.new_state(2, 20)
        policy.prefill(tokens(2, 8, seed=seed), torch.tensor([8, 5]), state, [0, 1])
        alone.append([policy.decode(fed[:, t], state, 2)[0] for t in range(4)])
        del state  # the next one may lie at the same address
    states = [policy.new_state(2, 20), policy.new_state(2, 20)]
    for seed, state in enumerate(states):
        policy.prefill(tokens(2, 8, seed=seed), torch.tensor([8, 5]), state, [0, 1])
    for t in range(4):
        for state, want in zip(states, alone, strict=True):
            assert torch.equal(policy.decode(fed[:, t], state, 2)[0], want[t])
