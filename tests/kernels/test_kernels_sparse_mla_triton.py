"""Attention over picked latents in Triton against float64: values, shares and gradients; picks turned round."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from triton_cases import DEVICE, beyond, error, poisoned, rounded_bfloat16

from kernels.by_key import by_key, sum_by_key_
from kernels.paths import ran, use
from kernels.sparse_mla import sparse_attend, sparse_decode, sparse_shares
from kernels.sparse_mla import triton as kernel

LIMITS = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORWARD", "SCORES", "QUERIES", "PICKS"):
        columns = {} if name in ("FORWARD", "SCORES") else {"BN": 16}
        monkeypatch.setattr(kernel, name, columns | {"BK": 16, "num_warps": 4, "num_stages": 2})
    monkeypatch.setattr(kernel, "PROGRAMS", 1)


def picks(tokens: int, n: int, k: int, seed: int = 0) -> Tensor:
    """Distinct ones in each row, in no order, some rows short."""
    g = torch.Generator().manual_seed(seed)
    index = torch.stack([torch.randperm(n, generator=g)[:k] for _ in range(tokens)]).int()
    if k > 1:
        index[0, 1:], index[-1, : k // 2] = -1, -1
    return index


def draws(*shapes: tuple[int, ...]) -> list[Tensor]:
    g = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(*shape, generator=g) for shape in shapes]


SHAPES = [
    # tokens, heads, rank, extra dims, latents, picks
    (7, 3, 16, 4, 40, 6),
    (3, 20, 40, 0, 35, 33),
    (2, 80, 16, 16, 64, 17),
    (35, 1, 5, 3, 50, 1),
]


@pytest.mark.parametrize("dtype", list(LIMITS))
@pytest.mark.parametrize("shape", SHAPES)
def test_values_shares_and_gradients(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, heads, rank, extra, n, k = shape
    size = torch.finfo(dtype).bits // 8
    monkeypatch.setattr(kernel, "BYTES", 3 * size * k * (rank + extra + 2 * heads))  # three tokens at once
    x = [y.to(dtype) for y in draws((tokens, heads, rank + extra), (n, rank + extra))]
    index = picks(tokens, n, k).to(DEVICE)
    unread = torch.ones(n, dtype=torch.bool)
    unread[index.cpu()[index.cpu() >= 0].long()] = False
    up = draws((tokens, heads, rank))[0]

    def run(path: str) -> list[Tensor]:
        leaves = [beyond(y.double() if path == "reference" else y).to(DEVICE) for y in x]
        if path == "triton":
            leaves[1][unread.to(DEVICE)] = torch.nan  # what nobody picked is not read
        for y in leaves:
            y.requires_grad_()
        with use(path), poisoned(), rounded_bfloat16():
            o = sparse_attend(*leaves, index, rank, 0.4)
            shares = sparse_shares(*leaves, index, 0.4)
            assert ran("sparse_mla") == ran("sparse_shares") == path
            return [o.detach(), shares, *torch.autograd.grad(o, leaves, up.to(o))]

    want = run("reference")
    for path in ("triton", "torch") if dtype == torch.float32 else ("triton",):
        for i, (got, exact) in enumerate(zip(run(path), want, strict=True)):
            assert error(got, exact) < LIMITS[dtype], (path, i)
    assert not want[3][unread.to(DEVICE)].any()


def test_few_tokens_split_their_picks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, index, up = draws((2, 3, 20), (90, 20)), picks(2, 90, 70).to(DEVICE), draws((2, 3, 16))[0].to(DEVICE)
    index[0] = -1
    index[0, 69] = 4  # only the last split of this token has a pick
    leaves = [y.to(DEVICE).requires_grad_() for y in x]
    done = []
    for programs in (1, 4, 100):
        monkeypatch.setattr(kernel, "PROGRAMS", programs)
        with use("triton"), poisoned():
            o = sparse_attend(*leaves, index, 16, 0.4)
            done.append([o.detach(), *torch.autograd.grad(o, leaves, up)])
    for got in done[1:]:
        assert all(error(a, b) < 1e-5 for a, b in zip(got, done[0], strict=True))


def test_large_scores_stay_finite() -> None:
    x, index = draws((3, 2, 8), (40, 8)), picks(3, 40, 35).to(DEVICE)
    leaves = [(1e4 * x[0]).to(DEVICE).requires_grad_(), x[1].to(DEVICE).requires_grad_()]
    got, want = [], []
    for path, to in (("triton", got), ("reference", want)):
        with use(path), poisoned():
            o = sparse_attend(*leaves, index, 8, 1.0)
            to += [o.detach(), *torch.autograd.grad(o.sum(), leaves)]
    assert all(bool(y.isfinite().all()) for y in got)
    assert error(got[0], want[0]) < 1e-4


@pytest.mark.parametrize("programs", [1, 64])
def test_decode_reads_the_slots_of_a_pool(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "PROGRAMS", programs)
    q, pool = (x.to(DEVICE) for x in draws((4, 3, 20), (6, 50, 20)))
    index, rows = picks(4, 50, 37).to(DEVICE), torch.tensor([5, 0, 3, 1], device=DEVICE)
    pool[[2, 4]] = torch.nan  # slots of other sequences
    out = {}
    for path in ("triton", "torch", "reference"):
        with use(path), poisoned():
            out[path] = sparse_decode(q, pool.nan_to_num() if path == "reference" else pool, rows, index, 16, 0.4)
            assert ran("sparse_decode") == path
    assert error(out["triton"], out["reference"]) < 1e-5 and error(out["torch"], out["reference"]) < 1e-5
    for i in range(4):
        alone = sparse_attend(q[i : i + 1], pool[rows[i]], index[i : i + 1], 16, 0.4)
        assert error(out["triton"][i : i + 1], alone) < 1e-5
    with pytest.raises(ValueError, match="contiguous"):
        sparse_decode(q, pool.mT, rows, index, 16, 0.4)


def test_what_does_not_fit_and_nothing() -> None:
    with use("triton"):
        for q, latents, match in (
            (torch.zeros(1, 2, 8).double(), torch.zeros(4, 8).double(), "float64"),
            (torch.zeros(1, 200, 8), torch.zeros(4, 8), "128 heads"),
            (torch.zeros(1, 2, 8).bfloat16(), torch.zeros(4, 8), "latents of torch.float32"),
        ):
            with pytest.raises(ValueError, match=match):
                sparse_attend(q.to(DEVICE), latents.to(DEVICE), torch.zeros(1, 1).int().to(DEVICE), 8, 1.0)
        empty = torch.zeros(0, 2, 8, device=DEVICE), torch.zeros(4, 8, device=DEVICE)
        index = torch.zeros(0, 3, dtype=torch.int32, device=DEVICE)
        assert sparse_attend(*empty, index, 8, 1.0).shape == (0, 2, 8)
        assert sparse_shares(*empty, index, 1.0).shape == (0, 3)


@pytest.mark.parametrize(("tokens", "n", "k"), [(1, 5, 5), (32, 7, 3), (33, 100, 9), (100, 40, 11)])
def test_entries_of_a_key_lie_together_in_the_tokens_order(tokens: int, n: int, k: int) -> None:
    index = picks(tokens, n, k)
    with poisoned():
        turned = by_key(index.to(DEVICE), n)
    place, first = turned.place.cpu(), turned.first.cpu().tolist()
    wanted = sorted((int(s), t, j) for t, row in enumerate(index) for j, s in enumerate(row) if s >= 0)
    assert [int(place[t, j]) for _, t, j in wanted] == list(range(len(wanted)))
    assert first == [sum(s < key for s, _, _ in wanted) for key in range(n + 1)]
    entries = torch.randn(tokens * k, 5)
    entries[len(wanted) :] = torch.nan
    out = torch.ones(n, 5, device=DEVICE)
    sum_by_key_(out, beyond(entries).to(DEVICE), turned.first)
    want = torch.ones(n, 5, dtype=torch.float64)
    for row, (s, _, _) in enumerate(wanted):
        want[s] += entries[row]
    assert error(out, want) < 1e-6
