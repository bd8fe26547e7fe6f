"""The whole matrix of logits in float64, and autograd."""

from __future__ import annotations

import torch
from torch import Tensor


def log_prob(hidden: Tensor, weight: Tensor, target: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """See `kernels.logprob.linear_log_prob`; scale = 1 / temperature. Float64 out."""
    logs = torch.log_softmax(hidden.double() @ weight.double().mT * scale, -1)
    return logs.gather(1, target.long().unsqueeze(1)).squeeze(1), -(logs.exp() * logs).sum(1)
