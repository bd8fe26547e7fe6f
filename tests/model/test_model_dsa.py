"""Laws of the key selection: the k best visible keys, ties to the smaller index, whatever the values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.dsa import index_loss, select_topk


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, 2.0]), min_size=1, max_size=12),
    st.integers(1, 13),
    st.integers(1, 12),
)
def test_is_a_stable_sort(values: list[float], k: int, seen: int) -> None:
    seen = min(seen, len(values))
    visible = torch.arange(len(values)) < seen
    got = select_topk(torch.tensor(values), visible, k)
    best = sorted(range(seen), key=lambda i: (-values[i], i))[:k]
    assert got.nonzero().flatten().tolist() == sorted(best)


def test_equal_scores_keep_the_first_keys() -> None:
    scores = torch.zeros(2, 3, 9)
    scores[..., 1::2] = -0.0
    visible = torch.arange(9) <= torch.tensor([3, 6, 8]).view(1, 3, 1)
    got = select_topk(scores, visible, 4)
    assert got.shape == (2, 3, 9)
    assert (got == (torch.arange(9) < 4)).all()


@pytest.mark.parametrize("k", [1, 5, 64])
def test_rows_are_independent(k: int) -> None:
    scores = torch.randn(4, 7, 40, generator=torch.Generator().manual_seed(0))
    visible = torch.arange(40) <= torch.arange(7).view(7, 1) * 6
    whole = select_topk(scores, visible, k)
    assert (whole.sum(-1) == visible.sum(-1).clamp(max=k)).all()
    for b in range(4):
        for t in range(7):
            assert torch.equal(whole[b, t], select_topk(scores[b, t], visible[t], k))


def test_index_loss_is_the_divergence_on_the_selected_keys() -> None:
    scores = torch.tensor([[0.3, -1.0, 9.0, 0.5]], dtype=torch.float64, requires_grad=True)
    selected = torch.tensor([[True, True, False, True]])
    p = torch.tensor([[0.5, 0.0, 0.0, 0.5]], dtype=torch.float64)
    q = torch.softmax(scores.detach()[0, [0, 1, 3]], 0)
    want = 0.5 * (torch.log(0.5 / q[0]) + torch.log(0.5 / q[2]))
    (loss,) = index_loss(scores, selected, p)
    torch.testing.assert_close(loss, want)
    loss.backward()
    torch.testing.assert_close(scores.grad[0, [0, 1, 3]], q - p[0, [0, 1, 3]])
    assert scores.grad[0, 2] == 0
