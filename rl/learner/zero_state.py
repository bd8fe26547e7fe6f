"""Optimizer state by parameter, whole: ZeRO's flat pieces gathered for a checkpoint, and cut again when one is loaded.

So a checkpoint does not know how many ranks wrote it, and the state of expert e is the state of expert e at any
expert-parallel size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Whole = dict[str, Tensor]
"""State of one parameter: tensors of its shape by key (exp_avg, ...), and 0-dimensional ones (step)."""


def gather(engine: Any) -> Iterator[tuple[Tensor, Whole]]:
    """(parameter, its whole state) for every trained parameter of this rank; a collective, in one order everywhere.

    Empty before the first step.
    """
    if not engine.zero_optimization():
        for group in engine.optimizer.param_groups:
            for p in group["params"]:
                yield p, {k: v.detach().clone() for k, v in engine.optimizer.state[p].items()}
        return
    zero = engine.optimizer
    for i, params in enumerate(zero.bit16_groups):
        piece = zero.single_partition_of_fp32_groups[i]
        state = zero.optimizer.state.get(piece, {})
        flat = {k: _all_gather(v, zero.real_dp_process_group[i]) for k, v in state.items() if v.shape == piece.shape}
        scalars = {k: v.detach().clone() for k, v in state.items() if v.shape != piece.shape}
        offset = 0
        for p in params:
            whole = {k: v[offset : offset + p.numel()].view(p.shape).clone() for k, v in flat.items()}
            yield p, whole | scalars
            offset += p.numel()


def scatter(engine: Any, states: dict[Tensor, Whole]) -> None:
    """Set the optimizer state of every trained parameter (inverse of `gather`), and take the parameters' present values
    as the masters. No collective. Raises KeyError for a parameter without a state.
    """
    if not engine.zero_optimization():
        for group in engine.optimizer.param_groups:
            for p in group["params"]:
                engine.optimizer.state[p] = {k: v.clone() for k, v in states[p].items()}
        return
    zero = engine.optimizer
    masters_from_parameters(engine)
    for i, params in enumerate(zero.bit16_groups):
        piece = zero.single_partition_of_fp32_groups[i]
        zero.optimizer.state[piece] = {
            key: _own_piece(zero, i, [states[p][key] for p in params]) if value.dim() else value.clone()
            for key, value in states[params[0]].items()
        }


def base_optimizer(engine: Any) -> Any:
    """The optimizer that `build_optimizer` made, inside what DeepSpeed put around it."""
    return engine.optimizer.optimizer if engine.zero_optimization() else engine.optimizer


def forget(engine: Any) -> None:
    """Drop all optimizer state, as before the first step."""
    base_optimizer(engine).state.clear()


def masters_from_parameters(engine: Any) -> None:
    """Copy the parameters' present values into ZeRO's float32 masters (after weights were loaded from outside)."""
    if engine.zero_optimization():
        zero = engine.optimizer
        for i, params in enumerate(zero.bit16_groups):
            zero.single_partition_of_fp32_groups[i].data.copy_(_own_piece(zero, i, [p.data for p in params]))


def _own_piece(zero: Any, group: int, tensors: list[Tensor]) -> Tensor:
    """This rank's piece of the flat concatenation, padded with zeros as ZeRO pads it."""
    size = int(zero.partition_size[group])
    begin = dist.get_rank(group=zero.real_dp_process_group[group]) * size
    flat = torch.cat([t.detach().float().flatten() for t in tensors])[begin : begin + size]
    return torch.nn.functional.pad(flat, (0, size - flat.numel()))


def _all_gather(piece: Tensor, group: Any) -> Tensor:
    parts = [torch.empty_like(piece) for _ in range(dist.get_world_size(group=group))]
    dist.all_gather(parts, piece.detach().contiguous(), group=group)
    return torch.cat(parts)
