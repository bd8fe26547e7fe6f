"""Laws of attention over latents in blocks: the plain softmax in value and gradient, whatever the blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.sparse_mla import dense, latent_attend, sparse_attend
from kernels.sparse_mla import torch as sparse


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    g = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(s, generator=g, dtype=torch.float64).requires_grad_() for s in shapes]


def same(got: Tensor, want: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pairs = zip(*(torch.autograd.grad(x, inputs, grad) for x in (got, want)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12 * float(b.abs().max()))


@pytest.mark.parametrize("cells", [40, 500, 2**19])
@pytest.mark.parametrize(("tokens", "n"), [(9, 9), (7, 31), (1, 20), (24, 25)])
def test_dense(tokens: int, n: int, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "CELLS", {True: cells})
    monkeypatch.setattr(dense, "KEYS", {True: 512 if cells > 1000 else 8})
    heads, nope, pe, rank, v = 3, 5, 2, 6, 4
    q, latents, weight = inputs = leaves((tokens, heads, nope + pe), (n, rank + pe), (heads, nope + v, rank))
    expanded = torch.einsum("nr,hdr->hnd", latents[:, :rank], weight)
    k = torch.cat((expanded[..., :nope], latents[:, rank:].expand(heads, -1, -1)), -1)
    visible = torch.arange(n) <= torch.arange(n - tokens, n).unsqueeze(1)
    s = (q.transpose(0, 1) @ k.mT * 0.4).masked_fill(~visible, -torch.inf)
    want = (s.softmax(-1) @ expanded[..., nope:]).transpose(0, 1)
    same(latent_attend(q, latents, weight, 0.4), want, inputs)


@pytest.mark.parametrize("cells", [1, 150, 2**19])
def test_selected(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "CELLS", {True: cells})
    q, latents = inputs = leaves((11, 3, 8), (30, 8))
    seen = torch.rand(11, 30, generator=torch.Generator().manual_seed(0)).argsort(1)[:, :6].to(torch.int32)
    seen[3, 1:], seen[5, 4:] = -1, -1
    visible = torch.zeros(11, 30, dtype=torch.bool)
    for t, row in enumerate(seen.tolist()):
        visible[t, [s for s in row if s >= 0]] = True
    s = (q.transpose(0, 1) @ latents.mT * 0.4).masked_fill(~visible, -torch.inf)
    want = (s.softmax(-1) @ latents[:, :6]).transpose(0, 1)
    same(sparse_attend(q, latents, seen, 6, 0.4), want, inputs)


def test_large_scores_stay_finite() -> None:
    q, latents, weight = leaves((6, 2, 7), (600, 8), (2, 9, 6))
    out = latent_attend(q * 1e4, latents, weight, 1.0)
    grads = torch.autograd.grad(out.sum(), [q, latents, weight])
    assert all(bool(x.isfinite().all()) for x in (out, *grads))
