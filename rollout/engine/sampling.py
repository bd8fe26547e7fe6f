"""Sampling that does not depend on the batch: inverse CDF at a uniform number made of (seed, position) alone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
"""Increment and multipliers of SplitMix64 (Steele, Lea, Flood 2014), a counter-based generator."""

_VALUES = 2**15
"""Logits that are sampled from at once on a CPU: what is made of them stays in its cache."""


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
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    logps = torch.empty(len(logits), dtype=_wide(logits.dtype), device=logits.device)
    rows = max(1, (_VALUES if logits.device.type == "cpu" else 2**28) // logits.shape[-1])
    for i in range(0, len(logits), rows):
        part = slice(i, i + rows)
        _sample(logits[part], temperature[part], u[part], tokens[part], logps[part])
    return tokens, logps


def _sample(logits: Tensor, temperature: np.ndarray, u: np.ndarray, tokens: Tensor, logps: Tensor) -> None:
    """`sample` into tokens [n] and logps [n]."""
    greedy = temperature == 0
    wide = logits.to(logps.dtype)
    scaled = wide
    if not ((temperature == 1) | greedy).all():
        inverse = 1.0 / torch.from_numpy(np.where(greedy, np.float32(1), temperature)).to(wide)
        scaled = wide * inverse[:, None]
    every = torch.log_softmax(scaled, -1)
    cdf = every.exp().cumsum(-1, dtype=torch.float64)
    # The first entry whose cumulative sum exceeds u x total has a positive probability, whatever the rounding.
    found = torch.searchsorted(cdf, torch.from_numpy(u).to(logits.device)[:, None] * cdf[:, -1:], right=True)
    if greedy.any():
        rows = torch.from_numpy(greedy).to(logits.device)[:, None]
        found = torch.where(rows, wide.argmax(-1, keepdim=True), found)
    tokens.copy_(found[:, 0])
    torch.gather(every, 1, found, out=logps[:, None])


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))
