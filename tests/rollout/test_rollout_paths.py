"""The law of paths: prefill, decode, batched, forked, restored and speculative, and the plain forward, say the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from engine_tools import EXACT, drain, engine_of, plain, request
from hypothesis import given, settings
from hypothesis import strategies as st

from model import K3Config, Policy
from rollout.engine.base import Generation
from rollout.engine.native import NativeEngine

GAP = 1e-6
"""Of log-probs in float32, of which one of 4 to 8 is known to 2.4e-7."""

Said = list[tuple[list[int], Generation]]
"""What was sampled, with its prompt."""


def policy_of(preset: str, seed: int) -> Policy:
    """Random weights as training starts from, float32, nothing rounded."""
    policy = Policy(K3Config.preset(preset), EXACT)
    policy.reset_parameters(seed)
    return policy


def one(engine: NativeEngine, id: str, prompt: list[int], **how: object) -> list[Generation]:
    engine.submit(request(id, prompt, **how))  # type: ignore[arg-type]
    return drain(engine)[id]


def prefill(policy: Policy, prompts: list[list[int]]) -> Said:
    """The first token alone: all is prefill."""
    engine = engine_of(policy, max_context=256)
    return [(p, g) for i, p in enumerate(prompts) for g in one(engine, f"r{i}", p, max_tokens=1)]


def decode(policy: Policy, prompts: list[list[int]]) -> Said:
    """Prompts of one token: all but the first is decoding."""
    engine = engine_of(policy, max_context=256)
    return [(p[:1], g) for i, p in enumerate(prompts) for g in one(engine, f"r{i}", p[:1], max_tokens=30)]


def batched(policy: Policy, prompts: list[list[int]]) -> Said:
    engine = engine_of(policy, max_batch=3, max_context=256)
    for i, p in enumerate(prompts):
        engine.submit(request(f"r{i}", p, seeds=(i,), max_tokens=8 + 5 * i))
    out = drain(engine)
    return [(p, out[f"r{i}"][0]) for i, p in enumerate(prompts)]


def forked(policy: Policy, prompts: list[list[int]]) -> Said:
    engine = engine_of(policy, max_context=256)
    return [(p, g) for i, p in enumerate(prompts) for g in one(engine, f"r{i}", p, seeds=(1, 2, 3), max_tokens=20)]


def restored(policy: Policy, prompts: list[list[int]]) -> Said:
    """A turn that goes on from a kept one."""
    engine = engine_of(policy, max_context=256)
    said: Said = []
    for i, p in enumerate(prompts):
        (g,) = one(engine, f"a{i}", p, max_tokens=60, stop_ids=range(0, 512, 8), keep=True)
        longer = [*p, *g.token_ids.tolist(), 3, 4, 5]
        (h,) = one(engine, f"b{i}", longer, max_tokens=20)
        assert h.cached_tokens == len(longer) - 4 or len(g.token_ids) == 60
        said.append((longer, h))
    return said


def speculative(policy: Policy, prompts: list[list[int]]) -> Said:
    engine = engine_of(policy, max_batch=1, max_context=256, draft_tokens=4)  # the second sample is the first again
    said = []
    for i, p in enumerate(prompts):
        p = [*p, *p, *p]
        said += [(p, g) for g in one(engine, f"r{i}", p, seeds=(1, 1, 2), max_tokens=40)]
    assert engine.stats()["tokens_drafted"] > 0
    return said


PATHS = (prefill, decode, batched, forked, restored, speculative)


@pytest.mark.parametrize("preset", ["tiny", "tiny_odd"])
@pytest.mark.parametrize("path", PATHS, ids=lambda f: f.__name__)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_path_gives_the_log_probs_of_a_plain_forward(
    path: Callable[[Policy, list[list[int]]], Said], preset: str, seed: int
) -> None:
    policy = policy_of(preset, seed % 1000)
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 512, rng.integers(1, 40)).tolist() for _ in range(4)]
    torch.manual_seed(0)
    for prompt, g in path(policy, prompts):
        np.testing.assert_allclose(g.logprobs, plain(policy, prompt, g), atol=GAP, rtol=0)
