"""Which part of which parameter each public tensor of a Hugging Face model is.

transformers keeps the experts of a layer as two stacked parameters, `gate_up_proj` [E, 2 I, H] and `down_proj`
[E, H, I]; checkpoints and vLLM name three matrices for each expert, under names that differ by architecture. The table
is found once, by sending markers instead of weights through transformers' own conversion, so that it holds for every
architecture whose public tensors are whole parameters, experts, or halves of experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """A public tensor's place."""

    parameter: str
    expert: int | None = None
    """Index in the stack of a layer's experts; None: the whole parameter."""
    half: int | None = None
    """0 or 1: of the rows of that expert; None: all of them."""

    def of(self, tensor: Tensor, first: int = 0) -> Tensor:
        """The view of the parameter that is this part; `first`: expert at the beginning of a stack that was cut."""
        return tensor if self.expert is None else self.of_expert(tensor[self.expert - first])

    def of_expert(self, matrix: Tensor) -> Tensor:
        """The same, of the one expert's matrix."""
        return matrix if self.half is None else matrix.chunk(2)[self.half]


def own_tensors(model: Any) -> dict[str, Tensor]:
    """Parameters (tied ones once) and persistent buffers by their names in the model."""
    stored = model.state_dict().keys()
    buffers = {name: b for name, b in model.named_buffers() if name in stored}
    return dict(model.named_parameters()) | buffers


def layout(model: Any) -> dict[str, Part]:
    """Public name -> part, for every parameter and persistent buffer of a transformers model.

    Raises ValueError for an architecture whose public tensors are none of these parts (joined or transposed ones).
    """
    from transformers.core_model_loading import revert_weight_conversion

    own = own_tensors(model)
    markers = {name: _marker(name, tensor, i) for i, (name, tensor) in enumerate(own.items())}
    by_number = dict(enumerate(own))
    out = {}
    for public, marker in revert_weight_conversion(model, dict(markers)).items():
        name = by_number.get(int(marker.flatten()[0]) >> _SHIFT)
        part = None if name is None else _read(name, marker, markers[name])
        if part is None:
            raise ValueError(
                f"{type(model).__name__} stores {public} under other names or in another form than its parameters, "
                "and it is neither a whole parameter nor an expert of one: this architecture is not supported"
            )
        out[public] = part
    missing = own.keys() - {part.parameter for part in out.values()}
    if missing:
        raise ValueError(f"{type(model).__name__} does not store its parameter {min(missing)}: not supported")
    return out


_SHIFT = 20
"""A marker's value is its parameter's number, shifted, plus a position within it."""


def _marker(name: str, tensor: Tensor, number: int) -> Tensor:
    """Stands for a weight: [E, 2, 1] for stacked experts, else a small one with its number of dimensions."""
    shape = (len(tensor), 2, 1) if _stacked(name, tensor) else (2, 3, 5, 7)[: tensor.dim()]
    values = torch.arange(int(torch.Size(shape).numel())) + (number << _SHIFT)
    return values.view(shape)


def _stacked(name: str, tensor: Tensor) -> bool:
    return ".experts." in name and tensor.dim() == 3


def _read(name: str, got: Tensor, sent: Tensor) -> Part | None:
    if got.shape == sent.shape and torch.equal(got, sent):
        return Part(name)
    if sent.dim() != 3 or sent.shape[1:] != (2, 1):
        return None
    values = got.flatten() - sent.flatten()[0]
    expert = int(values[0]) // 2
    if values.numel() == 2 and values.tolist() == [2 * expert, 2 * expert + 1]:
        return Part(name, expert)
    if values.numel() == 1:
        return Part(name, expert, int(values[0]) % 2)
    return None
