"""Recorded picks on their way into a forward, and how they compare with the keys that the learner would take itself."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl.batch import MicroBatch
from rollout.picks import positions, recorded


def replayed(batch: MicroBatch, device: torch.device) -> Tensor | None:
    """int32 [B, T, L_full, k] for `Policy.forward`; None if no token has a record.

    Tokens at positions below k are filled in with all keys that they have, which is what they attend to: so the indexer
    need not run for them. Others without a record stay without, and select live.
    """
    if batch.picks is None:
        return None
    picks = positions(batch.picks)
    k, place = picks.shape[-1], _place(batch)
    early = (place < k) & _real(batch)
    every = np.arange(k, dtype=np.int32)
    every = np.where(every <= place[..., None], every, np.int32(-1))[:, :, None]
    return torch.as_tensor(np.where(early[..., None, None], every, picks)).to(device)


def coverage(batch: MicroBatch, topk: int) -> tuple[float, float, float]:
    """(tokens that choose keys, those of them that attend to all they have, those beyond index_topk without a record).

    The last token of a row chooses nothing that is read; a shared prompt counts once for each row that continues it.
    """
    shared = np.array([not name for name in batch.ids])
    used = np.arange(batch.input_ids.shape[1]) < batch.lengths[:, None] - ~shared[:, None]
    weight, early = used * batch.copies[:, None], _place(batch) < topk
    known = np.zeros_like(used) if batch.picks is None else recorded(batch.picks).all(-1)
    return float(weight.sum()), float(weight[early].sum()), float(weight[~early & ~known].sum())


def differing(own: Tensor, given: Tensor) -> tuple[int, int]:
    """(recorded picks that are not among the own ones, recorded picks): int [..., k], -1 for none, where one is given.

    Tokens whose keys are all that they have are no choice: they are not to be given here.
    """
    there = (given >= 0).any(-1)
    own, given = own[there], given[there]
    both = torch.cat((own, given), -1).sort(-1).values
    shared = int(((both[..., 1:] == both[..., :-1]) & (both[..., 1:] >= 0)).sum())
    total = int((given >= 0).sum())
    return total - shared, total


def chosen(batch: MicroBatch) -> Tensor:
    """int32 [B, T, L_full, k]: the recorded picks of a batch that has some."""
    assert batch.picks is not None
    return torch.as_tensor(positions(batch.picks))


def _place(batch: MicroBatch) -> np.ndarray:
    """int64 [B, T]: each token's position in its sequence, a parent's tokens counted."""
    return batch.past[:, None] + np.arange(batch.input_ids.shape[1])


def _real(batch: MicroBatch) -> np.ndarray:
    return np.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]
