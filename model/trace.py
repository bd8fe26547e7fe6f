"""What the modules of a model give out, so that two implementations of one model can be compared part by part."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_OTHERWISE = re.compile(r"\.\d+$|\.act_fn$|\.experts$")
"""Modules in whose outputs implementations differ: a layer (the sum, or its two parts), an activation (with or without
the product), experts (with or without the shared ones)."""
_SAME = 1e-3
"""Relative difference of two outputs that rounding to float32 does not reach, and a wrong weight does."""


def trace(model: nn.Module, run: Callable[[], Any], tokens: int) -> dict[str, np.ndarray]:
    """Outputs float32 [tokens, width] of the modules that give one row for each token, by module name, in the order of
    execution. `run` computes that many tokens once. A module's first output counts.
    """
    out: dict[str, np.ndarray] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, given: Any) -> None:
            first = given[0] if isinstance(given, tuple) and given else given
            if isinstance(first, Tensor) and first.is_floating_point() and first.numel() % tokens == 0:
                rows = first.detach().reshape(-1, first.shape[-1])
                if len(rows) == tokens:
                    out[name] = rows.float().cpu().numpy().copy()  # engines write into their own outputs later

        return hook

    hooks = [m.register_forward_hook(keep(n)) for n, m in model.named_modules() if n and not _OTHERWISE.search(n)]
    try:
        with torch.no_grad():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return out


def first_difference(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> str | None:
    """The first module of `ours` whose output `theirs` has otherwise; None if all that both have agree."""
    for name, a in ours.items():
        b = theirs.get(name)
        if b is not None and b.shape == a.shape:
            gap = float(np.abs(a - b).max())
            if not gap <= _SAME * max(float(np.abs(a).max()), 1e-6):
                return name
    return None
