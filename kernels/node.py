"""Calling an autograd.Function without its bookkeeping where no gradient is wanted: decoding is bound by overheads."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function


class _Discard:
    """A context that keeps nothing."""

    needs_input_grad = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Drop what only a backward would read."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Nothing is differentiable here."""

    def __setattr__(self, name: str, value: Any) -> None:
        pass


_DISCARD = _Discard()


def call(function: type[Function], *args: Any) -> Any:
    """function.apply(*args), or its bare forward where gradients are disabled: the same arithmetic."""
    return function.apply(*args) if torch.is_grad_enabled() else function.forward(_DISCARD, *args)
