"""Rows scored as a whole and chunk by chunk, and how far log-probs, gradients and routes are apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from k3_oracle import randomised
from torch import Tensor

from model.chunked import score_chunked
from model.config import K3Config
from model.decoder import Policy
from model.logprob import token_logprobs
from model.quant import QuantSpec

# MXFP8 rounds what it sees: a last-bit difference may cross a step. Everything else of the QAT forward is on.
WEIGHTS_ONLY = QuantSpec("mxfp4", "none")
DENSE = {"index_topk": None}
VARIANTS = {
    "k3": ("tiny", DENSE),
    "k31": ("tiny", {"index_topk": 20}),
    "k31_all_keys": ("tiny", {}),
    "odd_k3": ("tiny_odd", DENSE),
    "odd_k31": ("tiny_odd", {}),
    "odd_k31_all_keys": ("tiny_odd", {"index_topk": 500}),
}
"""Preset and changes: MLA, DSA that selects, DSA that sees every key."""
CHUNKS = {1: 11, 7: 90, 64: 150, 1000: 150}
"""Chunk lengths and the length of a row for each: a token at a time, on neither border of a tile, on both, all."""


def build(
    preset: str, quant: QuantSpec = WEIGHTS_ONLY, dtype: torch.dtype = torch.float64, seed: int = 0, **changes
) -> Policy:
    """A policy with rounded experts and every weight drawn at a useful size."""
    policy = Policy(replace(K3Config.preset(preset), **changes), quant).to(dtype)
    policy.reset_parameters(seed)
    return randomised(policy, seed)


class Case:
    """Rows with random tokens, two thirds of which are scored at random temperatures, and a random linear loss."""

    def __init__(self, lengths: list[int], parents: list[int] | None = None, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        b, t = len(lengths), max(lengths)
        self.lengths = torch.tensor(lengths)
        self.parents = None if parents is None else torch.tensor(parents)
        self.ids = torch.randint(0, 512, (b, t), generator=self.generator)
        pairs = []
        for row, n in enumerate(lengths):
            above = -1 if parents is None else parents[row]
            if above >= 0:  # a row's first token is predicted by its parent's last one
                pairs.append((row * t, above * t + lengths[above] - 1))
            pairs += [(row * t + i, row * t + i - 1) for i in range(1, n)]
        kept = torch.randperm(len(pairs), generator=self.generator)[: max(1, len(pairs) * 2 // 3)]
        self.at, self.source = torch.tensor(pairs)[kept].T
        draw = lambda: torch.rand(len(kept), generator=self.generator, dtype=torch.float64)
        self.temperature, self.grad = draw() + 0.5, draw() - 0.5

    def whole(self, policy: Policy, routes: Tensor | None = None, picks: Tensor | None = None) -> tuple[Any, ...]:
        """As `score_chunked`, by the policy's forward."""
        out = policy(self.ids, self.lengths, routes, self.parents, picks=picks)
        hidden = out.hidden.flatten(0, 1)[self.source]
        temperature = self.temperature.to(policy.dtype)
        scored = token_logprobs(policy.logits(hidden), self.ids.flatten()[self.at], temperature)
        return *scored, out.routes, out.index_loss

    def chunked(self, policy: Policy, routes: Tensor | None = None, **how) -> tuple[Any, ...]:
        places = (self.ids, self.lengths, self.at, self.source, self.temperature.to(policy.dtype))
        return score_chunked(policy, *places, routes, self.parents, **how)

    def gradients(self, policy: Policy, logprob: Tensor, index_loss: Tensor | None = None) -> dict[str, Tensor]:
        """Of a loss that is not linear, so that the gradient of a log-prob depends on others."""
        policy.zero_grad()
        grad = self.grad.to(logprob)
        loss = (logprob * grad).sum() + (logprob * grad).sum().square() * 0.1
        (loss if index_loss is None else loss + index_loss.square() * 0.7).backward()
        return {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}


@dataclass(frozen=True)
class Gaps:
    """How far chunks are from whole rows."""

    logprob: float
    """Largest difference of log-probs and of what `score_chunked` returns beside them, relative to the largest."""
    gradients: dict[str, float]
    """By parameter: norm of the difference over the norm of the gradient."""
    routes_equal: bool
    index_loss: float
    """Relative difference of the index losses; 0 where there is none."""


def gaps(policy: Policy, case: Case, **how) -> Gaps:
    """Score and differentiate both ways; `how`: of `score_chunked`. Raises ValueError if other parameters have one."""
    a, b = case.whole(policy, how.get("routes"), how.get("picks")), case.chunked(policy, **how)
    scale = float(a[0].detach().abs().max())
    apart = max(float((x - y).detach().abs().max()) for x, y in zip(a[:2], b[:2], strict=True))
    want, got = case.gradients(policy, a[0], a[3]), case.gradients(policy, b[0], b[3])
    if want.keys() != got.keys() or any(".indexer." in n for n in got) != (a[3] is not None):
        raise ValueError(f"gradients of other parameters: {sorted(want.keys() ^ got.keys())}")
    relative = {}
    for name, g in want.items():
        off, size = float((got[name] - g).norm()), float(g.norm())
        relative[name] = off / size if size else off
    index = 0.0 if a[3] is None else float((a[3] - b[3]).detach().abs() / a[3].detach().abs())
    return Gaps(apart / scale, relative, torch.equal(a[2], b[2]), index)
