"""Sampling that does not depend on the batch: inverse CDF at a uniform number made of (seed, position) alone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
"""Increment and multipliers of SplitMix64 (Steele, Lea, Flood 2014), a counter-based generator."""


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Uniform float64 [n] in [0, 1), 53 bits, of (seed, position) alone. seeds uint64 [n]; positions int64 [n] >= 0."""
    # The seed is mixed first, so that neighbouring seeds do not give shifted copies of one stream.
    x = _mix(_mix(seeds.astype(np.uint64)) + _GOLDEN * (positions.astype(np.uint64) + np.uint64(1)))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample(logits: Tensor, temperature: np.ndarray, u: np.ndarray) -> tuple[Tensor, Tensor]:
    """Tokens Long [n] and their log-probs [n]. logits [n, V]; temperature float32 [n]; u float64 [n] in [0, 1).

    Temperature 0 takes the largest logit (the first of equals); its log-prob is then at temperature 1. Otherwise the
    log-prob is of the distribution that was sampled from. Log-probs are bit for bit `model.logprob.token_logprobs`,
    which would do the softmax a second time; float32, or float64 for float64 logits.
    """
    greedy = temperature == 0
    wide = logits if logits.dtype == torch.float64 else logits.float()
    scale = torch.from_numpy(np.where(greedy, np.float32(1), temperature)).to(wide)
    every = torch.log_softmax(wide * (1.0 / scale)[:, None], -1)
    cdf = every.exp().cumsum(-1, dtype=torch.float64)
    # The first entry whose cumulative sum exceeds u x total has a positive probability, whatever the rounding.
    tokens = torch.searchsorted(cdf, torch.from_numpy(u).to(logits.device)[:, None] * cdf[:, -1:], right=True)
    if greedy.any():
        rows = torch.from_numpy(greedy).to(logits.device)[:, None]
        tokens = torch.where(rows, wide.argmax(-1, keepdim=True), tokens)
    return tokens.squeeze(-1), every.gather(-1, tokens).squeeze(-1)


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))
