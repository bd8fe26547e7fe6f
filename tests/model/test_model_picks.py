"""Laws of recorded key selections: what was recorded is replayed to the bit, other keys are attended to exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact_cases import PLAIN, absorbed_against_plain, build, tokens
from k3_oracle import Oracle
from torch import Tensor

import model.mla as mla_module
from model.config import K3Config
from model.decoder import Policy
from model.dsa import (
    Indexer,
    enable_index_loss,
    freeze_indexers,
    mask_of,
    picks_of,
    select_topk,
    warm_up_indexers,
)
from model.mla import MLA

LENGTHS = torch.tensor([26, 7, 13])


def record(policy: Policy, ids: Tensor, lengths: Tensor = LENGTHS) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        out = policy(ids, lengths, record_picks=True)
    assert out.picks is not None
    return out.hidden, out.picks


def test_picks_and_masks_are_the_same_thing() -> None:
    g = torch.Generator().manual_seed(0)
    mask = select_topk(torch.randn(5, 9, 30, generator=g), torch.rand(5, 9, 30, generator=g) < 0.4, 6)
    picks = picks_of(mask, 6)
    assert picks.dtype == torch.int32 and picks.shape == (5, 9, 6)
    assert torch.equal(mask_of(picks, 30), mask)
    for row, keys in zip(picks.flatten(0, 1).tolist(), mask.flatten(0, 1), strict=True):
        want = keys.nonzero().flatten().tolist()
        assert row == want + [-1] * (6 - len(want))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_replaying_the_own_selection_changes_no_bit(dtype: torch.dtype) -> None:
    policy = build(dtype=dtype)
    ids = tokens(3, 26)
    hidden, picks = record(policy, ids)
    assert picks.dtype == torch.int32 and picks.shape == (3, 26, 3, 7)
    grads = []
    for given in (None, picks):
        policy.zero_grad()
        out = policy(ids, LENGTHS, picks=given)
        assert torch.equal(out.hidden, hidden)
        out.hidden.square().sum().backward()
        grads.append([p.grad.clone() for p in policy.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_what_decoding_records_is_what_the_forward_selects() -> None:
    policy = build()
    ids = tokens(2, 26)
    _, want = record(policy, ids, torch.tensor([26, 26]))
    state, got = policy.new_state(2, 26), torch.full((2, 26, 3, 7), 99, dtype=torch.int32)
    first, more = torch.full((2, 11, 3, 7), 99, dtype=torch.int32), torch.full((2, 4, 3, 7), 99, dtype=torch.int32)
    policy.prefill(ids[:, :11], torch.tensor([11, 10]), state, [0, 1], picks=first)
    assert (first[1, 10] == -1).all()  # a pad
    policy.prefill(ids[:, :11], torch.tensor([11, 11]), state, [0, 1], picks=first)
    policy.extend(ids[:, 11:15], torch.tensor([4, 4]), state, [0, 1], picks=more)
    got[:, :11], got[:, 11:15] = first, more
    for t in range(15, 26):
        policy.decode(ids[:, t], state, 2, got[:, t])
    assert torch.equal(got, want)
    assert (want[:, 6:] >= 0).all() and (want[:, 3, :, 4:] == -1).all()


class _Given(Oracle):
    """The equations with given keys in place of the indexer's choice."""

    def __init__(self, policy: Policy, picks: Tensor) -> None:
        super().__init__(policy.config, dict(policy.named_weights()))
        full = policy.config.linear_attn_config.full_attn_layers
        self.keys = {f"model.layers.{layer - 1}.self_attn.indexer.": picks[:, i] for i, layer in enumerate(full)}

    def _index_scores(self, p: str, x: Tensor, cq: Tensor, t: int) -> list[float]:
        keys = [k for k in self.keys[p][t].tolist() if k >= 0]
        # A constant lifts the given keys over the others; fewer than top-k of them are asked for below.
        return [1.0 if s in keys else 0.0 for s in range(t + 1)]


def test_other_keys_are_attended_to_exactly() -> None:
    policy, ids = build(), tokens(1, 22)
    g = torch.Generator().manual_seed(3)
    given = torch.full((1, 22, 3, 7), -1, dtype=torch.int32)
    for t in range(22):
        for layer in range(3):
            chosen = torch.randperm(t + 1, generator=g)[:7]
            given[0, t, layer, : len(chosen)] = chosen.int()  # in no order
    out = policy(ids, torch.tensor([22]), picks=given, record_picks=True)
    assert torch.equal(out.picks[0].sort(-1).values, given[0].sort(-1).values)
    want = _Given(policy, given[0]).logits(ids[0].tolist())
    torch.testing.assert_close(policy.logits(out.hidden)[0], want, rtol=0, atol=1e-10)
    live = policy.logits(policy(ids, torch.tensor([22])).hidden)[0]
    assert (live - want).abs().max() > 1e-3


def test_fewer_keys_than_top_k_are_no_more_than_those() -> None:
    policy, ids = build(), tokens(1, 20)
    hidden, picks = record(policy, ids, torch.tensor([20]))
    only = picks.clone()
    only[0, 19, :, :] = -1
    only[0, 19, :, 3] = 2  # one key, in a slot of its own
    out = policy(ids, torch.tensor([20]), picks=only, record_picks=True)
    assert out.picks[0, 19].tolist() == [[2] + [-1] * 6] * 3
    torch.testing.assert_close(out.hidden[0, :19], hidden[0, :19], rtol=0, atol=1e-10)
    assert (out.hidden[0, 19] - hidden[0, 19]).abs().max() > 1e-3


def test_tokens_without_picks_select_live() -> None:
    policy, ids = build(), tokens(3, 26)
    hidden, picks = record(policy, ids)
    some = picks.clone()
    some[0, 9:20] = -1
    some[2, :, 1] = -1
    assert torch.equal(policy(ids, LENGTHS, picks=some).hidden, hidden)


def test_picks_reach_into_a_parent_row() -> None:
    policy = build()
    ids, (first, second) = tokens(1, 30), (tokens(1, 9, seed=5), tokens(1, 4, seed=6))
    whole = torch.cat((ids[:, :12], first), 1)
    _, want = record(policy, whole, torch.tensor([21]))
    cut = torch.zeros(3, 12, dtype=torch.int64)
    cut[0], cut[1, :9], cut[2, :4] = ids[0, :12], first[0], second[0]
    parents, lengths = torch.tensor([-1, 0, 0]), torch.tensor([12, 9, 4])
    out = policy(cut, lengths, None, parents, record_picks=True)
    assert torch.equal(out.picks[1, :9], want[0, 12:])
    assert out.picks[1, :9].max() > 12  # positions of the sequence, not of the row
    assert torch.equal(policy(cut, lengths, None, parents, picks=out.picks).hidden, out.hidden)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: p[:, :25], r"picks \(3, 25, 3, 7\) do not match \(3, 26, 3, 7\)"),
        (lambda p: p[..., :6], "do not match"),
        (lambda p: p[:, :, :2], "do not match"),
        (lambda p: p.long(), "torch.int64"),
        (lambda p: p.index_fill(1, torch.tensor([4]), 5), r"row 0, token 4 \(position 4\), full layer 0: key 5 lies"),
        (lambda p: p.index_fill(1, torch.tensor([4]), 10**6), "lies behind the token"),
        (lambda p: p.index_fill(1, torch.tensor([4]), -2), "key -2 is no position"),
        (lambda p: p.index_fill(1, torch.tensor([4]), 1), "key 1 is there twice"),
    ],
)
def test_bad_picks_are_refused_by_name(change, says: str) -> None:
    policy, ids = build(), tokens(3, 26)
    _, picks = record(policy, ids)
    with pytest.raises(ValueError, match=says):
        policy(ids, LENGTHS, picks=change(picks))


def test_recording_needs_room_and_an_indexer() -> None:
    policy = build("tiny")
    state = policy.new_state(1, 8)
    with pytest.raises(ValueError, match="do not match"):
        policy.decode(torch.tensor([1]), state, 1, torch.zeros(1, 2, 255, dtype=torch.int32))
    assert state.lengths.tolist() == [0]
    dense = build("tiny", index_topk=None)
    with pytest.raises(ValueError, match="no indexer"):
        dense(tokens(1, 4), torch.tensor([4]), record_picks=True)
    with pytest.raises(ValueError, match="no indexer"):
        warm_up_indexers(dense)


# --- the sparse core ----------------------------------------------------------------------------------------------


def test_the_absorbed_form_on_all_keys_is_the_plain_form() -> None:
    for config in (K3Config.preset("tiny_odd"), replace(K3Config.preset("tiny"), index_topk=None)):
        value, gradient = absorbed_against_plain(config)
        assert value <= 1e-12 and gradient <= 1e-10


def test_gathering_the_selected_keys_is_masking_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In value, gradient and index loss, in one piece or many; in prefill and in a later turn."""
    policy, ids = build(), tokens(3, 26)
    enable_index_loss(policy)
    runs = []
    for factor, gathered in ((8, 2**24), (1, 2**24), (1, 2**10)):
        monkeypatch.setattr(mla_module, "SPARSE_CORE", factor)
        monkeypatch.setattr(mla_module, "GATHERED", gathered)
        policy.zero_grad()
        out = policy(ids, LENGTHS, record_picks=True)
        (out.hidden.square().sum() + out.index_loss).backward()
        state = policy.new_state(1, 26)
        policy.prefill(ids[:1, :15], torch.tensor([15]), state, [0])
        logits, _ = policy.extend(ids[:1, 15:], torch.tensor([11]), state, [0])
        grads = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
        runs.append([out.hidden, out.index_loss, out.picks, logits, *grads])
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("preset", ["k3", "k31", "tiny", "tiny_odd"])
def test_token_by_token_is_the_forward(preset: str) -> None:
    """Prefill of the whole, the forward, and decoding from nothing agree within 1e-12 in float64.

    At weights of five times the initial size, logits of about 3: the wilder ones of the other tests make more of a bit.
    """
    named = {"k3": ("tiny_odd", {"index_topk": None}), "k31": ("tiny", {"index_topk": 9})}
    base, changes = named.get(preset, (preset, {}))
    config = replace(K3Config.preset(base), initializer_range=0.1, **changes)
    policy, ids = Policy(config, PLAIN).to(torch.float64), tokens(2, 24)
    policy.reset_parameters(4)
    g = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, p in policy.named_parameters():
            if name.endswith(("norm.weight", "res_proj.weight", "k_norm.bias", "A_log")):
                p.add_(torch.randn(p.shape, generator=g, dtype=torch.float32), alpha=0.1)
    policy.refresh_quantized()
    want = policy.logits(policy(ids, torch.tensor([24, 24])).hidden).detach()
    state, whole = policy.new_state(2, 24), policy.new_state(2, 24)
    got = torch.stack([policy.decode(ids[:, t], state, 2)[0] for t in range(24)], 1)
    assert want.abs().max() > 1
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    last, _ = policy.prefill(ids, torch.tensor([24, 24]), whole, [0, 1])
    torch.testing.assert_close(last, want[:, -1], rtol=0, atol=1e-12)
    torch.testing.assert_close(state.recurrent, whole.recurrent, rtol=0, atol=1e-12)


# --- the indexer's two stages -------------------------------------------------------------------------------------


def kl_by_hand(policy: Policy, ids: Tensor, dense: bool) -> float:
    """Mean over full layers and tokens of KL(p || softmax I), p = L1-normalised sum over heads; float64, by loops."""
    per_layer = []
    layers = [m for m in policy.modules() if isinstance(m, MLA)]

    @torch.no_grad()
    def hook(m: MLA, arguments: tuple, _: object) -> None:
        x = arguments[0].detach()
        q_latent, q, latent, _ = m._project(x)
        k, _ = m._keys_values(latent)
        iq, iw = m.indexer.queries(x, q_latent)
        ik, total = m.indexer.keys(x), 0.0
        for t in range(len(x)):
            score = torch.stack(
                [(iw[t] * torch.relu(iq[t] @ ik[s]) * m.indexer.head_dim**-0.5).sum() for s in range(t + 1)]
            )
            order = sorted(range(t + 1), key=lambda s: (-float(score[s]), s))
            seen = torch.tensor(sorted(order if dense else order[: m.indexer.topk]))
            p = torch.zeros(len(seen), dtype=x.dtype)
            for h in range(m.heads):
                p += torch.softmax(k[seen, h] @ q[t, h] * (m.nope + m.pe) ** -0.5, 0)
            p /= p.abs().sum()
            total += float((p * (p.log() - torch.log_softmax(score[seen], 0))).sum())
        per_layer.append(total / len(x))

    handles = [m.register_forward_hook(hook) for m in layers]
    with torch.enable_grad():
        policy(ids, torch.tensor([ids.shape[1]]))
    for h in handles:
        h.remove()
    return sum(per_layer) / len(per_layer)


@pytest.mark.parametrize("dense", [False, True])
def test_index_loss_is_the_divergence_by_hand(dense: bool) -> None:
    policy, ids = build(), tokens(1, 18)
    enable_index_loss(policy, dense=dense)
    out = policy(ids, torch.tensor([18]))
    assert float(out.index_loss.detach()) == pytest.approx(kl_by_hand(policy, ids, dense), rel=1e-9)


def test_dense_warm_up_trains_the_indexers_alone_under_dense_attention() -> None:
    policy, ids = build(), tokens(2, 20)
    full = build(index_topk=None)
    full.load_named_weights({k: v for k, v in policy.named_weights() if "indexer" not in k})
    lengths = torch.tensor([20, 14])
    want = full(ids, lengths).hidden
    assert not torch.equal(policy(ids, lengths).hidden, want)
    warm_up_indexers(policy)
    out = policy(ids, lengths)
    assert torch.equal(out.hidden, want)
    assert not out.hidden.requires_grad  # nothing of the model is kept for a backward
    out.index_loss.backward()
    learned = {n for n, p in policy.named_parameters() if p.grad is not None and p.grad.any()}
    assert learned == {n for n, _ in policy.named_parameters() if "indexer" in n}
    with pytest.raises(ValueError, match="warm-up"):
        policy(ids, lengths, record_picks=True)
    with torch.no_grad():  # no gradients, no warm-up: the selection is what it will be
        assert not torch.equal(policy(ids, lengths).hidden, want)


@pytest.mark.parametrize("dense", [False, True])
def test_the_models_gradient_does_not_feel_the_index_loss(dense: bool) -> None:
    policy, ids = build(), tokens(2, 20)
    lengths, grads = torch.tensor([20, 14]), []
    enable_index_loss(policy, dense=dense)
    for weight in (0.0, 1.0):
        policy.zero_grad()
        out = policy(ids, lengths)
        (out.hidden.square().sum() + weight * out.index_loss).backward()
        grads.append({n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None})
    for name, g in grads[0].items():
        assert torch.equal(g, grads[1][name]) == ("indexer" not in name), name


def test_frozen_indexers_have_no_loss_and_no_gradient() -> None:
    policy, ids = build(), tokens(1, 20)
    enable_index_loss(policy)
    freeze_indexers(policy)
    out = policy(ids, torch.tensor([20]))
    assert out.index_loss is None
    out.hidden.sum().backward()
    assert all(p.grad is None for m in policy.modules() if isinstance(m, Indexer) for p in m.parameters())
    freeze_indexers(policy, False)
    assert policy(ids, torch.tensor([20])).index_loss.requires_grad
