"""Laws of the deterministic engine: the same bits whatever else is in the batch, wherever a prompt is cut, and whatever
was kept of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from engine_tools import arrays, drain, engine_of, plain, prompts, request
from hypothesis import given, settings
from hypothesis import strategies as st

from model import K3Config, Policy, QuantSpec
from rollout.engine import native, prefill
from rollout.engine.base import Generation
from rollout.engine.weights import describe

CONFIG = replace(K3Config.preset("tiny"), index_topk=24)
"""Sparse attention selects among the keys of all but the shortest."""
CONTEXT = 120


def policy_of(seed: int = 0) -> Policy:
    """float32, rounded experts: a last bit that differs may become another expert, another code, another key."""
    policy = Policy(CONFIG, QuantSpec())
    policy.reset_parameters(seed)
    with torch.no_grad():
        for name, p in policy.named_parameters():
            if p.dim() > 1 and not name.endswith("res_proj.weight"):
                p.mul_(4.0)
    policy.refresh_quantized()
    return policy


TINY = policy_of()
LONG = np.random.default_rng(7).integers(0, 512, 90).tolist()
ASKED = [*prompts(4, longest=40, seed=2), LONG, LONG[:70]]
TOKENS = 12


def bits(g: Generation) -> tuple[object, ...]:
    """All that an engine says of a continuation."""
    assert g.routes is not None
    return g.token_ids.tobytes(), g.logprobs.tobytes(), g.routes.tobytes(), g.finish


def alone(policy: Policy, prompt: list[int], seed: int, tokens: int) -> tuple[object, ...]:
    engine = engine_of(policy, max_batch=1, max_context=CONTEXT, deterministic=True, prefix_bytes=0)
    engine.submit(request("x", prompt, seeds=(seed,), max_tokens=tokens))
    return bits(drain(engine)["x"][0])


@cache
def wanted() -> list[tuple[object, ...]]:
    """What each of ASKED gives alone."""
    return [alone(TINY, p, i, TOKENS) for i, p in enumerate(ASKED)]


@settings(max_examples=8, deadline=None)
@given(
    order=st.permutations(range(len(ASKED))),
    max_batch=st.sampled_from([2, 5, 17, 40]),
    pauses=st.lists(st.integers(0, 9), min_size=len(ASKED), max_size=len(ASKED)),
    others=st.integers(0, 30),
    cache=st.sampled_from([0, 1 << 24]),
)
def test_no_composition_of_the_batch_changes_a_bit(
    order: list[int], max_batch: int, pauses: list[int], others: int, cache: int
) -> None:
    engine = engine_of(TINY, max_batch=max_batch, max_context=CONTEXT, deterministic=True, prefix_bytes=cache)
    if others:
        noise = np.random.default_rng(others).integers(0, 512, 3 * others).tolist()
        engine.submit(request("others", noise, seeds=tuple(range(others)), max_tokens=5 + others))
    out: dict[str, list[Generation]] = {}
    for i, pause in zip(order, pauses, strict=True):
        engine.submit(request(f"r{i}", ASKED[i], seeds=(i,), max_tokens=TOKENS))
        for _ in range(pause):
            out.update(engine.step())
    out.update(drain(engine))
    for i, want in enumerate(wanted()):
        assert bits(out[f"r{i}"][0]) == want, i


@pytest.mark.parametrize("at_once,pieces", [(16, 4096), (64, 16), (16, 7)])
def test_no_cut_of_the_prompts_changes_a_bit(at_once: int, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_AT_ONCE", at_once)
    monkeypatch.setattr(prefill, "MAX_TOKENS", pieces)
    engine = engine_of(TINY, max_batch=40, max_context=CONTEXT, deterministic=True)
    for n in (1, 5, 31):  # the prompt arrives in pieces: each goes on from what was kept of the last one
        engine.submit(request(f"piece{n}", LONG[:n], max_tokens=1))
        drain(engine)
    for i, p in enumerate(ASKED):
        for j in range(3):
            engine.submit(request(f"r{i}.{j}", p, seeds=(i,), max_tokens=TOKENS))
    out = drain(engine)
    assert engine.stats()["tokens_cached"] > 0
    assert all(bits(out[f"r{i}.{j}"][0]) == want for i, want in enumerate(wanted()) for j in range(3))


def test_a_turn_from_a_kept_state_is_a_cold_one_to_the_bit() -> None:
    engine = engine_of(TINY, max_context=CONTEXT, deterministic=True)
    stops = tuple(range(0, 512, 3))
    engine.submit(request("a", ASKED[1], max_tokens=60, stop_ids=stops, keep=True))
    (g,) = drain(engine)["a"]
    longer = [*ASKED[1], *g.token_ids.tolist(), 7, 8, 9]
    engine.submit(request("b", longer, seeds=(5,), max_tokens=24))
    (h,) = drain(engine)["b"]
    assert h.cached_tokens == len(longer) - 4
    assert bits(h) == alone(TINY, longer, 5, 24)


def test_an_update_in_flight_leaves_what_a_cold_engine_would_say() -> None:
    """Of the tokens sampled after it: the state is read again, token by token."""
    new = policy_of(seed=9)
    weights = arrays(new)
    engine = engine_of(TINY, max_context=CONTEXT, deterministic=True)
    engine.submit(request("a", ASKED[0], seeds=(3,), max_tokens=24))
    for _ in range(10):
        engine.step()
    engine.load(describe(2, weights), weights)
    (g,) = drain(engine)["a"]
    before = int((g.versions == 1).sum())
    assert 0 < before < 24
    cold = engine_of(new, max_context=CONTEXT, deterministic=True, version=2)
    cold.submit(request("a", [*ASKED[0], *g.token_ids[:before].tolist()], seeds=(3,), max_tokens=24 - before))
    (h,) = drain(cold)["a"]
    assert h.token_ids.tolist() == g.token_ids[before:].tolist()
    assert h.logprobs.tobytes() == g.logprobs[before:].tobytes()


def test_large_experts_are_run_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot run all experts on all rows sorts rows by expert: how many are together is the batch's doing."""
    monkeypatch.setattr("model.step_ffn.DENSE_MACS", {True: 0, False: 0})
    monkeypatch.setattr("kernels.experts.torch.DENSE_MACS", {True: 0, False: 0})
    want = [alone(TINY, p, i, 12) for i, p in enumerate(ASKED[:4])]
    engine = engine_of(TINY, max_batch=40, max_context=CONTEXT, deterministic=True)
    for i, p in enumerate(ASKED[:4]):
        engine.submit(request(f"r{i}", p, seeds=(i,), max_tokens=12))
    out = drain(engine)
    assert [bits(out[f"r{i}"][0]) for i in range(4)] == want


def test_it_says_what_the_policy_says() -> None:
    policy = Policy(CONFIG, QuantSpec("none", "none"))
    policy.reset_parameters(4)
    engine = engine_of(policy, max_context=CONTEXT, deterministic=True)
    for i, p in enumerate(ASKED):
        engine.submit(request(f"r{i}", p, seeds=(i,), max_tokens=24))
    out = drain(engine)
    for i, p in enumerate(ASKED):
        (g,) = out[f"r{i}"]
        np.testing.assert_allclose(g.logprobs, plain(policy, p, g), atol=2e-6, rtol=0)
        assert g.prompt_routes is not None
        ids = torch.tensor([p])
        assert (g.prompt_routes == policy(ids, torch.tensor([len(p)])).routes[0].numpy()).mean() > 0.999


def test_drafts_are_refused() -> None:
    with pytest.raises(ValueError, match="draft_tokens=0"):
        engine_of(TINY, deterministic=True, draft_tokens=2)
