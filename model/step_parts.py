"""What the mixers and the feed-forward parts of a decode step have in common."""

from __future__ import annotations

import torch
from torch import Tensor


class Space:
    """Rows of memory that every layer writes anew: it stays in the cache, and views of it are made once for each n."""

    def __init__(self, like: Tensor, n: int) -> None:
        self._like, self.n = like, n
        self._held: dict[tuple[str, int], Tensor] = {}

    def __call__(self, name: str, width: int) -> Tensor:
        """[n, width], the same memory for the same name and width; undefined values."""
        key = (name, width)
        if key not in self._held:
            self._held[key] = self._like.new_empty(self.n, width)
        return self._held[key]


def columns(weight: Tensor, norm: Tensor | None = None) -> Tensor:
    """weight [out, in] (of a projection that reads a norm's output) as [in, out], the norm's weight [in] folded in."""
    weight = weight.detach()
    return (weight if norm is None else weight * norm.detach()).mT.contiguous()


class Inverse:
    """1 / sqrt(mean of squares + eps) over the last axis, kept: [..., 1]."""

    def __init__(self, like: Tensor, size: int, eps: float) -> None:
        self._eps, self._share = like.new_tensor(eps), 1.0 / size

    def __call__(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.addcmul(self._eps, norm, norm, value=self._share).rsqrt_()
