"""What must be equal in exact arithmetic, measured in float64 on small policies: tests and the benchmark assert it."""

from __future__ import annotations

from dataclasses import replace

import torch
from k3_oracle import randomised
from torch import Tensor

from model.config import K3Config
from model.decoder import Policy
from model.dsa import picks_of
from model.mla import MLA
from model.packing import Packing
from model.quant import QuantSpec

PLAIN = QuantSpec("none", "none")


def build(
    preset: str = "tiny_odd", quant: QuantSpec = PLAIN, dtype: torch.dtype = torch.float64, seed: int = 0, **changes
) -> Policy:
    """A policy with every weight drawn at a useful size; `changes`: keys of its configuration."""
    policy = Policy(replace(K3Config.preset(preset), **changes), quant).to(dtype)
    policy.reset_parameters(seed)
    return randomised(policy, seed)


def tokens(batch: int, time: int, seed: int = 0) -> Tensor:
    """Long [batch, time]."""
    return torch.randint(0, 512, (batch, time), generator=torch.Generator().manual_seed(seed))


def logits(policy: Policy, ids: Tensor, lengths: Tensor) -> Tensor:
    """[B, T, V], without gradients."""
    with torch.no_grad():
        return policy.logits(policy(ids, lengths).hidden)


def largest(a: Tensor, b: Tensor) -> float:
    """max |a - b|."""
    return float((a - b).detach().abs().max())


def prefill_against_decode(policy: Policy, time: int, seed: int = 0) -> float:
    """Prompts of every length at once, beside one token that all others follow step by step.

    Returns the largest difference of logits, relative to the largest logit.
    """
    ids, state = tokens(1, time, seed), policy.new_state(time + 1, time)
    whole, _ = policy.prefill(ids.expand(time, -1), torch.arange(1, time + 1), state, range(time))
    alone = policy.new_state(1, time)
    rows = [policy.prefill(ids[:, :1], torch.tensor([1]), alone, [0])[0]]
    rows += [policy.decode(ids[:, t], alone, 1)[0] for t in range(1, time)]
    return largest(whole, torch.cat(rows)) / float(whole.abs().max())


def absorbed_against_plain(config: K3Config, seed: int = 0) -> tuple[float, float]:
    """One MLA with all keys in both forms: largest difference of outputs and probabilities, and of the gradients."""
    policy = randomised(Policy(config, PLAIN).to(torch.float64), seed)
    m = next(m for m in policy.modules() if isinstance(m, MLA))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2 * 33, config.hidden_size, dtype=torch.float64, generator=generator)
    visible = Packing(torch.tensor([33, 33]), 33).blocks.visible[0]
    runs = []
    for absorbed in (False, True):
        policy.zero_grad()
        _, q, latent, _ = m._project(x)
        q, latent = q.view(2, 33, *q.shape[1:]), latent.view(2, 33, -1)
        if absorbed:
            o, p = m.attend_selected(q, latent, picks_of(visible, 33))
        else:
            o, p = m._attend(q, *m._keys_values(latent), visible)
        o.square().sum().backward()
        runs.append([o, p, *(g.grad.clone() for g in m.parameters() if g.grad is not None)])
    gaps = [largest(a, b) for a, b in zip(*runs, strict=True)]
    return max(gaps[:2]), max(gaps[2:])


def sparse_against_dense(topk: int, seed: int = 0) -> tuple[float, float]:
    """DSA with top-k keys on rows of 40 beside MLA with the same weights: largest logit apart in all, and of the last
    token of the longest row."""
    sparse, dense = build(seed=seed, index_topk=topk), build(seed=seed, index_topk=None)
    dense.load_named_weights({k: v for k, v in sparse.named_weights() if "indexer" not in k})
    ids, lengths = tokens(2, 40, seed), torch.tensor([40, 33])
    a, b = logits(sparse, ids, lengths), logits(dense, ids, lengths)
    return largest(a, b), largest(a[0, -1], b[0, -1])


def causality(seed: int = 0) -> tuple[float, float, float]:
    """The last 17 of 40 tokens exchanged: largest change of the hidden states before them, of those from there on, and
    of the former where no routes are given.

    With the routes of the first: products of other row counts are rounded otherwise, though no token saw another.
    """
    policy = build(seed=seed)
    a, b = tokens(2, 40, seed), tokens(2, 40, seed)
    b[:, 23:] = (b[:, 23:] + 1 + tokens(2, 17, seed + 1) % 511) % 512
    lengths = torch.tensor([40, 40])
    with torch.no_grad():
        routes = policy(a, lengths).routes
        x, y, live = policy(a, lengths, routes).hidden, policy(b, lengths, routes).hidden, policy(b, lengths).hidden
    return largest(x[:, :23], y[:, :23]), largest(x[:, 23:], y[:, 23:]), largest(x[:, :23], live[:, :23])
