"""Expert MLPs with SiTU: the whole way from tokens to the weighted sum of their experts, or rows already sorted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, bfloat16, float32

from kernels.experts.torch import straight_through
from kernels.paths import pick

__all__ = ["grouped_situ_mlp", "routed_experts", "straight_through"]


def routed_experts(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    weights: Tensor,
    chosen: Tensor,
    betas: tuple[float, float | None],
    quantise: Callable[[Tensor], Tensor] | None = None,
    norm: tuple[Tensor, float] | None = None,
) -> Tensor:
    """Sum over the chosen experts e of weights times W2_e SiTU(W1_e x, W3_e x), then its RMS norm if asked: [N, L].

    x [N, L], w13 = [W1 | W3] [E, 2I, L], w2 [E, L, I], weights [N, K], chosen Int or Long [N, K], each in 0 .. E - 1;
    betas: SiTU's caps of gate and up branch (None: no cap). `quantise` rounds the input of W2, straight-through.
    norm: (weight [L], eps). Gradients to x, w13, w2, weights and the norm's weight; zero, not none, of an expert
    without tokens.
    """
    return _path(x).routed_experts(x, w13, w2, weights, chosen, betas, quantise, norm)


def grouped_situ_mlp(
    x: Tensor,
    w13: Tensor,
    w2: Tensor,
    counts: Sequence[int],
    betas: tuple[float, float | None],
    quantise: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """W2_e SiTU(W1_e x, W3_e x) of rows sorted by expert: x [P, L], counts [E] (sum P); the rest as `routed_experts`.

    Returns [P, L].
    """
    return _path(x).grouped_situ_mlp(x, w13, w2, counts, betas, quantise)


def _path(x: Tensor):  # type: ignore[no-untyped-def]
    path = pick("experts", x, "" if x.dtype in (float32, bfloat16) else f"inputs of {x.dtype}", proven=False)
    if path == "triton":
        from kernels.experts import triton

        return triton
    if path == "reference":
        from kernels.experts import reference

        return reference
    from kernels.experts import torch

    return torch
