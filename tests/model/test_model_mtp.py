"""Laws of the MTP layer: the equations written twice, public names, counted apart, and off unless asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact_cases import build, tokens
from k3_oracle import Oracle, _rms, randomised
from torch import Tensor

from model.config import K3Config
from model.decoder import Policy
from model.mtp import enable_mtp, mtp_loss
from model.packing import Packing

LAYER = "model.layers.9."


def with_mtp(preset: str = "tiny_odd", **changes) -> Policy:
    return build(preset, num_nextn_predict_layers=1, **changes)


class MTPOracle(Oracle):
    """The trunk's equations, and the layer's on top; its mixer is dense and its residuals are plain."""

    def ahead(self, ids: list[int]) -> Tensor:
        """Logits [T - 1, V] of token t + 2 at position t."""
        raw: list[Tensor] = []
        mix = self._mix

        def keep(sources: list[Tensor], name: str) -> Tensor:
            raw.append(mix(sources, name))
            return raw[-1]

        self._mix = keep  # type: ignore[method-assign]
        self.logits(ids)
        c, w = self.c, self.w
        self.c = replace(c, index_topk=None)
        hidden = raw[-1][:-1]
        embedded = w["model.embed_tokens.weight"][torch.tensor(ids[1:])].clone()
        embedded[0] = 0
        norm = lambda x, name: _rms(x, w[f"{LAYER}{name}.weight"], c.rms_norm_eps)
        x = torch.cat((norm(embedded, "enorm"), norm(hidden, "hnorm")), -1) @ w[LAYER + "eh_proj.weight"].T
        x = x + self._full(LAYER + "self_attn.", norm(x, "input_layernorm"))
        x = x + self._moe(LAYER + "block_sparse_moe.", norm(x, "post_attention_layernorm"))
        return norm(x, "shared_head.norm") @ w[LAYER + "shared_head.head.weight"].T


def test_the_layer_is_the_spec_written_twice() -> None:
    policy, ids = with_mtp(), tokens(1, 16)
    enable_mtp(policy)
    out = policy(ids, torch.tensor([16]))
    want = MTPOracle(policy.config, dict(policy.named_weights())).ahead(ids[0].tolist())
    got = policy.model.mtp.shared_head.head(out.mtp)[0, :-1]
    assert want.std() > 0.1
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    loss = mtp_loss(policy, out, ids, torch.tensor([16]))
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(want[:-1], ids[0, 2:]))


def test_it_is_off_by_default_and_changes_no_bit_of_the_trunk() -> None:
    plain, policy = build(), with_mtp()
    policy.load_named_weights(dict(policy.named_weights()) | dict(plain.named_weights()))
    ids, lengths = tokens(3, 20), torch.tensor([20, 3, 11])
    want = plain(ids, lengths)
    off = policy(ids, lengths)
    assert off.mtp is None and torch.equal(off.hidden, want.hidden)
    with pytest.raises(ValueError, match="enable_mtp"):
        mtp_loss(policy, off, ids, lengths)
    enable_mtp(policy)
    on = policy(ids, lengths)
    assert torch.equal(on.hidden, want.hidden) and torch.equal(on.routes, want.routes)
    state, other = policy.new_state(3, 24), plain.new_state(3, 24)
    for p, s in ((policy, state), (plain, other)):
        p.prefill(ids, lengths, s, [0, 1, 2])
    step = torch.tensor([5, 6, 7])
    assert torch.equal(policy.decode(step, state, 3)[0], plain.decode(step, other, 3)[0])
    with pytest.raises(ValueError, match="num_nextn_predict_layers"):
        enable_mtp(plain)


def test_public_names_and_counts() -> None:
    config = replace(K3Config.preset("tiny_odd"), num_nextn_predict_layers=1)
    with torch.device("meta"):
        policy = Policy(config)
        plain = Policy(K3Config.preset("tiny_odd"))
    shapes = {k: tuple(v.shape) for k, v in policy.named_weights()}
    own = {k.removeprefix(LAYER): v for k, v in shapes.items() if k.startswith(LAYER)}
    assert shapes.keys() - {LAYER + k for k in own} == {k for k, _ in plain.named_weights()}
    for name, shape in {
        "enorm.weight": (56,),
        "hnorm.weight": (56,),
        "eh_proj.weight": (56, 112),
        "shared_head.norm.weight": (56,),
        "shared_head.head.weight": (512, 56),
        "self_attn.kv_b_proj.weight": (72, 20),
        "self_attn.g_proj.weight": (42, 56),
        "block_sparse_moe.gate.e_score_correction_bias": (16,),
        "block_sparse_moe.experts.15.w2.weight": (40, 36),
        "input_layernorm.weight": (56,),
        "post_attention_layernorm.weight": (56,),
    }.items():
        assert own[name] == shape, name
    assert not any("indexer" in k or "res_proj" in k for k in own)
    total = sum(v.numel() for _, v in policy.named_weights())
    assert total == config.param_count() + config.mtp_count()
    assert config.param_count() == K3Config.preset("tiny_odd").param_count() and plain.config.mtp_count() == 0
    assert replace(K3Config.preset("k3"), num_nextn_predict_layers=1).param_count() == 2_779_484_478_208
    with pytest.raises(ValueError, match="num_nextn_predict_layers"):
        replace(config, num_nextn_predict_layers=2)


def test_padding_batch_and_later_tokens_change_nothing() -> None:
    policy = with_mtp()
    enable_mtp(policy)
    ids, lengths = tokens(3, 20), torch.tensor([20, 3, 11])
    out = policy(ids, lengths)
    for i, n in enumerate(lengths.tolist()):
        alone = policy(ids[i : i + 1, :n], lengths[i : i + 1])
        torch.testing.assert_close(out.mtp[i, :n], alone.mtp[0], rtol=0, atol=1e-11)
        assert not out.mtp[i, n:].any()
    changed = ids.clone()
    changed[:, 12:] = tokens(3, 8, seed=5)
    moved = policy(changed, lengths)
    torch.testing.assert_close(moved.mtp[0, :11], out.mtp[0, :11], rtol=0, atol=1e-11)
    assert (moved.mtp[0, 11] - out.mtp[0, 11]).abs().max() > 1e-6  # it reads token 12


def test_the_loss_counts_what_has_a_token_after_the_next_and_reaches_the_trunk() -> None:
    policy = with_mtp()
    enable_mtp(policy)
    ids, lengths = tokens(4, 9), torch.tensor([9, 2, 1, 4])
    out = policy(ids, lengths)
    loss = mtp_loss(policy, out, ids, lengths)
    logp = policy.model.mtp.shared_head.head(out.mtp).log_softmax(-1)
    want = -(sum(logp[0, t, ids[0, t + 2]] for t in range(7)) + sum(logp[3, t, ids[3, t + 2]] for t in range(2))) / 9
    torch.testing.assert_close(loss, want)
    loss.backward()
    without = {n for n, p in policy.named_parameters() if p.grad is None}
    assert without == {n for n, _ in policy.named_parameters() if "indexer" in n} | {
        "lm_head.weight",
        "model.norm.weight",
    }
    short = policy(ids[:, :2], torch.tensor([2, 2, 1, 2]))
    assert float(mtp_loss(policy, short, ids[:, :2], torch.tensor([2, 2, 1, 2])).detach()) == 0.0


def test_the_embedding_at_position_0_is_zero() -> None:
    policy = with_mtp()
    layer = policy.model.mtp
    g = torch.Generator().manual_seed(0)
    hidden, embedded = torch.randn(2, 8, 56, generator=g, dtype=torch.float64)
    packing = Packing(torch.tensor([5, 3]), 5)
    base = layer(hidden, embedded, packing)
    for n, read in enumerate([False, False, True, True, True, False, False, True]):
        moved = embedded.clone()
        moved[n] += 1.0
        # Token n is read at position n - 1 of its row, unless that is the row's first one.
        assert (not torch.equal(layer(hidden, moved, packing), base)) == read, n


def test_shared_beginnings_are_refused() -> None:
    policy = with_mtp()
    enable_mtp(policy)
    with pytest.raises(ValueError, match="parents"):
        policy(tokens(2, 5), torch.tensor([5, 3]), None, torch.tensor([-1, 0]))


def test_its_router_is_balanced_with_the_others() -> None:
    from model.balance import balance_update, enable_balancing

    policy = randomised(with_mtp("tiny"))
    enable_mtp(policy)
    enable_balancing(policy)
    policy.train()
    policy(tokens(4, 30), torch.full((4,), 30))
    before = policy.model.mtp.block_sparse_moe.gate.e_score_correction_bias.clone()
    assert len(balance_update(policy)) == 4
    assert not torch.equal(policy.model.mtp.block_sparse_moe.gate.e_score_correction_bias, before)
