"""The Triton indexer: exact picks whatever the order of scores, ties and buffers; scores of picks with gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from triton_cases import DEVICE, beyond, error, poisoned, rounded_bfloat16

from kernels.indexer import index_scores, select_keys
from kernels.indexer import triton as kernel
from kernels.paths import pick, ran, use


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 16 queries and 16 keys, buffers of 64 candidates: a few hundred keys need many spans."""
    monkeypatch.setattr(kernel, "FILTER", {"BQ": 16, "BK": 16, "num_warps": 4, "num_stages": 2})
    monkeypatch.setattr(kernel, "OWN", {"BK": 16, "num_warps": 4})
    monkeypatch.setattr(kernel, "OWN_BACK", {"BK": 16, "num_warps": 4})


def whole(*shape: int, seed: int, most: int = 3) -> Tensor:
    """Whole numbers: their scores are exact in bfloat16 products and float32 sums, and many are tied."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=g).float()


def chosen(path: str, x: tuple[Tensor, Tensor, Tensor], start: int, k: int, bounds: list[int] | None = None) -> Tensor:
    given = [beyond(y.to(DEVICE)) for y in x]
    with use(path), poisoned(), rounded_bfloat16():
        index = select_keys(*given, start, k, bounds)
        assert ran("indexer") == path
    return index.cpu()


def same(x: tuple[Tensor, Tensor, Tensor], start: int, k: int, bounds: list[int] | None = None) -> Tensor:
    got, want = chosen("triton", x, start, k, bounds), chosen("reference", x, start, k, bounds)
    assert got.dtype == torch.int32 and torch.equal(got, want)
    return got


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "start", "k"), [(1, 0, 3), (17, 0, 1), (3, 210, 7), (18, 70, 16), (9, 0, 9)])
def test_picks_are_the_stable_sorts(tokens: int, start: int, k: int, dtype: torch.dtype) -> None:
    x = (whole(tokens, 3, 5, seed=1), whole(tokens, 3, seed=2), whole(start + tokens, 5, seed=3))
    same(tuple(y.to(dtype) for y in x), start, k)


def test_packed_sequences_see_their_own_keys_alone() -> None:
    bounds = [0, 0, 1, 9, 10, 80, 86]
    x = (whole(86, 2, 4, seed=4), whole(86, 2, seed=5), whole(86, 4, seed=6))
    got = same(x, 0, 6, bounds)
    with use("torch"):
        assert torch.equal(select_keys(*(y.double() for y in x), 0, 6, bounds), got)
    for a, b in pairwise(bounds):
        alone = chosen("triton", tuple(y[a:b] for y in x), 0, 6)
        assert torch.equal(torch.where(got[a:b] < 0, -1, got[a:b] - a)[:, : alone.shape[1]], alone)


@pytest.mark.parametrize("kind", ["rising", "falling", "equal", "zero", "two"])
def test_any_order_of_scores(kind: str) -> None:
    """Rising scores all exceed what was before: buffers run over, and their queries start again."""
    n, k = 200, 9
    line = {
        "rising": torch.arange(n), "falling": torch.arange(n).flip(0), "equal": torch.ones(n), "zero": torch.zeros(n),
        "two": torch.arange(n) % 2,
    }[kind].float()  # fmt: skip
    q = torch.ones(4, 1, 4)
    q[1] = 0.0  # a query whose scores are all zero, among others
    same((q, torch.ones(4, 1), line.unsqueeze(1) * torch.tensor([1.0, 0.0, 0.0, 0.0])), n - 4, k)


def test_lost_queries_start_again_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """One query's scores rise, its neighbours' fall; with every group of queries in buffers of its own."""
    monkeypatch.setattr(kernel, "ROWS", 16)
    n = 160
    keys = torch.stack((torch.arange(n), torch.arange(n).flip(0)), 1).float()
    q = torch.tensor([0.0, 1.0]).repeat(19, 1, 1)
    q[2, 0], q[17, 0] = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])
    same((q, torch.ones(19, 1), keys), n - 19, 12)


@pytest.mark.parametrize("kind", ["tied", "rising"])
def test_the_order_in_which_programs_run_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates of a query lie in the order in which programs came: here in any other."""
    real, g, shuffled = kernel._filter, torch.Generator().manual_seed(1), []

    class Shuffling:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*args: Any, **more: Any) -> None:
                real[grid](*args, **more)
                value, index, fill = args[7:10]
                for row, n in enumerate(fill.tolist()):
                    order = torch.randperm(min(n, value.shape[1]), generator=g).to(DEVICE)
                    value[row, : len(order)], index[row, : len(order)] = value[row, order], index[row, order]
                    shuffled.append(n)

            return launch

    monkeypatch.setattr(kernel, "_filter", Shuffling())
    keys = whole(150, 4, seed=6) if kind == "tied" else torch.arange(150.0).unsqueeze(1).expand(150, 4)
    q, w = (whole(3, 2, 4, seed=4), whole(3, 2, seed=5)) if kind == "tied" else (torch.ones(3, 2, 4), torch.ones(3, 2))
    same((q, w, keys.contiguous()), 147, 8)
    assert max(shuffled) > 64 if kind == "rising" else max(shuffled) > 8


def test_real_scores_differ_from_float64_at_ties_alone() -> None:
    g = torch.Generator().manual_seed(0)
    q, w, keys = (torch.randn(*s, generator=g) for s in ((4, 4, 16), (4, 4), (140, 16)))
    for dtype, limit in ((torch.float32, 1e-5), (torch.bfloat16, 1e-5)):
        x = tuple(y.to(dtype) for y in (q, w, keys))
        scores = (torch.relu(x[0].double() @ x[2].double().mT) * x[1].double().unsqueeze(-1)).sum(1)
        for t, picks in enumerate(chosen("triton", x, 136, 11).tolist()):
            row = scores[t, : 137 + t]
            assert len(set(picks)) == 11 and picks == sorted(picks) and picks[0] >= 0
            left = torch.ones_like(row, dtype=torch.bool)
            left[picks] = False
            assert row[left].max() <= row[~left].min() + limit * row.abs().max()


def test_scores_that_are_no_numbers_are_the_last() -> None:
    x = (whole(3, 2, 4, seed=7), whole(3, 2, seed=8), whole(150, 4, seed=9))
    for bad in (torch.nan, torch.inf):
        keys = x[2].clone()
        keys[[3, 100]] = bad
        index = chosen("triton", (x[0], x[1], keys), 147, 8)
        assert bool((index >= 0).all())  # k real keys, whatever their scores
        assert all(row == sorted(set(row)) and row[-1] <= 147 + t for t, row in enumerate(index.tolist()))
    keys = x[2].clone()
    keys[[3, 100]] = torch.nan
    weights = torch.ones(3, 2)  # without a weight of zero, a NaN in a key is one in its score
    got = chosen("triton", (x[0], weights, keys), 147, 8)
    kept = torch.tensor([s for s in range(150) if s not in (3, 100)])
    want = [[int(kept[i]) for i in row] for row in chosen("reference", (x[0], weights, keys[kept]), 145, 8).tolist()]
    assert got.tolist() == want


def test_nothing_and_what_does_not_fit() -> None:
    none = torch.zeros(0, 2, 4, device=DEVICE), torch.zeros(0, 2, device=DEVICE), torch.zeros(5, 4, device=DEVICE)
    with use("triton"):
        assert select_keys(*none, 5, 3).shape[0] == 0
        with pytest.raises(ValueError, match="float64"):
            select_keys(*(x.double() for x in none), 5, 3)
        with pytest.raises(ValueError, match="bounds"):
            select_keys(*none, 0, 3, [0, 1])
        with pytest.raises(ValueError, match="each starts at 0"):
            select_keys(*none, 5, 3, [0, 0, 0])
        with pytest.raises(ValueError, match="k is 0"):
            select_keys(*none, 5, 0)


def test_a_kernel_that_no_gpu_ran_waits_to_be_asked() -> None:
    on_gpu = SimpleNamespace(is_cuda=True)
    assert pick("some", on_gpu) == "triton" and pick("some", on_gpu, proven=False) == "torch"
    with use("triton", "some"):
        assert pick("some", on_gpu, proven=False) == "triton"
        with pytest.raises(ValueError, match="does not take rows"):
            pick("some", on_gpu, "rows", proven=False)


LIMITS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", list(LIMITS))
@pytest.mark.parametrize(
    ("tokens", "heads", "d", "n", "k"), [(9, 3, 8, 30, 6), (40, 1, 5, 50, 33), (2, 17, 16, 16, 16)]
)
def test_scores_of_picks(
    tokens: int, heads: int, d: int, n: int, k: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "CELLS", 7 * k * d)  # seven tokens at once
    g = torch.Generator().manual_seed(0)
    x = [torch.randn(*s, generator=g).to(dtype) for s in ((tokens, heads, d), (tokens, heads), (n, d))]
    index = torch.stack([torch.randperm(n, generator=g)[:k].sort().values for _ in range(tokens)]).int()
    index[0, 1:], index[-1, k // 2 :] = -1, -1
    up = torch.randn(tokens, k, generator=g).masked_fill(index < 0, 0.0)

    def run(path: str) -> list[Tensor]:
        leaves = [beyond(y.double() if path == "reference" else y).to(DEVICE).requires_grad_() for y in x]
        with use(path), poisoned(), rounded_bfloat16():
            scores = index_scores(*leaves, index.to(DEVICE), 0.3)
            assert ran("index_scores") == path and bool(scores.isfinite().all())
            grads = torch.autograd.grad(scores, leaves, up.to(scores))
        return [torch.where(index.to(DEVICE) < 0, 0.0, scores.detach()), *grads]

    want = run("reference")
    for path in ("triton", "torch") if dtype == torch.float32 else ("triton",):
        for i, (got, exact) in enumerate(zip(run(path), want, strict=True)):
            assert error(got, exact) < LIMITS[dtype], (path, i)
