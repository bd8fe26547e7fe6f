"""Supervised training on demonstration shards: one shard is one optimizer step, whatever its micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model import Policy
from model.balance import balance_update, enable_balancing
from model.dsa import enable_index_loss
from model.logprob import token_logprobs
from rl.demonstrations import Shard
from rl.muon import Muon

_OTHER = ("embed_tokens", "lm_head", "conv1d", "res_proj", "gate.weight")
"""Parts of names of matrices that are no linear maps of the hidden state (or the router's): Adam's."""


@dataclass(frozen=True)
class Pace:
    """Step sizes; both fall linearly to `floor` times their start over `tokens`, after a short rise."""

    tokens: int
    matrices: float = 0.02
    rest: float = 0.004
    floor: float = 0.05
    rise: float = 0.02

    def factor(self, seen: int) -> float:
        """The multiple of the step sizes when `seen` tokens are done."""
        done = min(seen / self.tokens, 1.0)
        return min(1.0, (done + 0.1 * self.rise) / (1.1 * self.rise)) * (1 - (1 - self.floor) * done)


@dataclass(frozen=True, eq=False)
class Batch:
    """Right-padded ids Long [B, T], lengths Long [B], flat positions [M] (b * T + t), and the tokens [M] after them.

    `tokens`: real tokens, prompts included.
    """

    ids: Tensor
    lengths: Tensor
    positions: Tensor
    targets: Tensor
    tokens: int


def batches(shard: Shard, micro_tokens: int, pad_id: int, device: torch.device) -> Iterator[Batch]:
    """Micro-batches of at most `micro_tokens` padded tokens, sequences sorted by length so that little is padded."""
    starts = np.concatenate([[0], np.cumsum(shard.lengths)[:-1]])
    order = np.argsort(-shard.lengths, kind="stable")
    at = 0
    while at < len(order):
        width = int(shard.lengths[order[at]])
        rows = order[at : at + max(1, micro_tokens // width)]
        at += len(rows)
        lengths = shard.lengths[rows].astype(np.int64)
        inside = np.arange(width) < lengths[:, None]
        index = np.where(inside, starts[rows][:, None] + np.arange(width), 0)
        ids = np.where(inside, shard.ids[index].astype(np.int64), pad_id)
        counted = np.zeros((len(rows), width), bool)
        counted[:, :-1] = (inside & (shard.mask[index] > 0))[:, 1:]
        positions = np.flatnonzero(counted)
        targets = ids.reshape(-1)[positions + 1]
        on = [torch.from_numpy(a).to(device, non_blocking=True) for a in (ids, lengths, positions, targets)]
        yield Batch(on[0], on[1], on[2], on[3], int(lengths.sum()))


class Imitator:
    """Trains a policy in place: Muon for matrices, Adam for the rest, balancing, indexers, fresh rounded experts."""

    def __init__(self, policy: Policy, pace: Pace, micro_tokens: int, pad_id: int) -> None:
        self.policy, self.pace, self.micro_tokens, self.pad_id = policy, pace, micro_tokens, pad_id
        self.device = next(policy.parameters()).device
        named = [(n, p) for n, p in policy.named_parameters() if p.requires_grad]
        matrices = [p for n, p in named if p.ndim in (2, 3) and not any(part in n for part in _OTHER)]
        rest = [p for n, p in named if not any(p is m for m in matrices)]
        self.parameters = [p for _, p in named]
        adam = torch.optim.Adam(rest, lr=pace.rest, betas=(0.9, 0.95), fused=self.device.type == "cuda")
        self.optimizers = [(Muon(matrices, lr=pace.matrices), pace.matrices), (adam, pace.rest)]
        enable_balancing(policy)
        enable_index_loss(policy)
        self.tokens = 0

    def step(self, shard: Shard) -> Tensor:
        """One optimizer step; the mean loss over the shard's counted tokens, in nats (a tensor: not waited for)."""
        self.policy.train()
        count = int(shard.mask.sum())
        total = torch.zeros((), device=self.device)
        for batch in batches(shard, self.micro_tokens, self.pad_id, self.device):
            out = self.policy(batch.ids, batch.lengths)
            logits = self.policy.logits(out.hidden.flatten(0, 1)[batch.positions])
            loss = -token_logprobs(logits, batch.targets, 1.0)[0].sum() / count
            total += loss.detach()
            if out.index_loss is not None:  # a mean over the micro-batch's tokens; it moves the indexers only
                loss = loss + out.index_loss * (batch.tokens / len(shard.ids))
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        factor = self.pace.factor(self.tokens)
        for optimizer, rate in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        balance_update(self.policy)
        self.policy.refresh_quantized()
        self.tokens += len(shard.ids)
        return total
