"""The one scorer of the learner and the engine: log-probability of the sampled token, and entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class _TokenLogprob(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: Any) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        wide = logits if logits.dtype == torch.float64 else logits.float()
        scaled = wide / temperature
        logz = torch.logsumexp(scaled, -1, keepdim=True)
        logp = scaled.gather(-1, targets.unsqueeze(-1)) - logz
        p = torch.exp(scaled - logz)
        entropy = logz.squeeze(-1) - (p * scaled).sum(-1)
        ctx.save_for_backward(p, targets)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.mark_non_differentiable(entropy)
        return logp.squeeze(-1), entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        p, targets = ctx.saved_tensors
        g = grad.unsqueeze(-1) / ctx.temperature
        dlogits = p * -g
        dlogits.scatter_add_(-1, targets.unsqueeze(-1), g.to(dlogits.dtype))
        return dlogits.to(ctx.dtype), None, None


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
    """(log-prob of targets, entropy in nats) of softmax(logits / temperature), float32 (float64 for float64 logits).

    logits [..., V], targets Long [...], temperature a positive number or a tensor that broadcasts over [...].
    The log-prob carries gradients; the entropy is a metric and carries none. Raises ValueError for a temperature <= 0:
    greedy decoding is scored at temperature 1.
    """
    if isinstance(temperature, Tensor):
        temperature = temperature.unsqueeze(-1) if temperature.dim() else temperature
    elif temperature <= 0:
        raise ValueError(f"temperature {temperature} must be positive")
    return _TokenLogprob.apply(logits, targets, temperature)
