"""Laws of speculative decoding: it samples what plain decoding samples, token for token and in distribution."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from engine_tools import arrays, drain, engine_of, plain, request, same
from engine_tools import policy_of as any_policy

from model import Policy
from rollout.engine.base import FinishReason
from rollout.engine.drafts import Drafts, accepted
from rollout.engine.weights import describe

PATTERN = [5, 9, 3, 7] * 6


@cache
def policy_of(preset: str = "tiny", seed: int = 0) -> Policy:
    """A policy of few words, tokens 0 to 11: at any temperature what it says was often said before."""
    policy = deepcopy(any_policy(preset, seed=seed))
    with torch.no_grad():
        policy.lm_head.weight[:12] *= 8.0
        policy.lm_head.weight[12:] = 0.0
    policy.refresh_quantized()
    return policy


def test_a_draft_is_what_followed_the_same_words_last() -> None:
    d = Drafts([1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3])
    assert d.draft(0, 2) == [5, 8]  # the last time, not the first
    assert d.draft(0, 0) == []
    d.add(0, [7])
    assert d.draft(0, 3) == []  # nothing followed (2, 3, 7) or (3, 7)
    d.add(1, [7, 6])
    assert d.draft(0, 3) == [6]  # a sibling went on so
    assert Drafts([1]).draft(0, 4) == Drafts([1, 2]).draft(0, 4) == []
    assert Drafts([4, 4, 4, 4]).draft(0, 5) == [4] * 5  # a draft goes on from itself
    assert Drafts([1, 2, 8, 0, 1, 2]).draft(0, 1) == [8]  # two words, where three are not known


def test_what_counts_of_a_draft() -> None:
    none = np.array([-1])
    assert accepted(np.array([0, 5, 6]), np.array([5, 6, 7]), 3, none) == 3  # all of it, and a token more
    assert (
        accepted(np.array([0, 5, 6]), np.array([5, 1, 7]), 3, none) == 2
    )  # up to the first other token, that included
    assert accepted(np.array([0, 5, 6]), np.array([1, 6, 7]), 3, none) == 1
    assert accepted(np.array([0, 5, 6]), np.array([5, 6, 7]), 3, np.array([5])) == 1  # a stop is the end
    assert accepted(np.array([0]), np.array([4]), 1, none) == 1


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("preset", ["tiny", "tiny_odd"])
def test_tokens_are_those_of_plain_decoding(preset: str, temperature: float) -> None:
    policy = policy_of(preset)
    asked = [
        request(f"r{i}", PATTERN[i:], seeds=(i, i + 1, i + 2), max_tokens=20 + 13 * i, temperature=temperature)
        for i in range(3)
    ]
    out = []
    for k in (0, 3, 6):
        engine = engine_of(policy, max_batch=5, max_context=96, draft_tokens=k)
        for r in asked:
            engine.submit(r)
        out.append(drain(engine))
        stats = engine.stats()
        assert (stats["tokens_drafted"] > 0) == (k > 0)
        assert stats["tokens_generated"] == sum(len(g.token_ids) for gs in out[-1].values() for g in gs)
        if k:
            assert stats["tokens_accepted"] > 0 and stats["decode_steps"] < stats["tokens_generated"]
    for r in asked:
        for plainly, *speculated in zip(*(o[r.id] for o in out), strict=True):
            for g in speculated:
                same(g, plainly)


def test_the_distribution_is_the_policys() -> None:
    """Of 6,000 samples of three tokens, at a temperature where drafts are accepted and refused."""
    policy, n, t = policy_of(seed=3), 6000, 1.3
    engine = engine_of(policy, max_batch=200, max_context=64, draft_tokens=3)
    prompt = PATTERN[:10]
    engine.submit(request("g", prompt, seeds=tuple(range(n)), max_tokens=3, temperature=t))
    got = Counter(tuple(g.token_ids.tolist()) for g in drain(engine)["g"])
    stats = engine.stats()
    assert 200 < stats["tokens_accepted"] < stats["tokens_drafted"] - 200
    logp: dict[tuple[int, ...], np.ndarray] = {}

    def after(said: tuple[int, ...]) -> np.ndarray:
        if said not in logp:
            ids = torch.tensor([[*prompt, *said]])
            with torch.no_grad():
                logits = policy.logits(policy(ids, torch.tensor([ids.shape[1]])).hidden[0, -1])
            logp[said] = torch.log_softmax(logits / t, -1).numpy()
        return logp[said]

    # Chi-squared over the outcomes of at least 8 expected, the rest as one.
    top = [int(i) for i in np.argsort(after(()))[::-1][:12]]
    expected: dict[tuple[int, ...], float] = {}
    for a in top:
        for b in np.argsort(after((a,)))[::-1][:8].tolist():
            two = after(())[a] + after((a,))[b]
            if n * np.exp(two) >= 8:
                for c in np.argsort(after((a, b)))[::-1][:8].tolist():
                    if (e := n * np.exp(two + after((a, b))[c])) >= 8:
                        expected[(a, b, c)] = float(e)
    rest = n - sum(expected.values())
    pairs = [(got[k], e) for k, e in expected.items()]
    pairs.append((n - sum(got[k] for k in expected), rest))
    freedom = len(pairs) - 1
    chi = sum((o - e) ** 2 / e for o, e in pairs)
    assert freedom >= 15
    assert abs(chi - freedom) < 4 * np.sqrt(2 * freedom), (chi, freedom)


def test_log_probs_and_routes_are_of_the_policy() -> None:
    policy = policy_of("tiny_odd")
    engine = engine_of(policy, max_context=128, record_picks=True, draft_tokens=4)
    prompt = PATTERN
    engine.submit(request("g", prompt, seeds=(1, 2, 3), max_tokens=70, temperature=0.9))
    out = drain(engine)["g"]
    assert engine.stats()["tokens_accepted"] > 0
    for g in out:
        np.testing.assert_allclose(g.logprobs, plain(policy, prompt, g, 0.9), atol=1e-6)
        ids = torch.tensor([[*prompt, *g.token_ids.tolist()]])
        want = policy(ids, torch.tensor([ids.shape[1]]), record_picks=True)
        assert g.routes is not None and g.picks is not None and want.picks is not None
        np.testing.assert_array_equal(g.routes[:-1], want.routes[0, len(prompt) : -1].numpy())
        np.testing.assert_array_equal(g.picks[:-1].astype(np.int16), want.picks[0, len(prompt) : -1].numpy())


def test_stops_limits_and_kept_turns_are_as_without_drafts() -> None:
    policy = policy_of()
    stops = (4,)
    ends = []
    for k in (0, 5):
        engine = engine_of(policy, max_context=64, draft_tokens=k)
        how = {"max_tokens": 39, "stop_ids": stops, "keep": True}
        engine.submit(request("a", PATTERN, seeds=tuple(range(8)), **how))
        first = drain(engine)["a"]
        for i, g in enumerate(first):
            if g.finish is FinishReason.STOP:
                engine.submit(request(f"b{i}", [*PATTERN, *g.token_ids.tolist(), 5, 9], max_tokens=100))
        second = drain(engine)
        assert second and all(gs[0].cached_tokens > len(PATTERN) - 1 for gs in second.values())
        ends.append([*first, *(second[id][0] for id in sorted(second))])
    for a, b in zip(*ends, strict=True):
        same(a, b)
        assert a.cached_tokens == b.cached_tokens
    assert {g.finish for g in ends[0]} >= {FinishReason.STOP, FinishReason.CONTEXT}


def test_an_update_in_the_middle_of_speculation() -> None:
    new = policy_of(seed=7)
    weights = arrays(new)
    for k in (0, 4):
        engine = engine_of(policy_of(), max_context=128, draft_tokens=k)
        engine.submit(request("a", PATTERN, max_tokens=40, temperature=0.0))
        while engine._rows == [] or engine._position[0] < len(PATTERN) + 8:
            engine.step()
        engine.load(describe(2, weights), weights)
        (g,) = drain(engine)["a"]
        cut = int((g.versions == 1).sum())
        assert 8 <= cut < 40
        want = plain(new, [*PATTERN, *g.token_ids[:cut].tolist()], replace(g, token_ids=g.token_ids[cut:]))
        np.testing.assert_allclose(g.logprobs[cut:], want, atol=1e-6)


def test_more_words_than_the_context_are_never_drafted() -> None:
    policy = policy_of()
    for most, context in product((1, 2, 5), (30, 31)):
        engine = engine_of(policy, max_context=context, draft_tokens=9)
        engine.submit(request("a", PATTERN, max_tokens=most, temperature=0.0))
        engine.submit(request("b", PATTERN, max_tokens=100, temperature=0.0))
        out = drain(engine)
        assert len(out["a"][0].token_ids) == most
        assert len(out["b"][0].token_ids) == context - len(PATTERN)
        assert out["b"][0].finish is FinishReason.CONTEXT
