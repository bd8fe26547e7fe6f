"""Laws of the forward: equal to the equations written twice, causal, blind to padding and to the rest of the batch."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from exact_cases import build, causality, logits, sparse_against_dense, tokens
from k3_oracle import Oracle

from model.chunked import score_chunked


@pytest.mark.parametrize("topk", [7, None])
def test_forward_is_the_spec_written_twice(topk: int | None) -> None:
    policy = build(index_topk=topk)
    ids = tokens(1, 20)
    oracle = Oracle(policy.config, dict(policy.named_weights()))
    want = oracle.logits(ids[0].tolist())
    out = policy(ids, torch.tensor([20]))
    got = policy.logits(out.hidden)[0]
    assert want.std() > 0.1
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    assert out.routes[0].permute(1, 0, 2).tolist() == oracle.routes


def test_tiny_is_the_spec_written_twice() -> None:
    policy = build("tiny")
    ids = tokens(1, 18)
    want = Oracle(policy.config, dict(policy.named_weights())).logits(ids[0].tolist())
    torch.testing.assert_close(logits(policy, ids, torch.tensor([18]))[0], want, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "change", [{"activation_situ_linear_beta": None}, {"moe_renormalize": False}, {"logit_scale": 0.3}]
)
@pytest.mark.parametrize("preset", ["tiny", "tiny_odd"])
def test_what_a_config_may_switch_is_honoured_in_forward_and_decode(preset: str, change: dict) -> None:
    # A norm behind the experts' sum takes a common factor out but for its eps; caps matter to large inputs.
    policy, usual = build(preset, rms_norm_eps=0.5, **change), build(preset, rms_norm_eps=0.5)
    for p in (policy, usual):
        with torch.no_grad():
            for layer in p.model.layers:
                layer.post_attention_layernorm.weight.mul_(30)
        p.refresh_quantized()
    ids = tokens(1, 12)
    want = Oracle(policy.config, dict(policy.named_weights())).logits(ids[0].tolist())
    got = logits(policy, ids, torch.tensor([12]))[0]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-9)
    assert (got - logits(usual, ids, torch.tensor([12]))[0]).abs().max() > 1e-5
    state = policy.new_state(1, 12)
    policy.prefill(ids[:, :11], torch.tensor([11]), state, [0])
    torch.testing.assert_close(policy.decode(ids[:, 11], state, 1)[0][0], want[11], rtol=0, atol=1e-9)


def test_later_tokens_change_nothing_earlier() -> None:
    before, after, live = causality()
    assert before == 0.0 and after > 1e-3 and live <= 1e-12


def test_padding_and_batch_change_nothing() -> None:
    policy = build()
    ids, lengths = tokens(5, 37), torch.tensor([37, 1, 16, 17, 5])
    whole = policy(ids, lengths)
    wide = torch.cat((ids, tokens(5, 30, seed=3)), 1)  # longer padding, filled with other tokens
    for i, n in enumerate(lengths.tolist()):
        alone = policy(ids[i : i + 1, :n], lengths[i : i + 1])
        torch.testing.assert_close(whole.hidden[i, :n], alone.hidden[0], rtol=0, atol=1e-12)
        assert torch.equal(whole.routes[i, :n], alone.routes[0])
        assert (whole.hidden[i, n:] == 0).all() and (whole.routes[i, n:] == -1).all()
    torch.testing.assert_close(policy(wide, lengths).hidden[:, :37], whole.hidden, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("batch", "time"), [(1, 16), (1, 32), (1, 1), (3, 16), (2, 15)])
def test_batches_without_a_pad(batch: int, time: int) -> None:
    """Nothing to unpack, or only up to the tile: the shapes at which views and copies part."""
    policy = build()
    ids, full = tokens(batch, time), torch.full((batch,), time)
    out = policy(ids, full)
    out.hidden.sum().backward()
    ragged = policy(torch.cat((ids, tokens(1, time))), torch.cat((full, torch.tensor([max(1, time - 3)]))))
    torch.testing.assert_close(out.hidden, ragged.hidden[:batch], rtol=0, atol=1e-12)
    got, _ = policy.prefill(ids, full, policy.new_state(batch, time), range(batch))
    torch.testing.assert_close(got, policy.logits(out.hidden[:, -1]), rtol=0, atol=1e-10)


def test_pads_get_no_gradient_and_give_none() -> None:
    policy = build()
    ids, lengths = tokens(2, 20), torch.tensor([20, 6])
    other = ids.clone()
    other[1, 6:] = 5
    grads = []
    for x in (ids, other):
        policy.zero_grad()
        policy.logits(policy(x, lengths).hidden[:, :6]).logsumexp(-1).sum().backward()
        grads.append({n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None})
    for name, g in grads[0].items():
        torch.testing.assert_close(g, grads[1][name], rtol=0, atol=1e-12, msg=name)


def test_sparse_attention_that_sees_all_is_dense_attention() -> None:
    assert sparse_against_dense(topk=40) == (0.0, 0.0)
    assert sparse_against_dense(topk=39)[1] > 0


def test_indexer_learns_from_its_own_loss_only() -> None:
    from model.dsa import enable_index_loss

    policy = build()
    ids, lengths = tokens(2, 20), torch.tensor([20, 11])
    policy.logits(policy(ids, lengths).hidden).square().sum().backward()
    assert all(p.grad is None for n, p in policy.named_parameters() if "indexer" in n)
    policy.zero_grad(set_to_none=True)
    enable_index_loss(policy)
    out = policy(ids, lengths)
    assert out.index_loss is not None and out.index_loss > 0
    out.index_loss.backward()
    assert {n for n, p in policy.named_parameters() if p.grad is not None} == {
        n for n, _ in policy.named_parameters() if "indexer" in n
    }
    assert torch.equal(out.hidden, policy(ids, lengths).hidden)


def test_index_loss_falls_when_trained() -> None:
    from model.dsa import enable_index_loss

    policy = build(dtype=torch.float32)
    enable_index_loss(policy)
    ids, lengths = tokens(8, 30), torch.full((8,), 30)
    learned = [p for n, p in policy.named_parameters() if "indexer" in n]
    losses = []
    for _ in range(12):
        policy.zero_grad()
        loss = policy(ids, lengths).index_loss
        loss.backward()
        with torch.no_grad():
            for p in learned:
                p.sub_(p.grad.sign(), alpha=1e-2)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_gradient_is_the_derivative() -> None:
    """Along a random direction, through every part but the discontinuous choices."""
    policy = build(index_topk=None)
    ids, lengths = tokens(2, 19), torch.tensor([19, 7])
    routes = policy(ids, lengths).routes

    def value() -> torch.Tensor:
        out = policy(ids, lengths, routes).hidden
        return (policy.logits(out) * 0.1).tanh().sum()

    value().backward()
    params = [p for n, p in policy.named_parameters() if "indexer" not in n]
    g = torch.Generator().manual_seed(5)
    direction = [torch.randn(p.shape, generator=g, dtype=p.dtype) * p.detach().std().clamp_min(0.01) for p in params]
    slope = sum(float((p.grad * d).sum()) for p, d in zip(params, direction, strict=True))
    h, ends = 1e-8, []
    with torch.no_grad():
        for sign in (1, -2):
            for p, d in zip(params, direction, strict=True):
                p.add_(d, alpha=sign * h)
            policy.refresh_quantized()
            ends.append(float(value()))
    assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("lengths", [[0, 3], [5, 21]])
def test_bad_lengths_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="lengths"):
        build("tiny")(tokens(2, 20), torch.tensor(lengths))


def test_routes_of_another_length_are_refused() -> None:
    policy = build("tiny")
    ids, lengths = tokens(1, 8), torch.tensor([8])
    routes = policy(ids, lengths).routes
    with pytest.raises(ValueError, match="routes"):
        policy(ids, lengths, routes[:, :7])


@pytest.mark.parametrize(
    ("experts", "what"),
    [
        ([3, 3], "names an expert twice"),
        ([3, -1], "names some experts"),
        ([3, 8], "names what is none of 8 experts"),
        ([-2, -2], "names what is none of 8 experts"),
    ],
)
def test_routes_that_no_router_gives_are_refused_by_place(experts: list[int], what: str) -> None:
    policy = build("tiny")
    ids, lengths = tokens(2, 8), torch.tensor([8, 5])
    routes = policy(ids, lengths).routes
    routes[1, 3, 2] = torch.tensor(experts)
    at = torch.arange(1, 5)
    told = rf"row 1, token 3, MoE layer 2 {what}.*: \[{experts[0]}, {experts[1]}\]"
    with pytest.raises(ValueError, match=told):
        policy(ids, lengths, routes)
    chunked = partial(score_chunked, policy, ids, lengths, at, at - 1, torch.ones(4), chunk=3)
    with pytest.raises(ValueError, match=told):
        chunked(routes=routes)
    with pytest.raises(ValueError, match=r"routes .* do not match"):
        chunked(routes=routes[..., :1])
    routes[1, 3, 2] = -1
    assert torch.isfinite(chunked(routes=routes.to(torch.int16))[0]).all()
