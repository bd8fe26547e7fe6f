"""States outside of the engines: what one of them kept, any other of the same weights goes on from, bit for bit.

A worker asks an engine for the end of a turn while the environment acts (`export`). The answer lies in Ray's object
store and is the worker's: it outlives the engine, and nobody copies it before another engine needs it (`adopt`): when
the first one has died, leaves the run, or has read a prompt for others to decode. A turn adds to what was exported
before it: the latents of its own tokens, and the recurrent states, which take the place of the older ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from model.config import K3Config
from model.snapshot import fingerprint
from rollout.engine.base import Carried, Key
from rollout.engine.prefix import Checkpoint, End, PrefixCache

Fixed = dict[str, Any]
"""model (`fingerprint`), length, parts: [recurrent, conv] arrays, end: (logits, routes, picks, begin) or None."""


def export(prefixes: PrefixCache, config: K3Config, key: Key, have: int) -> tuple[int, Fixed | None, Any]:
    """(tokens, what has one size, latents and index keys [L_full, tokens - have, .] from token `have` on) of a kept
    state; (0, None, None) if it is not kept any more.

    Raises ValueError if it is shorter than `have`.
    """
    kept = prefixes.get(key)
    if kept is None:
        return 0, None, None
    if not 0 <= have <= kept.length:
        raise ValueError(f"a kept state of {kept.length} tokens has none from {have} on")
    parts = []
    part: Checkpoint | None = kept
    while part is not None and part.length > have:
        first = max(have - part.start, 0)
        parts.append([_array(x)[:, first:] for x in part.grown])
        part = part.parent
    grown = [np.concatenate(x, 1) for x in zip(*reversed(parts), strict=True)]
    e = kept.end
    end = None if e is None else (_array(e.logits), e.routes, e.picks, e.begin)
    fixed = {"model": fingerprint(config), "length": kept.length, "parts": [_array(x) for x in kept.fixed], "end": end}
    return kept.length, fixed, grown


def adopt(prefixes: PrefixCache, policy: Any, carried: Carried, fixed: Fixed, grown: list[Any]) -> bool:
    """Hold an exported state as if it had been made here; grown: its parts in order. False if there is no room for it.

    Raises ValueError for a state of another model or dtype, and for parts that do not join to its tokens.
    """
    if fixed["model"] != fingerprint(policy.config):
        raise ValueError(f"carried state of another model: config {fixed['model']}, not {fingerprint(policy.config)}")
    joints = [0, *(end for _, end, _ in carried.grown)]
    if [first for first, _, _ in carried.grown] != joints[:-1] or {joints[-1], fixed["length"]} != {carried.length}:
        raise ValueError(f"carried state of {fixed['length']} tokens in parts that end at {joints[1:]}")
    joined = [np.concatenate(x, 1) for x in zip(*grown, strict=True)]
    tensors = [torch.tensor(x, device=policy.device) for x in (*fixed["parts"], *joined)]
    if any(x.shape[1] != carried.length for x in joined) or tensors[-1].dtype != policy.dtype:
        raise ValueError(f"carried state of {tensors[-1].dtype}, {[x.shape for x in joined]}: not {policy.dtype}")
    end = None
    if fixed["end"] is not None:
        logits, routes, picks, begin = fixed["end"]
        end = End(torch.tensor(logits, device=policy.device), routes, picks, begin)
    return prefixes.adopt(Checkpoint(carried.key, carried.length, None, tensors[:2], tensors[2:], end))


def _array(x: torch.Tensor) -> np.ndarray:
    return x.cpu().numpy()
