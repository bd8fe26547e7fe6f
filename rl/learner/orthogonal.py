"""Steps whose matrices are orthogonal: all singular directions of a momentum move alike, as Muon's do, at the size that
`TensorScale` gives their tensor. ZeRO's flat pieces are matrices again here, put together where a border of ranks cuts
one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl.learner.tensorwise import TensorScale
from rl.muon import orthogonalise_all


class _Span(NamedTuple):
    """Where a parameter lies in what an optimizer steps as one tensor."""

    parameter: Tensor
    begin: int
    """Its first element, in elements of this rank's piece; negative if it begins on a rank before."""


class Orthogonal:
    """Maps a direction, in the optimizer's layout, to the one to step along; a collective where ZeRO cuts matrices.

    Matrices [..., R, C] become the nearest orthogonal ones, of the root mean square that the mean of gradients without
    any signal has: a step does not grow where gradients agree, nor while the mean is young. The rest is as it was.
    """

    def __init__(self, engine: Any, scale: TensorScale, beta: float) -> None:
        self._scale, self._noise = scale, ((1 - beta) / (1 + beta)) ** 0.5
        self._spans: dict[Tensor, list[_Span]] = {}
        self._cut: dict[Tensor, list[_Span]] = {}
        """Matrices that lie on more than one rank: all of them, on every rank of the group."""
        self._group: dict[Tensor, Any] = {}
        if not engine.zero_optimization():
            self._spans = {p: [_Span(p, 0)] for group in engine.optimizer.param_groups for p in group["params"]}
            return
        zero = engine.optimizer
        for i, params in enumerate(zero.bit16_groups):
            held, size, at = zero.single_partition_of_fp32_groups[i], int(zero.partition_size[i]), 0
            begin = torch.distributed.get_rank(group=zero.real_dp_process_group[i]) * size
            self._spans[held], self._cut[held], self._group[held] = [], [], zero.real_dp_process_group[i]
            for p in params:
                span = _Span(p, at - begin)
                if at // size != (at + p.numel() - 1) // size:
                    self._cut[held] += [span] if _is_matrix(p) else []
                elif 0 <= span.begin < size:
                    self._spans[held].append(span)
                at += p.numel()

    def __call__(self, held: Tensor, direction: Tensor) -> Tensor:
        """held: the optimizer's own tensor (a parameter, or ZeRO's piece of a group); direction: of its shape."""
        flat = direction.flatten()
        spans = [s for s in self._spans[held] if _is_matrix(s.parameter)]
        matrices = [flat[s.begin : s.begin + s.parameter.numel()].view(s.parameter.shape) for s in spans]
        cut = self._cut.get(held, [])
        if cut:
            matrices += self._assemble(flat, cut, self._group[held])
        out = flat.clone()
        for span, new in zip(spans + cut, orthogonalise_all(matrices), strict=True):
            size = self._noise * self._scale.rms(span.parameter)
            # The entries of an orthogonal matrix have a mean square of 1 / (its longer side).
            here = new.flatten() * (size * max(span.parameter.shape[-2:]) ** 0.5)
            begin, end = max(span.begin, 0), min(span.begin + len(here), len(out))
            if begin < end:
                out[begin:end] = here[begin - span.begin : end - span.begin]
        return out.view_as(direction)

    def _assemble(self, flat: Tensor, cut: list[_Span], group: Any) -> list[Tensor]:
        """Whole matrices of which every rank of the group holds a part, or none."""
        buffer = flat.new_zeros(sum(s.parameter.numel() for s in cut))
        parts = buffer.split([s.parameter.numel() for s in cut])
        for span, part in zip(cut, parts, strict=True):
            begin, end = max(span.begin, 0), min(span.begin + len(part), len(flat))
            if begin < end:
                part[begin - span.begin : end - span.begin] = flat[begin:end]
        torch.distributed.all_reduce(buffer, group=group)
        return [part.view(s.parameter.shape) for s, part in zip(cut, parts, strict=True)]


def _is_matrix(p: Tensor) -> bool:
    return p.ndim >= 2 and min(p.shape[-2:]) > 1
