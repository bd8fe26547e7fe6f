"""Right-padded batches as packed real tokens: everything but the mixers runs on [N, ...], pads never exist there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.kda import TILE
from kernels.rows import gather_rows, scatter_rows


@dataclass(frozen=True)
class Packing:
    """Where the N real tokens of a right-padded batch lie."""

    batch: int
    time: int
    """Padded length that mixers see: the longest row, rounded up to the KDA tile."""
    index: Tensor | None
    """Long [N]: position of each real token in the flattened [batch, time]; None if there is no pad at all."""
    row: Tensor
    """Long [N]: row of each real token."""
    pos: Tensor
    """Long [N]: position of each real token in its row."""
    last: Tensor
    """Long [B]: index in [N] of each row's last token."""

    @staticmethod
    def of(lengths: Tensor, width: int) -> Packing:
        """From lengths Long [B] of rows of a [B, width] batch. Raises ValueError unless 1 <= lengths <= width."""
        host = lengths.tolist()
        if not host or min(host) < 1 or max(host) > width:
            raise ValueError(
                f"lengths must lie in 1..{width}, got {min(host, default=None)}..{max(host, default=None)}"
            )
        longest, total = max(host), sum(host)
        time = longest + -longest % TILE
        ends = lengths.cumsum(0)
        row = torch.repeat_interleave(torch.arange(len(host), device=lengths.device), lengths, output_size=total)
        pos = torch.arange(total, device=lengths.device) - (ends - lengths)[row]
        index = None if total == len(host) * time else row * time + pos
        return Packing(len(host), time, index, row, pos, ends - 1)

    def unpack(self, x: Tensor, lead: int = 0) -> Tensor:
        """Packed [N, ...] as [batch, lead + time, ...]: zeros in the first `lead` positions and at pads."""
        width = lead + self.time
        if lead:
            x = scatter_rows(x, self.row * width + (self.pos + lead), self.batch * width)
        elif self.index is not None:
            x = scatter_rows(x, self.index, self.batch * width)
        return x.view(self.batch, width, *x.shape[1:])

    def pack(self, x: Tensor) -> Tensor:
        """Padded [batch, time, ...] as [N, ...], pads dropped."""
        x = x.flatten(0, 1)
        return x if self.index is None else gather_rows(x, self.index)
