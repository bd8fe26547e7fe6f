"""Prompts of many lengths through `prefill` or `extend`: similar ones together, long ones in pieces; or by tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.vision import Placed
from rollout.picks import stored

MAX_TOKENS = 4096
"""Padded tokens of one call: bounds its activations, and the time for which decoding stands still."""

_FILL = 0.5
"""The shortest prompt of a call has at least this share of the longest one's tokens: padding is work too."""


Read = list[tuple[np.ndarray, np.ndarray | None]]
"""Of every prompt its routes uint16 [T_i, L, K], and its picks [T_i, L_full, k] (`rollout.picks`) if asked for."""


def run(
    policy: Any,
    state: Any,
    prompts: Sequence[np.ndarray],
    rows: Sequence[int],
    from_empty: bool,
    picks: np.dtype | None = None,
    images: Sequence[Placed | None] | None = None,
) -> tuple[Tensor, Read]:
    """Last logits [n, V], and what was read off every prompt, in the order given.

    prompts: int32 [T_i]; rows of the state, which is overwritten (from_empty) or continued; picks: the type in which
    they are wanted, None if they are not; images: of each prompt, as of a batch of this row alone, None for none.
    """
    logits: list[Tensor] = [torch.empty(0)] * len(prompts)
    read: Read = [(np.empty(0), None)] * len(prompts)
    images = images or [None] * len(prompts)
    for group in chunks([len(p) for p in prompts]):
        some = [images[i] for i in group]
        last, parts = _call(
            policy, state, [prompts[i] for i in group], [rows[i] for i in group], from_empty, picks, some
        )
        for j, i in enumerate(group):
            logits[i], read[i] = last[j], parts[j]
    return torch.stack(logits), read


class Stepwise:
    """`run` through `Policy.decode`, token by token: where a prompt is cut, what it is beside and whether its beginning
    was kept change no bit of its state, if decoding is so.

    rows: prompts read at once, a multiple of `lanes`, to which decoded rows are filled up.
    """

    def __init__(self, policy: Any, rows: int, max_len: int, lanes: int) -> None:
        self._policy, self._rows, self._lanes = policy, rows, lanes
        self._state = policy.new_state(rows, max_len)

    def run(
        self,
        state: Any,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        from_empty: bool,
        picks: np.dtype | None = None,
    ) -> tuple[Tensor, Read]:
        """See `run`."""
        logits: list[Tensor] = [torch.empty(0)] * len(prompts)
        read: Read = [(np.empty(0), None)] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
        for first in range(0, len(order), self._rows):
            group = order[first : first + self._rows]
            here = list(range(len(group)))
            if from_empty:
                self._state.clear(here)
            else:
                self._state.copy_rows(here, state, [rows[i] for i in group])
            self._group(state, group, prompts, rows, picks, logits, read)
        return torch.stack(logits), read

    def _group(
        self,
        state: Any,
        group: list[int],
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        kind: np.dtype | None,
        logits: list[Tensor],
        read: Read,
    ) -> None:
        """Prompts in the order of falling length, each copied into its row of `state` as soon as it is through."""
        lengths = np.array([len(prompts[i]) for i in group])
        fed = np.zeros((self._rows, lengths[0]), np.int64)
        for j, i in enumerate(group):
            fed[j, : lengths[j]] = prompts[i]
        tables: list[np.ndarray] = []
        chosen: list[np.ndarray] = []
        for t in range(int(lengths[0])):
            n = int((lengths > t).sum())
            lanes = -(-n // self._lanes) * self._lanes
            self._state.lengths[n:lanes] = 0  # rows of no prompt begin anew in every step
            keys = None if kind is None else self._policy.new_picks(lanes)
            out, routes = self._policy.decode(torch.from_numpy(fed[:lanes, t]), self._state, lanes, keys)
            tables.append(routes.to(torch.int32).cpu().numpy().astype(np.uint16))
            if keys is not None and kind is not None:
                chosen.append(stored(keys.cpu().numpy(), kind))
            for j in np.flatnonzero(lengths[:n] == t + 1).tolist():
                state.copy_rows([rows[group[j]]], self._state, [j])
                logits[group[j]] = out[j].clone()
        for j, i in enumerate(group):
            columns = (np.stack([x[j] for x in what[: lengths[j]]]) for what in (tables, chosen) if what)
            routes_i, *picks_i = columns
            read[i] = (routes_i, picks_i[0] if picks_i else None)


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
    kind: np.dtype | None,
    images: list[Placed | None],
) -> tuple[Tensor, Read]:
    longest = max(len(p) for p in prompts)
    if longest > MAX_TOKENS:  # then it is alone in its chunk
        (prompt,) = prompts
        parts: Read = []
        for at in range(0, longest, MAX_TOKENS):
            piece = prompt[at : at + MAX_TOKENS]
            seen = [image and image.window(at, at + MAX_TOKENS) for image in images]
            last, part = _call(policy, state, [piece], rows, from_empty and at == 0, kind, seen)
            parts += part
        picks = None if kind is None else np.concatenate([p for _, p in parts if p is not None])
        return last, [(np.concatenate([r for r, _ in parts]), picks)]
    ids = np.zeros((len(prompts), longest), np.int64)
    for i, p in enumerate(prompts):
        ids[i, : len(p)] = p
    lengths = torch.tensor([len(p) for p in prompts])
    call = policy.prefill if from_empty else policy.extend
    chosen = None if kind is None else policy.new_picks(len(prompts), longest)
    more: dict[str, Any] = {} if chosen is None else {"picks": chosen}
    given = [(i, image) for i, image in enumerate(images) if image is not None]
    if given:
        more["images"] = Placed.join(given)
    last, routes = call(torch.from_numpy(ids), lengths, state, torch.tensor(rows), **more)
    table = routes.to(torch.int32).cpu().numpy().astype(np.uint16)
    keys = None if chosen is None or kind is None else stored(chosen.cpu().numpy(), kind)
    return last, [(table[i, : len(p)], None if keys is None else keys[i, : len(p)]) for i, p in enumerate(prompts)]
