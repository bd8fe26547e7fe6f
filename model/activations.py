"""MLPs with the SiTU-GLU activation; the arithmetic is in kernels/situ.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels.situ import situ_glu
from model.config import K3Config


class SituMLP(nn.Module):
    """down(SiTU(gate(x), up(x))) on the full hidden size: the dense layer and the fused shared experts."""

    def __init__(self, config: K3Config, width: int) -> None:
        super().__init__()
        self.betas = (config.activation_situ_beta, config.activation_situ_linear_beta)
        self.gate_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [N, H] -> [N, H]."""
        gate_up = x @ torch.cat((self.gate_proj.weight, self.up_proj.weight)).mT
        return self.down_proj(situ_glu(gate_up, *self.betas))
