"""Laws of the experts: replay, ties, empty experts, straight-through rounding, stale weights, balancing."""

from __future__ import annotations

import copy

import pytest
import torch
from exact_cases import PLAIN, build, tokens
from k3_oracle import randomised
from torch import Tensor

from kernels import mx
from kernels.experts import torch as experts
from model.balance import BINS, balance_update, enable_balancing
from model.config import K3Config
from model.moe import LatentMoE
from model.quant import QuantSpec


def layer(quant: QuantSpec = PLAIN, preset: str = "tiny_odd", dtype: torch.dtype = torch.float64) -> LatentMoE:
    moe = LatentMoE(K3Config.preset(preset), quant).to(dtype)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in moe.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float32) * (2.0 / p.shape[-1]) ** 0.5)
    moe.experts.refresh()
    moe.shared_experts.refresh()
    return moe


def inputs(n: int, dtype: torch.dtype = torch.float64, width: int = 56) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(1), dtype=torch.float32).to(dtype)


def test_replay_uses_recorded_experts_with_live_weights() -> None:
    moe, x = layer(), inputs(6)
    _, live = moe(x)
    routes = (live + 5) % 16  # none of them need be among the live choice
    routes[2] = -1
    y, chosen = moe(x, routes.to(torch.int16))
    assert torch.equal(chosen[2], live[2])
    assert torch.equal(chosen[[0, 1, 3, 4, 5]], routes[[0, 1, 3, 4, 5]])
    scores = torch.sigmoid(x @ moe.gate.weight.T)
    weights, _ = moe.gate(x, routes)
    want = scores.gather(1, chosen)
    torch.testing.assert_close(weights, want / want.sum(1, keepdim=True))
    assert (weights > 0).all()
    y[0].square().sum().backward()
    grad = moe.gate.weight.grad
    assert grad[routes[0]].abs().sum(1).gt(0).all()
    assert not grad[[e for e in range(16) if e not in routes[0].tolist()]].any()


def test_replaying_the_live_routes_changes_nothing() -> None:
    policy = build()
    ids, lengths = tokens(3, 20), torch.tensor([20, 7, 13])
    live = policy(ids, lengths)
    again = policy(ids, lengths, live.routes.to(torch.int32))
    assert torch.equal(again.hidden, live.hidden) and torch.equal(again.routes, live.routes)


def test_equal_scores_go_to_the_smaller_expert() -> None:
    moe = layer()
    with torch.no_grad():
        moe.gate.weight[4:9] = moe.gate.weight[3]
        moe.gate.e_score_correction_bias[3:9] = 5.0
    _, chosen = moe(inputs(50))
    assert (chosen == torch.tensor([3, 4, 5, 6])).all()


def test_bias_selects_but_does_not_weigh() -> None:
    moe, x = layer(), inputs(4)
    with torch.no_grad():
        moe.gate.e_score_correction_bias[11] = 3.0
    weights, chosen = moe.gate(x)
    assert (chosen[:, 0] == 11).all()
    scores = torch.sigmoid(x @ moe.gate.weight.T).gather(1, chosen)
    torch.testing.assert_close(weights, scores / scores.sum(1, keepdim=True))


def test_experts_without_tokens_get_zero_gradients() -> None:
    moe, x = layer(QuantSpec(), dtype=torch.float32), inputs(5, torch.float32)
    y, _ = moe(x, torch.tensor([0, 1, 2, 3]).expand(5, 4))
    y.sum().backward()
    for w in (moe.experts.w1, moe.experts.w2, moe.experts.w3):
        assert w.grad is not None and not w.grad[4:].any()
        assert w.grad[:4].flatten(1).any(1).all()


def test_few_and_many_tokens_take_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    for quant, dtype, gap in ((PLAIN, torch.float64, 1e-12), (QuantSpec(), torch.float32, 1e-4)):
        moe, x = layer(quant, dtype=dtype), inputs(40, dtype)
        with torch.no_grad():
            monkeypatch.setattr(experts, "DENSE_MACS", {True: 0})
            sorted_, _ = moe(x)
            monkeypatch.setattr(experts, "DENSE_MACS", {True: 2**60})
            dense, _ = moe(x)
        torch.testing.assert_close(dense, sorted_, rtol=0, atol=gap)


def test_the_hook_gets_latents_weights_and_choice() -> None:
    class Double(torch.nn.Module):
        def forward(self, z: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
            assert z.shape == (7, 40) and weights.shape == chosen.shape == (7, 4)
            return 2 * z

    moe, x = layer(), inputs(7)
    moe.experts = Double()
    y, _ = moe(x)
    z = moe.routed_expert_norm(2 * moe.routed_expert_down_proj(x))
    torch.testing.assert_close(y, moe.routed_expert_up_proj(z) + moe.shared_experts(x))


# --- rounding -----------------------------------------------------------------------------------------------------


def test_forward_sees_rounded_weights_and_gradients_reach_the_masters() -> None:
    """The gradient of the quantised layer equals that of a plain layer whose weights ARE the rounded ones."""
    moe = layer(QuantSpec(expert_activations="none"), dtype=torch.float32)
    plain = layer(PLAIN, dtype=torch.float32)
    with torch.no_grad():
        for w in ("w1", "w2", "w3"):
            getattr(plain.experts, w).copy_(mx.fake_quantise_mxfp4(getattr(moe.experts, w)))
    assert not torch.equal(plain.experts.w1, moe.experts.w1)
    x = inputs(30, torch.float32)
    for scale in (1.0, 2.0):  # two micro-batches accumulate
        outs = [m(x * scale)[0] for m in (moe, plain)]
        torch.testing.assert_close(*outs, rtol=0, atol=1e-6)
        for y in outs:
            y.square().sum().backward()
    for w in ("w1", "w2", "w3"):
        torch.testing.assert_close(getattr(moe.experts, w).grad, getattr(plain.experts, w).grad, rtol=1e-4, atol=1e-4)


def test_activations_are_rounded_straight_through() -> None:
    moe, plain = (layer(q, dtype=torch.float32) for q in (QuantSpec("none"), PLAIN))
    z = torch.randn(20, 40)
    weights, chosen = torch.full((20, 1), 1.0), torch.arange(20).remainder(16).unsqueeze(1)
    x = z.clone().requires_grad_()
    moe.experts(x, weights, chosen).sum().backward()
    rounded = mx.fake_quantise_mxfp8(z).requires_grad_()
    w13 = torch.cat((plain.experts.w1, plain.experts.w3), 1)[chosen[:, 0]]
    gate_up = torch.bmm(w13, rounded.unsqueeze(-1)).squeeze(-1)
    g, u = gate_up.chunk(2, -1)
    act = 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)
    act = act + (mx.fake_quantise_mxfp8(act) - act).detach()
    want = torch.bmm(plain.experts.w2[chosen[:, 0]], act.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(moe.experts(z, weights, chosen), want, rtol=1e-4, atol=1e-4)
    want.sum().backward()
    torch.testing.assert_close(x.grad, rounded.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rule", ["even", "floor"])
def test_weights_are_rounded_along_their_input_axis(rule: str) -> None:
    moe = layer(QuantSpec(scale_rule=rule), dtype=torch.float32)
    w13, w2 = moe.experts.gemm_weights()
    for stored, master in ((w13[:, :36], moe.experts.w1), (w13[:, 36:], moe.experts.w3), (w2, moe.experts.w2)):
        for e in (0, 15):
            rows = [mx.fake_quantise_mxfp4(row, rule) for row in master[e]]
            assert torch.equal(stored[e], torch.stack(rows))


def test_stale_weights_are_refused() -> None:
    policy = randomised(build("tiny", QuantSpec(), torch.float32))
    ids, lengths = tokens(1, 4), torch.tensor([4])
    state = policy.new_state(1, 10)
    policy.prefill(ids, lengths, state, [0])
    with torch.no_grad():
        policy.model.layers[1].moe.experts.w1.mul_(2)
    with pytest.raises(RuntimeError, match="refresh_quantized"):
        policy(ids, lengths)
    policy.refresh_quantized()
    policy(ids, lengths)
    with torch.no_grad():
        policy.model.layers[0].self_attn.q_proj.weight.mul_(2)
    with pytest.raises(RuntimeError, match="refresh_quantized"):
        policy.decode(torch.tensor([1]), state, 1)


def test_a_refresh_reaches_forward_and_decode() -> None:
    policy = build("tiny", QuantSpec(), torch.float32)
    new = {k: v.clone() for k, v in randomised(copy.deepcopy(policy), seed=7).named_weights()}
    ids, lengths = tokens(2, 6), torch.tensor([6, 6])
    before = policy(ids, lengths).hidden
    policy.load_named_weights({k: v.numpy() for k, v in new.items()})
    after = policy(ids, lengths).hidden
    assert (after - before).abs().max() > 0.1
    state = policy.new_state(2, 10)
    policy.prefill(ids[:, :5], lengths - 1, state, [0, 1])
    got, _ = policy.decode(ids[:, 5], state, 2)
    torch.testing.assert_close(got, policy.logits(after[:, 5]), rtol=0, atol=1e-3)


def test_what_is_derived_moves_with_the_weights() -> None:
    policy = build("tiny", QuantSpec(), torch.float32)
    ids, lengths = tokens(2, 6), torch.tensor([6, 6])
    before = policy(ids, lengths).hidden
    for moved in (copy.deepcopy(policy), policy.to(torch.float64)):
        after = moved(ids, lengths).hidden
        assert after.dtype == moved.dtype
        torch.testing.assert_close(after.float(), before, rtol=0, atol=1e-3)
        state = moved.new_state(2, 8)
        moved.prefill(ids[:, :5], lengths - 1, state, [0, 1])
        got, _ = moved.decode(ids[:, 5], state, 2)
        torch.testing.assert_close(got, moved.logits(after[:, 5]), rtol=0, atol=1e-3)


def test_loading_is_strict() -> None:
    policy = build("tiny", QuantSpec(), torch.float32)
    good = dict(policy.named_weights())
    for bad in (
        {k: v for k, v in good.items() if k != "lm_head.weight"},
        good | {"extra.weight": torch.zeros(1)},
        good | {"lm_head.weight": torch.zeros(64, 512)},
    ):
        with pytest.raises(ValueError, match="do not fit"):
            policy.load_named_weights(bad)
    biases = [n for n in good if n.endswith("e_score_correction_bias")]
    assert len(biases) == 3 and all(good[n].dtype == torch.float32 for n in biases)


# --- balancing ----------------------------------------------------------------------------------------------------


def skewed(moe: LatentMoE) -> LatentMoE:
    with torch.no_grad():
        moe.gate.weight.mul_(0.3)
        moe.gate.weight[:3] += 0.05 * inputs(4096).mean(0) + 0.04
    return moe


def loads(moe: LatentMoE, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.bincount(moe.gate(x)[1].flatten(), minlength=16).double()


class One(torch.nn.Module):
    """The part of a policy that balancing asks for."""

    def __init__(self, moe: LatentMoE) -> None:
        super().__init__()
        self.moe = moe

    def routers(self):  # type: ignore[no-untyped-def]
        return iter([self.moe.gate])


def test_balancing_evens_the_load() -> None:
    moe, x = skewed(layer()), inputs(4096) + 0.5
    policy = One(moe)
    enable_balancing(policy)
    before = loads(moe, x)
    assert before.max() / before.mean() > 1.8
    for _ in range(6):
        moe(x)
        (reported,) = balance_update(policy)
    after = loads(moe, x)
    assert after.max() / after.mean() < 1.06
    assert abs(reported - float(after.max() / after.mean())) < 0.15
    assert abs(float(moe.gate.e_score_correction_bias.mean())) < 1e-6
    assert not moe.gate.histogram.counts.any()


def test_the_quantile_is_the_bias_that_gives_an_even_share() -> None:
    moe, x = layer(), inputs(2000)
    policy = One(moe)
    enable_balancing(policy)
    moe(x)
    scores = torch.sigmoid(x @ moe.gate.weight.T)
    alpha = scores.sort(-1, descending=True).values[:, 4]
    want = torch.quantile(alpha[:, None] - scores, 4 / 16, dim=0)
    balance_update(policy)
    bias = moe.gate.e_score_correction_bias.double()
    torch.testing.assert_close(bias, want - want.mean(), rtol=0, atol=3 * 2 / BINS)


def test_micro_batches_and_ranks_add_up() -> None:
    whole, parts, other = (layer() for _ in range(3))
    x = inputs(300)
    for m in (whole, parts, other):
        enable_balancing(One(m))
    whole(x)
    parts(x[:100])
    parts(x[100:150])
    other(x[150:])
    theirs = other.gate.histogram.counts.clone()
    balance_update(One(whole))
    balance_update(One(parts), all_reduce=lambda counts: counts.add_(theirs))
    assert torch.equal(whole.gate.e_score_correction_bias, parts.gate.e_score_correction_bias)
    assert whole.gate.e_score_correction_bias.any()


def test_only_live_training_tokens_are_counted() -> None:
    policy = build()
    ids, lengths = tokens(3, 20), torch.tensor([20, 3, 7])
    counted = lambda: [int(r.histogram.counts.sum()) for r in policy.routers()]
    policy(ids, lengths)
    assert counted() == [0] * 8  # not enabled
    enable_balancing(policy)
    policy.eval()
    routes = policy(ids, lengths).routes
    policy.train()
    policy(ids, lengths, routes)  # replayed: the bias had no say
    policy.prefill(ids, lengths, policy.new_state(3, 20), [0, 1, 2])
    assert counted() == [0] * 8
    policy(ids, lengths)
    assert counted() == [30 * 16] * 8  # 30 real tokens, no pads, 16 experts
    before = [r.e_score_correction_bias.clone() for r in policy.routers()]
    balance_update(policy)
    after = [r.e_score_correction_bias.clone() for r in policy.routers()]
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    balance_update(policy)  # nothing counted since: nothing changes
    assert all(torch.equal(a, r.e_score_correction_bias) for a, r in zip(after, policy.routers(), strict=True))
