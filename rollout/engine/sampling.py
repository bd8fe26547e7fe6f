"""Sampling that does not depend on the batch: inverse CDF at a uniform number made of (seed, position) alone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from model.logprob import token_logprobs

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
"""Increment and multipliers of SplitMix64 (Steele, Lea, Flood 2014), a counter-based generator."""


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Uniform float64 [n] in [0, 1), 53 bits, of (seed, position) alone. seeds uint64 [n]; positions int64 [n] >= 0."""
    with np.errstate(over="ignore"):
        # The seed is mixed first, so that neighbouring seeds do not give shifted copies of one stream.
        x = _mix(seeds.astype(np.uint64)) + _GOLDEN * (positions.astype(np.uint64) + np.uint64(1))
        x = _mix(x)
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample(logits: Tensor, temperature: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens Long [n] and their log-probs float32 [n]. logits [n, V]; temperature float32 [n]; u float64 [n].

    Temperature 0 takes the largest logit (the first of equals); its log-prob is then at temperature 1. Otherwise the
    log-prob is of the distribution that was sampled from, by the same function that the learner uses.
    """
    greedy = temperature == 0
    scale = torch.where(greedy, torch.ones_like(temperature), temperature)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    cdf = torch.softmax(wide / scale[:, None], dim=-1).cumsum(-1, dtype=torch.float64)
    # The first entry whose cumulative sum exceeds u x total has a positive probability, whatever the rounding.
    tokens = torch.searchsorted(cdf, (u * cdf[:, -1])[:, None], right=True).squeeze(-1)
    if bool(greedy.any()):
        tokens = torch.where(greedy, logits.argmax(-1), tokens)
    logp, _ = token_logprobs(logits, tokens, scale)
    return tokens, logp


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))
