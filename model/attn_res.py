"""Block attention residuals: the only residual path of the model (Kimi K3, arXiv 2607.24653)."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attn_res import mix_norm
from kernels.norm import rms_norm


class BlockBank:
    """What one token carries through depth: sums of finished blocks and the running sum of the current one."""

    def __init__(self, embedded: Tensor, block_size: int) -> None:
        self.blocks: list[Tensor] = []
        self.partial = embedded
        self.block_size = block_size

    def mix(self, key_weight: Tensor, query: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMSNorm (`weight`) of the depth mix over all finished blocks and the running sum: [N, H]."""
        return mix_norm([*self.blocks, self.partial], key_weight, query, weight, eps)

    def mix_raw(self, key_weight: Tensor, query: Tensor, eps: float) -> Tensor:
        """The depth mix without the RMSNorm: [N, H]."""
        sources = torch.stack([*self.blocks, self.partial], 1)
        p = torch.softmax(rms_norm(sources, key_weight, eps) @ query.view(-1), 1)
        return (p.unsqueeze(-1) * sources).sum(1)

    def add_attention(self, layer: int, out: Tensor) -> None:
        """Add a mixer's output; at a block boundary the running sum is filed and restarts with `out`.

        Call it after `mix`: the source list of a boundary layer must not hold the running sum twice.
        """
        if layer % self.block_size == 0:
            self.blocks.append(self.partial)
            self.partial = out
        else:
            self.partial = self.partial + out

    def add_ffn(self, out: Tensor) -> None:
        """Add a feed-forward output to the running sum."""
        self.partial = self.partial + out
