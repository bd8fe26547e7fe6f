"""Laws of the streamed key selection: the k best visible keys, ties to the smaller index, in any tiles and threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.indexer import select_keys
from kernels.indexer import torch as streamed


def wanted(scores: Tensor, start: int, k: int) -> list[list[int]]:
    """By a stable sort of each query's visible scores."""
    rows = []
    for t, row in enumerate(scores.tolist()):
        seen = row[: start + t + 1]
        rows.append(sorted(sorted(range(len(seen)), key=lambda s: (-seen[s], s))[:k]))
    return rows


def chosen(index: Tensor) -> list[list[int]]:
    """Indices of each query; -1 stands behind them."""
    rows = [[s for s in row if s >= 0] for row in index.tolist()]
    assert all(
        row[len(kept) :] == [-1] * (len(row) - len(kept)) for row, kept in zip(index.tolist(), rows, strict=True)
    )
    return rows


def case(kind: str, tokens: int, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(queries, weights, keys) of three heads in float64; whole numbers make exact scores, most of them tied."""
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(tokens, 3, 4, generator=g, dtype=torch.float64)
    w = torch.randn(tokens, 3, generator=g, dtype=torch.float64)
    keys = torch.randn(n, 4, generator=g, dtype=torch.float64)
    if kind == "tied":
        q, w, keys = q.round(), w.round(), keys.round()
    elif kind != "random":  # each key beats all before it, or none
        q, w, keys = q.abs(), w.abs(), torch.linspace(1, 2, n, dtype=torch.float64).unsqueeze(1).expand(n, 4)
        keys = keys if kind == "rising" else keys.flip(0)
    return q, w, keys.contiguous()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["random", "tied", "rising", "falling"]),
    st.integers(1, 23),
    st.integers(0, 150),
    st.integers(1, 20),
    st.integers(0, 2**20),
)
def test_is_a_stable_sort_of_the_visible_scores(kind: str, tokens: int, start: int, k: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Tiles of eight keys, or twice as many as are chosen, and a few queries; spans of three tiles.
        patch.setattr(streamed, "WIDTH", {True: 8, False: 8})
        patch.setattr(streamed, "CELLS", {True: 120, False: 120})
        patch.setattr(streamed, "TILES", 3)
        q, w, keys = case(kind, tokens, start + tokens, seed)
        scores = (torch.relu(q @ keys.mT) * w.unsqueeze(-1)).sum(1)
        assert chosen(select_keys(q, w, keys, start, k)) == wanted(scores, start, k)


def test_tiles_of_the_usual_size_choose_the_same() -> None:
    q, w, keys = case("random", 300, 6000, 0)
    scores = (torch.relu(q @ keys.mT) * w.unsqueeze(-1)).sum(1)
    assert chosen(select_keys(q, w, keys, 5700, 100)) == wanted(scores, 5700, 100)


def test_threads_share_the_queries_and_leave_the_setting_alone() -> None:
    q, w, keys = case("tied", 700, 700, 1)
    alone = select_keys(q, w, keys, 0, 30)
    torch.set_num_threads(2)
    try:
        assert torch.equal(select_keys(q, w, keys, 0, 30), alone)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_scores_that_are_no_numbers_choose_something() -> None:
    q, w, keys = case("random", 8, 40, 2)
    keys[7] = torch.nan
    assert select_keys(q, w, keys, 32, 5).shape == (8, 5)
    assert select_keys(q * torch.nan, w, keys, 32, 5).shape == (8, 5)
