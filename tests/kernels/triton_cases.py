"""What every test of a Triton kernel needs: a device, poisoned memory, an error in units of the reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_empty, _empty_like = torch.empty, torch.empty_like


def error(got: Tensor, want: Tensor) -> float:
    """||got - want|| / ||want|| in float64, of a `want` near zero ||got - want||; NaN if either holds one."""
    got, want = got.double().cpu(), want.double().cpu()
    assert got.shape == want.shape
    size = want.norm()
    return float((got - want).norm() / (size if size > 1e-6 else 1.0))


@contextmanager
def poisoned() -> Iterator[None]:
    """Fresh memory holds NaN (or the largest integer): what a kernel forgets to write, or reads too far, shows."""

    def spoil(x: Tensor) -> Tensor:
        return x.fill_(torch.nan if x.is_floating_point() else torch.iinfo(x.dtype).max)

    with (
        patch("torch.empty", lambda *a, **k: spoil(_empty(*a, **k))),
        patch("torch.empty_like", lambda *a, **k: spoil(_empty_like(*a, **k))),
    ):
        yield


@contextmanager
def rounded_bfloat16() -> Iterator[None]:
    """bfloat16 as a GPU has it. Triton 3.6's interpreter cuts it off instead of rounding it to nearest even, and
    multiplies matrices of it as if their bits were integers: here it rounds, and widens them."""
    if torch.device(DEVICE).type == "cuda":
        yield
        return
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    multiply, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def wide(x: TensorHandle) -> TensorHandle:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle((x.data.astype("uint32") << 16).view("float32"), tl.float32)

    def rounding(self: InterpreterBuilder, x: TensorHandle, to: tl.dtype) -> TensorHandle:
        if (x.dtype.scalar, to.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, x, to)
        bits = torch.from_numpy(np.array(x.data)).bfloat16().view(torch.int16).numpy().view("uint16")
        return TensorHandle(bits, to.scalar)

    with (
        patch.object(
            InterpreterBuilder, "create_dot", lambda self, a, b, *rest: multiply(self, wide(a), wide(b), *rest)
        ),
        patch.object(InterpreterBuilder, "cast_impl", rounding),
    ):
        yield


def beyond(x: Tensor) -> Tensor:
    """x as a view into a larger buffer of NaN: a kernel that reads past its end computes with them."""
    room = _empty(x.numel() + 4096, dtype=x.dtype, device=x.device).fill_(torch.nan)
    room[: x.numel()] = x.flatten()
    return room[: x.numel()].view(x.shape)
