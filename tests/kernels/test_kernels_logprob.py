"""Log-probabilities by tiles of the vocabulary are those of the whole softmax, in value and gradient."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from triton_cases import DEVICE, beyond, error, poisoned

from kernels.logprob import linear_log_prob
from kernels.logprob import torch as path_torch
from kernels.paths import ran, use

PATHS = ["torch", "triton"]


def run(
    path: str, n: int, vocabulary: int, temperature: float = 1.0, mask: torch.Tensor | None = None, scale: float = 1.0
):  # type: ignore[no-untyped-def]
    """(log-prob, entropy, gradients of hidden and weight)."""
    if path == "triton":
        pytest.importorskip("triton")
    g = torch.Generator().manual_seed(vocabulary)
    dtype = torch.float64 if path == "reference" else torch.float32
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64).float().to(DEVICE, dtype)
    hidden, weight = beyond(draw(n, 12) * scale).requires_grad_(), beyond(draw(vocabulary, 12)).requires_grad_()
    target = torch.randint(0, vocabulary, (n,), generator=g).to(DEVICE)
    dlog, dentropy = draw(n), draw(n)
    sizes = {True: 32, False: 32}
    with use(path), poisoned(), patch.object(path_torch, "TILE", sizes):
        log_prob, entropy = linear_log_prob(hidden, weight, target, temperature, mask)
        assert ran("logprob") == path
        grads = torch.autograd.grad([log_prob, entropy], [hidden, weight], [dlog.to(log_prob), dentropy.to(entropy)])
    return log_prob.detach(), entropy.detach(), *grads


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 100])
def test_tiles_are_the_whole_softmax(vocabulary: int, path: str) -> None:
    for n, temperature, scale in ((7, 1.0, 1.0), (1, 0.7, 1.0), (5, 1.3, 20.0)):
        want = run("reference", n, vocabulary, temperature, scale=scale)
        for got, exact in zip(run(path, n, vocabulary, temperature, scale=scale), want, strict=True):
            if vocabulary > 1:  # of one entry, everything is zero
                assert error(got, exact) < 2e-5
            else:
                assert float(got.abs().max()) < 1e-4


@pytest.mark.parametrize("path", PATHS)
def test_masked_tokens_are_skipped(path: str) -> None:
    mask = torch.tensor([True, False, True, True, False, False, True], device=DEVICE)
    got, want = run(path, 7, 50, mask=mask), run("reference", 7, 50, mask=mask)
    for a, b in zip(got, want, strict=True):
        assert error(a, b) < 2e-5
    for rows in (got[0], got[1], got[2]):
        assert bool((rows[~mask] == 0).all())
    nothing = run(path, 7, 50, mask=torch.zeros_like(mask))
    assert all(bool((x == 0).all()) for x in nothing)


@pytest.mark.parametrize("path", PATHS)
def test_a_frozen_factor_costs_nothing(path: str) -> None:
    if path == "triton":
        pytest.importorskip("triton")
    hidden, weight = torch.randn(3, 4, device=DEVICE), torch.randn(9, 4, device=DEVICE, requires_grad=True)
    with use(path):
        linear_log_prob(hidden, weight, torch.tensor([0, 8, 3], device=DEVICE))[0].sum().backward()
    assert hidden.grad is None and weight.grad is not None


def test_a_bad_temperature_or_target_is_refused() -> None:
    hidden, weight = torch.randn(2, 4), torch.randn(9, 4)
    with pytest.raises(ValueError, match="positive"):
        linear_log_prob(hidden, weight, torch.tensor([0, 1]), 0.0)
    with pytest.raises(ValueError, match=r"0 \.\. 8"):
        linear_log_prob(hidden, weight, torch.tensor([0, 9]))
