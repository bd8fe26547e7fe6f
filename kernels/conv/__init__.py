"""The short causal depthwise convolution with SiLU."""

from __future__ import annotations

from torch import Tensor

from kernels.paths import pick


def conv_silu(window: Tensor, weight: Tensor) -> Tensor:
    """y_t = silu(sum_j weight[:, j] * window_{t+j}): window [B, W-1+T, C] (W-1 earlier inputs first), weight [C, W].

    Returns [B, T, C]. Gradients to both.
    """
    path = pick("conv", window, "" if window.element_size() < 8 else f"inputs of {window.dtype}")
    if path == "triton":
        from kernels.conv import triton

        return triton.conv_silu(window, weight)
    if path == "reference":
        from kernels.conv import reference

        return reference.conv_silu(window, weight)
    from kernels.conv import torch

    return torch.conv_silu(window, weight)
