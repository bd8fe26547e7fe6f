"""Helpers of the engine tests: a small policy, a loaded engine, and the plain forward as the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from model import K3Config, Policy, QuantSpec
from model.logprob import token_logprobs
from rollout.engine.base import GenerateRequest, Generation
from rollout.engine.native import NativeEngine
from rollout.engine.weights import describe
from rollout.trajectory import Sampling

EXACT = QuantSpec(expert_weights="none", expert_activations="none")


@cache
def policy_of(preset: str = "tiny", dtype: torch.dtype = torch.float64, seed: int = 0) -> Policy:
    """A random policy, never written to; its matrices are enlarged, so that distributions are far from uniform."""
    policy = Policy(K3Config.preset(preset), EXACT).to(dtype)
    policy.reset_parameters(seed)
    with torch.no_grad():
        for name, p in policy.named_parameters():
            if p.dim() > 1 and not name.endswith("res_proj.weight"):
                p.mul_(4.0)
    policy.refresh_quantized()
    return policy


def arrays(policy: Policy) -> dict[str, np.ndarray]:
    """Named weights as arrays."""
    return {name: w.numpy().copy() for name, w in policy.named_weights()}


def engine_of(
    source: Policy,
    max_batch: int = 8,
    max_context: int = 96,
    version: int | None = 1,
    record_routes: bool = True,
    record_picks: bool = False,
    **more: Any,
) -> NativeEngine:
    """An engine with its own policy, loaded with the source's weights (version None: not loaded); more: its options."""
    own = Policy(source.config, source.quant).to(source.dtype)
    own.reset_parameters(99)
    engine = NativeEngine(own, max_batch, max_context, record_routes, record_picks, **more)
    if version is not None:
        weights = arrays(source)
        engine.load(describe(version, weights), weights)
    return engine


def drain(engine: NativeEngine) -> dict[str, list[Generation]]:
    """Step until nothing is left."""
    out: dict[str, list[Generation]] = {}
    for _ in range(10_000):
        if not engine.busy:
            return out
        out.update(engine.step())
    raise AssertionError("the engine does not come to an end")


def request(
    id: str,
    prompt: Sequence[int],
    seeds: Sequence[int] = (1,),
    max_tokens: int = 12,
    temperature: float = 1.0,
    **more: Any,
) -> GenerateRequest:
    """A request with one continuation per seed."""
    keep = more.pop("keep", False)
    sampling = tuple(Sampling(temperature, max_tokens, s, tuple(more.get("stop_ids", ()))) for s in seeds)
    return GenerateRequest(id, np.asarray(prompt, np.int32), sampling, keep)


def prompts(n: int, longest: int = 20, seed: int = 0, vocab: int = 512) -> list[list[int]]:
    """Random prompts of lengths 1..longest."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, rng.integers(1, longest + 1)).tolist() for _ in range(n)]


@torch.no_grad()
def plain(policy: Policy, prompt: Sequence[int], g: Generation, temperature: float = 1.0) -> np.ndarray:
    """Log-probs of the sampled tokens by one forward over the whole sequence."""
    ids = torch.tensor([[*prompt, *g.token_ids.tolist()]])
    hidden = policy.forward(ids, torch.tensor([ids.shape[1]])).hidden[0]
    logits = policy.logits(hidden[len(prompt) - 1 : -1])
    return token_logprobs(logits, ids[0, len(prompt) :], temperature)[0].numpy()


def same(a: Generation, b: Generation, tolerance: float = 1e-7) -> None:
    """Equal tokens, versions, routes and reasons; log-probs within tolerance."""
    assert a.token_ids.tolist() == b.token_ids.tolist()
    assert a.versions.tolist() == b.versions.tolist()
    assert a.finish is b.finish
    np.testing.assert_allclose(a.logprobs, b.logprobs, atol=tolerance, rtol=1e-6)
    assert (a.routes is None) == (b.routes is None)
    if a.routes is not None:
        np.testing.assert_array_equal(a.routes, b.routes)
