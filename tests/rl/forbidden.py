"""Environments that controls leave out, whole and in part; importable by the processes of a run."""

from __future__ import annotations

import random
from dataclasses import replace

from environments.base import Draft
from environments.primer.copy import Copy


class Locks(Copy):
    """A family that is never trained on; a tiny policy can do some of it."""

    tags = ("cyber",)


class Mixed(Copy):
    """One of three of its tasks is never trained on."""

    def draw(self, rng: random.Random, level: int) -> Draft:
        draft = super().draw(rng, level)
        return replace(draft, tags=("cyber",) if ord(draft.info["word"][0]) % 3 == 0 else ())
