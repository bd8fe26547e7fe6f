"""The Triton kernels of the convolution, SiTU and the mix over depth against float64: values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from triton_cases import DEVICE, beyond, error, poisoned, rounded_bfloat16

from kernels.attn_res import mix_norm
from kernels.attn_res import triton as mix_kernel
from kernels.conv import conv_silu
from kernels.paths import ran, use
from kernels.situ import situ_glu


def draws(*shapes: tuple[int, ...]) -> list[Tensor]:
    g = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(*shape, generator=g, dtype=torch.float64) for shape in shapes]


LIMITS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def check(
    operator: str, f: Callable[..., Tensor], parts: list[Tensor], dtypes: tuple[torch.dtype, ...] = tuple(LIMITS)
) -> None:
    """f of the parts and all gradients: Triton against the reference in float64, of the same numbers."""
    up: list[Tensor] = []

    def run(path: str, given: list[Tensor]) -> list[Tensor]:
        given = [beyond(x.to(DEVICE)).requires_grad_() for x in given]
        with use(path), poisoned(), rounded_bfloat16():
            y = f(*given)
            assert ran(operator) == path
            if not up:
                up.append(draws(y.shape)[0])
            return [y.detach(), *torch.autograd.grad(y, given, up[0].to(y))]

    for dtype in dtypes:
        rounded = [x.to(dtype) for x in parts]
        want = run("reference", [x.double() for x in rounded])
        for i, (got, exact) in enumerate(zip(run("triton", rounded), want, strict=True)):
            assert error(got, exact) < LIMITS[dtype], (i, dtype)


@pytest.mark.parametrize("linear_beta", [25.0, None])
@pytest.mark.parametrize("width", [1, 7, 1500])
def test_situ(width: int, linear_beta: float | None) -> None:
    (x,) = draws((3, 2, 2 * width))
    x *= torch.logspace(-4, 1.3, 3, dtype=torch.float64).view(3, 1, 1)  # from where tanh is a series to where it is 1
    check("situ", lambda x: situ_glu(x, 4.0, linear_beta), [x])


@pytest.mark.parametrize("t", [1, 3, 31, 33, 70])
def test_conv(t: int) -> None:
    for channels, taps in ((5, 4), (130, 4), (3, 2)):
        check("conv", conv_silu, draws((2, t + taps - 1, channels), (channels, taps)))


def mixed(key_weight: Tensor, query: Tensor, weight: Tensor, *sources: Tensor) -> Tensor:
    return mix_norm(list(sources), key_weight, query, weight, 1e-5)


@pytest.mark.parametrize("sources", [1, 2, 9])
def test_mix_norm(sources: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix_kernel, "PROGRAMS", 3)  # of 10 rows the backward gives four to each, two to the last
    for rows, size in ((1, 6), (5, 40), (10, 8)):
        parts = draws((size,), (1, size), (size,), *[(rows, size)] * sources)
        check("attn_res", mixed, parts, (torch.float32,))
    half = torch.ones(2, 6, dtype=torch.bfloat16, device=DEVICE)
    with use("triton"), pytest.raises(ValueError, match="not float32"):
        mix_norm([half], half[0], half[:1], half[0], 1e-5)


def test_nothing_in_nothing_out() -> None:
    with use("triton"):
        assert situ_glu(torch.zeros(0, 8, device=DEVICE), 4.0, 25.0).shape == (0, 4)
        assert conv_silu(torch.zeros(2, 3, 5, device=DEVICE), torch.zeros(5, 4, device=DEVICE)).shape == (2, 0, 5)
        one = torch.ones(6, device=DEVICE)
        assert mix_norm([torch.zeros(0, 6, device=DEVICE)], one, one.view(1, 6), one, 1e-5).shape == (0, 6)
