"""MLPs with the SiTU-GLU activation; the arithmetic is in kernels/situ.py."""

from __future__ import annotations

from torch import Tensor, nn

from kernels.situ import situ_glu
from model.config import K3Config
from model.joined import Derived, Joined


class SituMLP(Derived):
    """down(SiTU(gate(x), up(x))) on the full hidden size: the dense layer and the fused shared experts."""

    def __init__(self, config: K3Config, width: int) -> None:
        super().__init__()
        self.betas = (config.activation_situ_beta, config.activation_situ_linear_beta)
        self.gate_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=False)
        self._gate_up = Joined(self.gate_proj, self.up_proj)

    def refresh(self) -> None:
        """Join the gate and up projections for calls without gradients."""
        self._gate_up.refresh()

    def forward(self, x: Tensor) -> Tensor:
        """x [N, H] -> [N, H]."""
        return self.down_proj(situ_glu(x @ self._gate_up().mT, *self.betas))
