"""The one scorer of the learner and the engine: log-probability of the sampled token, and entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

NEVER = -1e9
"""Logit of what is never said: finite, so that an entropy is a number (0 x -1e9) at every temperature in use."""


def _piece(logits: Tensor) -> int:
    """Rows that are scored at once: about 1 MB on a CPU, so that they stay in its cache; 1 GB elsewhere."""
    return max(1, (2**18 if logits.device.type == "cpu" else 2**28) // logits.shape[-1])


class _TokenLogprob(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        logz, logp, entropy = (torch.empty(logits.shape[0], dtype=wide, device=logits.device) for _ in range(3))
        step = _piece(logits)
        for i in range(0, logits.shape[0], step):
            part = slice(i, i + step)
            x = logits[part].to(wide) * inverse[part]
            lp = torch.log_softmax(x, -1)
            logp[part] = lp.gather(-1, targets[part].unsqueeze(-1)).squeeze(-1)
            logz[part] = x[:, 0] - lp[:, 0]
            entropy[part] = torch.linalg.vecdot(lp.exp(), lp).neg_()
        ctx.save_for_backward(logits, targets, inverse, logz)
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        logits, targets, inverse, logz = ctx.saved_tensors
        out = torch.empty_like(logits)
        step = _piece(logits)
        for i in range(0, logits.shape[0], step):
            part = slice(i, i + step)
            g = grad[part].unsqueeze(-1) * inverse[part]
            p = (logits[part].to(logz.dtype) * inverse[part]).sub_(logz[part].unsqueeze(-1)).exp_().mul_(-g)
            out[part] = p.scatter_add_(-1, targets[part].unsqueeze(-1), g)
        return out, None, None


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
    """(log-prob of targets, entropy in nats) of softmax(logits / temperature), float32 (float64 for float64 logits).

    logits [..., V], targets Long [...], temperature a positive number or a tensor that broadcasts over [...].
    The log-prob carries gradients; the entropy is a metric and carries none. Raises ValueError for a number that is not
    above 0 (greedy decoding is scored at temperature 1); a tensor is not looked at.
    """
    if not isinstance(temperature, Tensor) and not temperature > 0:
        raise ValueError(f"temperature {temperature} must be positive")
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    inverse = 1.0 / torch.as_tensor(temperature, dtype=wide, device=logits.device)
    inverse = inverse.expand(targets.shape).reshape(-1, 1)
    logp, entropy = _TokenLogprob.apply(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), inverse)
    return logp.view(targets.shape), entropy.view(targets.shape)
