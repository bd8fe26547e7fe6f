"""Weights by their public names, with expert parallelism undone: every expert under its global index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl.learner.experts import SpreadExperts

_LOCAL = re.compile(r"\.experts\.experts\.(\d+)\.")


def owned_weights(policy: Any) -> Iterator[tuple[str, Tensor]]:
    """(public name, tensor) of what this rank holds: all shared weights and buffers, and its own experts."""
    first = next((m.first_expert for m in policy.modules() if isinstance(m, SpreadExperts)), 0)
    for name, tensor in policy.named_weights():
        yield _LOCAL.sub(lambda m: f".experts.{int(m[1]) + first}.", name), tensor


def export(policy: Any, rank: int, ep_size: int) -> dict[str, np.ndarray]:
    """Full-precision copies of what this rank must send: rank 0 the shared weights and its experts, the other ranks of
    the first expert-parallel group their experts, all others nothing. Together every name occurs exactly once.
    """
    if rank >= max(1, ep_size):
        return {}
    spread = ep_size > 1
    return {
        name: tensor.detach().cpu().numpy().copy()
        for name, tensor in owned_weights(policy)
        if rank == 0 or (spread and ".experts." in name)
    }


@torch.no_grad()
def load(policy: nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    """Copy a whole set in; this rank takes what it holds.

    Raises ValueError naming what is missing, unknown or of another shape, before anything is written.
    """
    own = dict(owned_weights(policy))
    wrong = [f"missing {name}" for name in own if name not in weights]
    wrong += [
        f"{name}: {tuple(weights[name].shape)} for {tuple(t.shape)}"
        for name, t in own.items()
        if name in weights and tuple(weights[name].shape) != tuple(t.shape)
    ]
    expert = re.compile(r"\.experts\.\d+\.")
    spread = any(isinstance(m, SpreadExperts) for m in policy.modules())
    wrong += [f"unknown {n}" for n in weights if n not in own and not (spread and expert.search(n))]
    if wrong:
        raise ValueError(f"{len(wrong)} weights do not fit: {'; '.join(wrong[:5])}")
    for name, tensor in own.items():
        tensor.copy_(torch.as_tensor(weights[name]))
