"""The smallest of some two-digit numbers, by pairs."""

from __future__ import annotations

from environments.primer.largest import Largest


class Smallest(Largest):
    """`smallest: 4 7 , 1 9 , 8 2` is `1 9`."""

    id = "primer/smallest"
    skills = ("comparison",)
    name = "smallest"
    pick = min
    sign = "<"
