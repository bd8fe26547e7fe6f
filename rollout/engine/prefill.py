"""Prompts of many lengths through `prefill` or `extend`: similar lengths together, long ones in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.vision import Placed

MAX_TOKENS = 4096
"""Padded tokens of one call: bounds its activations, and the time for which decoding stands still."""

_FILL = 0.5
"""The shortest prompt of a call has at least this share of the longest one's tokens: padding is work too."""


def run(
    policy: Any,
    state: Any,
    prompts: Sequence[np.ndarray],
    rows: Sequence[int],
    from_empty: bool,
    images: Sequence[Placed | None] | None = None,
) -> tuple[Tensor, list[np.ndarray]]:
    """Last logits [n, V], and routes uint16 [T_i, L, K] of every prompt, in the order given.

    prompts: int32 [T_i]; rows of the state, which is overwritten (from_empty) or continued. images: of each prompt, as
    of a batch of this row alone; None for none.
    """
    logits: list[Tensor] = [torch.empty(0)] * len(prompts)
    routes: list[np.ndarray] = [np.empty(0)] * len(prompts)
    images = images or [None] * len(prompts)
    for group in chunks([len(p) for p in prompts]):
        some = [images[i] for i in group]
        last, parts = _call(policy, state, [prompts[i] for i in group], [rows[i] for i in group], from_empty, some)
        for j, i in enumerate(group):
            logits[i], routes[i] = last[j], parts[j]
    return torch.stack(logits), routes


def chunks(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of prompts to run together: each chunk within MAX_TOKENS after padding, and not mostly padding."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    out: list[list[int]] = []
    for i in order:
        longest = lengths[out[-1][0]] if out else 0
        if out and (len(out[-1]) + 1) * longest <= MAX_TOKENS and lengths[i] >= _FILL * longest:
            out[-1].append(i)
        else:
            out.append([i])
    return out


def _call(
    policy: Any,
    state: Any,
    prompts: list[np.ndarray],
    rows: list[int],
    from_empty: bool,
    images: list[Placed | None],
) -> tuple[Tensor, list[np.ndarray]]:
    longest = max(len(p) for p in prompts)
    if longest > MAX_TOKENS:  # then it is alone in its chunk
        (prompt,) = prompts
        parts = []
        for at in range(0, longest, MAX_TOKENS):
            piece = prompt[at : at + MAX_TOKENS]
            seen = [image and image.window(at, at + MAX_TOKENS) for image in images]
            last, (part,) = _call(policy, state, [piece], rows, from_empty and at == 0, seen)
            parts.append(part)
        return last, [np.concatenate(parts)]
    ids = np.zeros((len(prompts), longest), np.int64)
    for i, p in enumerate(prompts):
        ids[i, : len(p)] = p
    lengths = torch.tensor([len(p) for p in prompts])
    call = policy.prefill if from_empty else policy.extend
    given = [(i, image) for i, image in enumerate(images) if image is not None]
    shown = {"images": Placed.join(given)} if given else {}
    last, routes = call(torch.from_numpy(ids), lengths, state, torch.tensor(rows), **shown)
    table = routes.to(torch.int32).cpu().numpy().astype(np.uint16)
    return last, [table[i, : len(p)] for i, p in enumerate(prompts)]
