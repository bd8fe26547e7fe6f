"""Silent mistakes of the stored form: both sides may agree on them, so that no round trip shows them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.mx import fake_quantise_mxfp4
from kernels.mx_pack import pack_mxfp4, unpack_mxfp4

Pack = Callable[[Tensor], tuple[Tensor, Tensor]]


def even_columns_are_low(pack: Pack) -> bool:
    """0.5 and 1 have the codes 1 and 2; the block's 4 puts its scale at 1."""
    row = torch.tensor([[0.5, 1.0, 4.0, *[0.0] * 29]])
    return pack(row)[0][0, :2].tolist() == [0x21, 0x06]


def test_the_other_order_of_nibbles_is_seen() -> None:
    assert even_columns_are_low(pack_mxfp4)

    def swapped(x: Tensor) -> tuple[Tensor, Tensor]:
        packed, scales = pack_mxfp4(x)
        return packed << 4 | packed >> 4, scales

    assert not even_columns_are_low(swapped)
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    packed, scales = swapped(x)  # a reader with the same mistake would not notice
    assert torch.equal(unpack_mxfp4(packed << 4 | packed >> 4, scales), fake_quantise_mxfp4(x))


def stored_is_trained(rule: str) -> bool:
    """An export by `rule` of weights that were trained with the default rule."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    return torch.equal(unpack_mxfp4(*pack_mxfp4(x, rule)), fake_quantise_mxfp4(x))


def test_another_scale_rule_in_the_exporter_is_seen() -> None:
    assert stored_is_trained("even") and not stored_is_trained("floor")
