"""Laws of the small kernels: each equals its plain formula, its gradient is the derivative, and less is not more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.attn_res import mix_norm
from kernels.conv import conv_silu
from kernels.experts import straight_through
from kernels.experts.torch import dense_situ_mlp, from_pairs, grouped_situ_mlp, to_pairs
from kernels.norm import gated_head_norm, l2_norm, rms_norm
from kernels.router import expert_order
from kernels.rows import gather_rows, scatter_rows
from kernels.situ import situ_glu


def draw(*shape: int, seed: int = 0, grad: bool = True) -> Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.requires_grad_(grad)


def same(fast, plain, *inputs: Tensor) -> None:  # type: ignore[no-untyped-def]
    """Equal values and gradients, and the same value where gradients are disabled."""
    a, b = fast(*inputs), plain(*inputs)
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    w = draw(*a.shape, seed=99, grad=False)
    for x, y in zip(
        torch.autograd.grad((a * w).sum(), inputs), torch.autograd.grad((b * w).sum(), inputs), strict=True
    ):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        assert torch.equal(fast(*inputs), a)


def rms(x: Tensor, w: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w


def test_norms() -> None:
    same(lambda x, w: rms_norm(x, w, 1e-5), rms, draw(4, 3, 7), draw(7, seed=1))
    same(lambda x: l2_norm(x, 0.3), lambda x: 0.3 * x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt(), draw(4, 3, 7))
    same(
        lambda o, g, w: gated_head_norm(o, g, w, 1e-5),
        lambda o, g, w: torch.sigmoid(g) * rms(o, w),
        draw(5, 3, 7),
        draw(5, 3, 7, seed=1),
        draw(7, seed=2),
    )
    zero = torch.zeros(2, 7, dtype=torch.float64, requires_grad=True)
    l2_norm(zero).sum().backward()
    assert zero.grad.isfinite().all()


def test_norms_compute_low_precision_in_float32() -> None:
    x, w = draw(5, 64, grad=False), draw(64, grad=False, seed=1)
    low, lw = x.bfloat16(), w.bfloat16()
    want = rms(low.float(), lw.float()).bfloat16()
    assert torch.equal(rms_norm(low, lw, 1e-5), want)


def test_situ_caps_the_gate_at_four_and_the_up_branch_at_twenty_five() -> None:
    def plain(x: Tensor, capped: bool = True) -> Tensor:
        g, u = x.chunk(2, -1)
        return 4 * torch.tanh(g / 4) * torch.sigmoid(g) * (25 * torch.tanh(u / 25) if capped else u)

    same(lambda x: situ_glu(x, 4.0, 25.0), plain, draw(6, 10) * 5)
    huge = situ_glu(torch.tensor([[1e4, 1e4], [-1e4, 1e4]]), 4.0, 25.0)
    assert huge.flatten().tolist() == pytest.approx([100.0, 0.0])
    x = draw(6, 10)
    swiglu = F.silu(x[:, :5]) * x[:, 5:]
    torch.testing.assert_close(situ_glu(x, 1e6, 1e6), swiglu, rtol=1e-6, atol=1e-6)
    same(lambda x: situ_glu(x, 4.0, None), lambda x: plain(x, capped=False), draw(6, 10) * 5)


def test_conv_is_causal_depthwise_and_ends_in_silu() -> None:
    def plain(window: Tensor, weight: Tensor) -> Tensor:
        return F.silu(F.conv1d(window.mT, weight.unsqueeze(1), groups=weight.shape[0])).mT

    same(conv_silu, plain, draw(3, 3 + 9, 5), draw(5, 4, seed=1))


@pytest.mark.parametrize("sources", [1, 2, 4])
def test_depth_mix(sources: int) -> None:
    def plain(key: Tensor, query: Tensor, weight: Tensor, *vs: Tensor) -> Tensor:
        scores = torch.stack([(rms(v, key) * query).sum(-1) for v in vs])
        p = torch.softmax(scores, 0)
        return rms(sum(p[i].unsqueeze(-1) * v for i, v in enumerate(vs)), weight)

    same(
        lambda key, query, weight, *vs: mix_norm(list(vs), key, query, weight, 1e-5),
        plain,
        draw(7),
        draw(1, 7, seed=1),
        draw(7, seed=2),
        *(draw(6, 7, seed=3 + i) * (1 + 3 * i) for i in range(sources)),
    )


def test_a_zero_query_averages() -> None:
    vs = [draw(5, 7, seed=i, grad=False) for i in range(3)]
    one = torch.ones(7, dtype=torch.float64)
    torch.testing.assert_close(mix_norm(vs, one, 0 * one.view(1, 7), one, 1e-5), rms(sum(vs) / 3, one))


def test_packing_moves() -> None:
    index = torch.tensor([5, 0, 3])
    same(lambda x: scatter_rows(x, index, 7), lambda x: torch.zeros(7, 2).double().index_put((index,), x), draw(3, 2))
    same(lambda x: gather_rows(x, index), lambda x: x[index], draw(7, 2))


def expert_case() -> tuple[Tensor, ...]:
    chosen = torch.tensor([[2, 0], [2, 4], [0, 2], [4, 2], [2, 0]])  # experts 1 and 3 get nothing
    weights = torch.rand(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    return draw(5, 6), draw(5, 14, 6, seed=1), draw(5, 6, 7, seed=2), weights, chosen


def routed(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    order, inverse, counts = expert_order(chosen, 5)
    out = grouped_situ_mlp(to_pairs(x, order, inverse, 2), w13, w2, counts.tolist(), (4.0, 25.0))
    return from_pairs(out, weights, order, inverse)


def test_dispatch_and_experts_are_a_loop_over_tokens() -> None:
    x, w13, w2, weights, chosen = expert_case()

    def plain(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor) -> Tensor:
        rows = []
        for t in range(5):
            y = 0
            for j in range(2):
                e = chosen[t, j]
                g, u = (w13[e] @ x[t]).chunk(2)
                y = y + weights[t, j] * (w2[e] @ (4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)))
            rows.append(y)
        return torch.stack(rows)  # type: ignore[arg-type]

    same(lambda *a: routed(*a, chosen), plain, x, w13, w2, weights)
    with torch.no_grad():
        dense = dense_situ_mlp(x, w13, w2, weights, chosen, (4.0, 25.0))
        torch.testing.assert_close(dense, plain(x, w13, w2, weights))


def test_poisoned_memory_does_not_leak() -> None:
    """Deterministic mode fills new memory with NaN: scratch that is read before it is written would show."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        inputs = expert_case()
        routed(*inputs).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(p.grad.isfinite().all() for p in inputs[:4])
    assert not inputs[1].grad[[1, 3]].any() and not inputs[2].grad[[1, 3]].any()


def test_expert_order_is_stable() -> None:
    order, inverse, counts = expert_order(torch.tensor([[3, 1], [1, 3], [0, 1]]), 5)
    assert order.tolist() == [4, 1, 2, 5, 0, 3] and counts.tolist() == [1, 3, 0, 2, 0]
    assert order[inverse].tolist() == list(range(6))


def test_straight_through_splits_over_the_masters() -> None:
    a, b = draw(2, 3, 4), draw(2, 5, 4, seed=1)
    value = torch.ones(2, 8, 4, dtype=torch.float64)
    w = draw(2, 8, 4, seed=2, grad=False)
    for _ in range(2):
        out = straight_through(value, a, b)
        assert torch.equal(out, value)
        (out * w).sum().backward()
    assert torch.equal(a.grad, 2 * w[:, :3]) and torch.equal(b.grad, 2 * w[:, 3:])
