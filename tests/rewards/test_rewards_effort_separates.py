"""Law (C1, C2): the default reward teaches efforts different lengths within their budgets; the outcome alone does not.

The policy is a softmax over answer lengths, one row an effort over shared logits, trained by policy gradient on tasks
whose right answers need length. A language model adds everything else; without this it has no reason to separate.
"""

from __future__ import annotations

import numpy as np

from rewards.effort import EffortReward
from rewards.efforts import DEFAULT_EFFORTS
from rl.config import EffortConfig

LENGTHS = 2.0 ** np.arange(1, 9)
NEED = (6.0, 20.0, 80.0)
"""Tokens that a kind of task needs for about two answers in three to be right."""
B0, GROUP, STEPS = 32.0, 16, 600


def train(kind: str) -> np.ndarray:
    """Probabilities of the lengths after training: [efforts, lengths]."""
    rng, reward = np.random.default_rng(0), EffortReward(EffortConfig(kind=kind))
    shared, own = np.zeros(len(LENGTHS)), np.zeros((len(DEFAULT_EFFORTS), len(LENGTHS)))
    for step in range(STEPS):
        gradient = np.zeros_like(own)
        for e, effort in enumerate(DEFAULT_EFFORTS):
            p = softmax(shared + own[e])
            for need in NEED:
                chosen = rng.choice(len(LENGTHS), GROUP, p=p)
                lengths = LENGTHS[chosen]
                right = rng.random(GROUP) < 0.95 * (1 - np.exp(-lengths / need))
                shaped = reward.shape(right.astype(float), np.ones(GROUP, bool), lengths, effort, B0, step)
                advantage = shaped - (shaped * lengths).sum() / lengths.sum()
                gradient[e] += (np.bincount(chosen, advantage, len(LENGTHS)) - advantage.sum() * p) / GROUP
        shared, own = shared + 0.3 * gradient.sum(0), own + gradient
    return np.stack([softmax(shared + row) for row in own])


def softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max())
    return p / p.sum()


def medians(p: np.ndarray) -> list[float]:
    return [float(LENGTHS[np.searchsorted(row.cumsum(), 0.5)]) for row in p]


def test_efforts_separate_within_their_budgets_and_only_because_of_the_reward() -> None:
    p, reward = train("budget"), EffortReward(EffortConfig())
    low, high, most = medians(p)
    assert low < high < most
    for row, effort in zip(p, DEFAULT_EFFORTS, strict=True):
        assert row[reward.over_budget(LENGTHS, effort, B0)].sum() <= 0.05
    assert len(set(medians(train("none")))) == 1, "the negative control: outcome alone separates nothing"
