"""SiTU-GLU: a gated unit whose gate and up branches are both softly capped (K3 report eq. 11)."""

from __future__ import annotations

from torch import Tensor

from kernels.paths import pick
from kernels.situ.torch import situ_backward, situ_forward

__all__ = ["situ_backward", "situ_forward", "situ_glu"]


def situ_glu(gate_up: Tensor, beta: float, linear_beta: float | None) -> Tensor:
    """[beta tanh(g/beta) sigmoid(g)] [linear_beta tanh(u/linear_beta)] of gate_up = [g | u] [..., 2I]: [..., I].

    linear_beta None leaves u as it is. Gradient to gate_up.
    """
    path = pick("situ", gate_up, "" if gate_up.element_size() < 8 else f"inputs of {gate_up.dtype}")
    if path == "triton":
        from kernels.situ import triton

        return triton.situ_glu(gate_up, beta, linear_beta)
    if path == "reference":
        from kernels.situ import reference

        return reference.situ_glu(gate_up, beta, linear_beta)
    from kernels.situ import torch

    return torch.situ_glu(gate_up, beta, linear_beta)
