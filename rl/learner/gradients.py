"""The gradient norm over expert AND shared parameters together, and clipping by it (DeepSpeed's own is off)."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl.learner.distributed import sum_over_ranks


class Piece(NamedTuple):
    """A part of the reduced gradient on this rank."""

    gradient: Tensor
    holders: int
    """Ranks that hold the same part."""
    parameter: Tensor | None
    """What it is the gradient of; None for padding."""


def reduced_gradients(engine: Any) -> list[Piece]:
    """This rank's pieces of the reduced gradient.

    ZeRO 1 and 2: disjoint pieces of every group's flat gradient. Without ZeRO: whole gradients, shared ones on all
    ranks, expert ones on the ranks that share the same experts. Valid between the last backward and the step.
    """
    if engine.zero_optimization():
        return [piece for i in engine.optimizer.averaged_gradients for piece in _zero_pieces(engine.optimizer, i)]
    world = torch.distributed.get_world_size()
    pieces = []
    for p in engine.module.parameters():
        if p.grad is not None:
            expert = getattr(p, "group_name", None)
            holders = torch.distributed.get_world_size(engine.expert_data_parallel_group[expert]) if expert else world
            pieces.append(Piece(p.grad, holders, p))
    return pieces


def _zero_pieces(zero: Any, group: int) -> list[Piece]:
    """ZeRO's pieces of one group: they follow each other in the flat gradient, and none reaches over two parameters."""
    params = zero.bit16_groups[group]
    starts = [0, *accumulate(p.numel() for p in params)]
    at = torch.distributed.get_rank(group=zero.real_dp_process_group[group]) * int(zero.partition_size[group])
    out = []
    for gradient in zero.averaged_gradients[group]:
        owner = params[bisect_right(starts, at) - 1] if at < starts[-1] else None
        out.append(Piece(gradient, 1, owner))
        at += gradient.numel()
    return out


def global_norm(pieces: list[Piece]) -> float:
    """L2 norm of the whole gradient, every element counted once; summed in float64 over all ranks (a collective).

    Rank norms of experts add in square: 3 on one rank and 4 on the other are 5.
    """
    square = torch.zeros((), dtype=torch.float64)
    for piece in pieces:
        square += torch.linalg.vector_norm(piece.gradient, dtype=torch.float64).cpu().square() / piece.holders
    return math.sqrt(float(sum_over_ranks(square)))


def clip(pieces: list[Piece], norm: float, limit: float) -> None:
    """Scale the gradient in place so that its global norm is at most `limit` (0: no limit)."""
    if limit > 0 and norm > limit:
        for piece in pieces:
            piece.gradient.mul_(limit / norm)


def fill_missing(parameters: list[Tensor]) -> None:
    """Zero gradients where none arrived: ranks must reduce the same tensors, and a missing one would differ by rank."""
    for p in parameters:
        if p.requires_grad and p.grad is None:
            p.grad = torch.zeros_like(p)


def discard(engine: Any) -> None:
    """Forget the reduced gradient without a step."""
    engine.zero_grad()
    if engine.zero_optimization():
        engine.optimizer.micro_step_id = -1  # as its own step leaves it
        engine.optimizer.zero_grad(set_to_none=True)
        for key in engine.optimizer.averaged_gradients:
            engine.optimizer.averaged_gradients[key] = None
            engine.optimizer.all_grad_tensors[key] = None
