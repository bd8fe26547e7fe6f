"""Routers and experts on every path against the float64 reference: values, gradients, ties, empty experts, poison."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from triton_cases import DEVICE, beyond, error, poisoned, rounded_bfloat16

from kernels import mx
from kernels.experts import grouped_situ_mlp, routed_experts
from kernels.paths import ran, use
from kernels.router import expert_order, route

LIMITS = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2}
PATHS = ("torch", "triton with torch's products", "triton")


def draws(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=g, dtype=torch.float64) for shape in shapes]


def take(path: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path's name to `use`, its products told."""
    if path == "torch":
        return path
    pytest.importorskip("triton")
    from kernels.experts import triton

    monkeypatch.setattr(triton, "PRODUCTS", "torch" if "torch" in path else "triton")
    if DEVICE == "cpu":  # the interpreter's time is that of calls: few tiles, but more than one of rows and of columns
        monkeypatch.setattr(triton, "PROGRAMS", 4)
        monkeypatch.setattr(triton, "TILES", {size: tile | {"BN": 32} for size, tile in triton.TILES.items()})
    return "triton"


def spread(n: int, k: int, experts: int, seed: int = 0) -> Tensor:
    """Distinct experts for each of n tokens; the first and the last one get none, the second most."""
    g = torch.Generator().manual_seed(seed)
    liked = torch.rand(n, experts, generator=g)
    liked[:, [0, -1]], liked[: max(1, n - 1), 1] = -1.0, 2.0
    return liked.argsort(1, descending=True)[:, :k]


def compare(
    f: Callable[..., Tensor], parts: list[Tensor], dtype: torch.dtype, path: str, operator: str = "experts"
) -> None:
    """f of the parts and all gradients, the path's against the reference's of the same numbers."""
    given = [x.to(dtype) for x in parts]

    def run(name: str, leaves: list[Tensor]) -> list[Tensor]:
        leaves = [beyond(x.to(DEVICE)).requires_grad_() for x in leaves]
        with use(name), poisoned(), rounded_bfloat16():
            y = f(*leaves)
            assert ran(operator) == name
            up = draws(tuple(y.shape), seed=9)[0].to(y)
            return [y.detach(), *torch.autograd.grad(y, leaves, up)]

    want = run("reference", [x.double() for x in given])
    got = run(path, given)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert error(a, b) < LIMITS[dtype], (i, dtype)
    with torch.no_grad(), use(path), poisoned(), rounded_bfloat16():
        assert error(f(*(x.to(DEVICE) for x in given)), want[0]) < LIMITS[dtype]


# --- experts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", LIMITS)
def test_routed_experts_are_a_loop(dtype: torch.dtype, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype == torch.bfloat16 and path == "torch":
        pytest.skip("the torch path is float32 and float64")
    path = take(path, monkeypatch)
    # (tokens, chosen, experts, latent, inner): rows and columns that tiles cut; one token and more experts than pairs.
    sizes = ((45, 2, 4, 40, 48), (1, 2, 5, 8, 16))
    for n, k, e, latent, inner in sizes if dtype == torch.float32 else sizes[:1]:
        chosen = spread(n, k, e).to(DEVICE)
        assert (chosen.flatten().bincount(minlength=e) == 0).any()
        parts = draws((n, latent), (e, 2 * inner, latent), (e, latent, inner), (n, k), (latent,), seed=n)
        if n == 1:
            f = lambda x, w13, w2, p, chosen=chosen: routed_experts(x, w13, w2, p, chosen, (4.0, None))
            compare(f, parts[:4], dtype, path)
        else:
            f = lambda x, w13, w2, p, w, chosen=chosen: routed_experts(
                x, w13, w2, p, chosen, (4.0, 25.0), norm=(w, 1e-5)
            )
            compare(f, parts, dtype, path)


@pytest.mark.parametrize("path", PATHS)
def test_rows_sorted_before(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = take(path, monkeypatch)
    for counts in ([0, 70, 3, 0, 1], [0, 0], [5]):
        rows, e = sum(counts), len(counts)
        parts = draws((rows, 24), (e, 32, 24), (e, 24, 16), seed=e)
        f = lambda x, w13, w2, counts=counts: grouped_situ_mlp(x, w13, w2, counts, (4.0, 25.0))
        compare(f, parts, torch.float32, path)


@pytest.mark.parametrize("path", PATHS)
def test_rounding_is_straight_through(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = take(path, monkeypatch)
    chosen = spread(12, 2, 4).to(DEVICE)
    f = lambda x, w13, w2, p: routed_experts(x, w13, w2, p, chosen, (4.0, 25.0), rounded_to_sixteenths)
    compare(f, draws((12, 32), (4, 128, 32), (4, 32, 64), (12, 2)), torch.float32, path)
    x, w13, w2, p = (x.to(DEVICE, torch.float32) for x in draws((12, 32), (4, 128, 32), (4, 32, 64), (12, 2)))
    with use(path):
        coarse = routed_experts(x, w13, w2, p, chosen, (4.0, 25.0), mx.fake_quantise_mxfp8)
        assert 1e-4 < error(coarse, routed_experts(x, w13, w2, p, chosen, (4.0, 25.0))) < 0.1


def _first(f: Callable[..., Tensor], rest: tuple[Any, ...], x: Tensor) -> Tensor:
    return f(x, *rest)


def rounded_to_sixteenths(x: Tensor) -> Tensor:
    """A rounding of which float32 and float64 make the same, but where they lie on different sides of a step."""
    return (x.float() * 16 + 0.25).floor().div(16).to(x)


@pytest.mark.parametrize("path", PATHS)
def test_experts_without_tokens_have_zero_gradients(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = take(path, monkeypatch)
    for n in (6, 0):
        x, w13, w2, p = (
            beyond(x.float().to(DEVICE)).requires_grad_() for x in draws((n, 8), (5, 16, 8), (5, 8, 8), (n, 2))
        )
        with use(path), poisoned():
            y = routed_experts(x, w13, w2, p, spread(n, 2, 5).to(DEVICE), (4.0, 25.0))
            dx, dw13, dw2, dp = torch.autograd.grad(y.sum(), (x, w13, w2, p))
        assert y.shape == dx.shape == (n, 8) and dp.shape == (n, 2)
        for grad in (dw13, dw2):
            idle = [0, 4] if n else [0, 1, 2, 3, 4]
            assert not grad[idle].any() and bool(grad.isfinite().all()) and bool(grad[1].any()) == (n > 0)


# --- router -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["torch", "triton"])
@pytest.mark.parametrize("renormalise", [True, False])
def test_routes_are_the_largest_biased_scores(renormalise: bool, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = take(path, monkeypatch)
    for n, e, k in ((7, 13, 3), (2, 4, 4), (3, 896, 16), (1, 1, 1)):
        logits, bias = draws((n, e), (e,), seed=e)
        bias = (0.1 * bias).to(DEVICE, torch.float32)
        told = torch.full((n, k), -1, dtype=torch.int16, device=DEVICE)
        told[0], told[-1, -1] = torch.arange(k, dtype=torch.int16), e - 1  # the last one may be named twice
        for routes in (None, told):
            f = lambda x, *rest: route(x, *rest, renormalise, 2.5).weights
            compare(partial(_first, f, (bias, k, routes)), [logits], torch.float32, path, "router")
            x = logits.to(DEVICE, torch.float32)
            with use("reference"):
                want = route(x, bias, k, routes, renormalise, 2.5)
            with use(path), poisoned():
                got = route(x, bias, k, routes, renormalise, 2.5)
            assert torch.equal(got.chosen, want.chosen)
            assert error(got.scores, want.scores) < 1e-6
            if k < e:
                assert error(got.next, want.next) < 1e-6
            else:
                assert bool((got.next == -torch.inf).all())


@pytest.mark.parametrize("path", ["reference", "torch", "triton"])
def test_equal_scores_go_to_the_smaller_expert(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path != "reference":
        path = take(path, monkeypatch)
    logits = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, -3.0], [2.0] * 6], device=DEVICE)
    with use(path):
        routed = route(logits, torch.zeros(6, device=DEVICE), 4)
        assert routed.chosen.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]
        bias = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 9.0], device=DEVICE)
        assert route(logits, bias, 2).chosen.tolist() == [[5, 1], [5, 0]]
    with pytest.raises(ValueError, match="k = 7"):
        route(logits, bias, 7)


def test_a_logit_that_is_no_number_still_names_an_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing behind it reads outside: NaN comes first on both paths, and shows in the weights."""
    logits = torch.tensor([[0.0, torch.nan, 1.0], [torch.nan] * 3], device=DEVICE)
    for path in ("torch", "triton"):
        with use(take(path, monkeypatch)):
            routed = route(logits, torch.zeros(3, device=DEVICE), 2)
        assert routed.chosen.tolist() == [[1, 2], [0, 1]] and bool(routed.weights.isnan().all())


@pytest.mark.parametrize("path", ["reference", "torch", "triton"])
def test_pairs_are_sorted_stably(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path != "reference":
        path = take(path, monkeypatch)
    for n, k, e in ((5, 2, 4), (130, 2, 5), (1, 1, 3), (0, 2, 3)):
        chosen = spread(n, k, e, seed=n).to(DEVICE)
        with use(path), poisoned():
            order, inverse, counts = (x.long() for x in expert_order(chosen, e))
        assert ran("expert_order") == path
        assert torch.equal(order, torch.argsort(chosen.flatten(), stable=True))
        assert torch.equal(order[inverse], torch.arange(n * k, device=DEVICE))
        assert torch.equal(counts, torch.bincount(chosen.flatten(), minlength=e))
