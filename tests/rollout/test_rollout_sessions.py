"""Laws of kept states: a next turn costs its new tokens, gives what a cold engine gives, and never crosses versions."""

from __future__ import annotations

import numpy as np
import pytest
from engine_tools import arrays, drain, engine_of, plain, policy_of, prompts, request, same

from rollout.engine.base import FinishReason, Generation
from rollout.engine.native import NativeEngine
from rollout.engine.sessions import Sessions
from rollout.engine.weights import describe
from rollout.trajectory import NO_ROUTE

ANY = tuple(range(0, 512, 3))
"""Stop ids that end a turn after a few tokens."""


def talk(
    engine: NativeEngine, turns: int, seeds: tuple[int, ...] = (1, 2, 3), keep: bool = True
) -> list[list[Generation]]:
    """A conversation per seed: every turn adds what was sampled and three given tokens."""
    first = prompts(1, longest=9, seed=4)[0]
    engine.submit(request("t0", first, seeds=seeds, max_tokens=40, stop_ids=ANY, keep=keep))
    rows = drain(engine)["t0"]
    histories = [[*first, *g.token_ids.tolist()] for g in rows]
    out = [[g] for g in rows]
    for turn in range(1, turns):
        for i, h in enumerate(histories):
            h += [7, 8, 10 + i]
            engine.submit(request(f"t{turn}.{i}", h, seeds=(seeds[i] + turn,), max_tokens=40, stop_ids=ANY, keep=keep))
        done = drain(engine)
        for i, h in enumerate(histories):
            (g,) = done[f"t{turn}.{i}"]
            h += g.token_ids.tolist()
            out[i].append(g)
    return out


@pytest.mark.parametrize("preset", ["tiny", "tiny_odd"])
def test_kept_states_change_nothing_but_the_work(preset: str) -> None:
    policy = policy_of(preset)
    with_sessions, without = engine_of(policy, max_context=256), engine_of(policy, max_context=256)
    kept, cold = talk(with_sessions, 4), talk(without, 4, keep=False)
    for a, b in zip(kept, cold, strict=True):
        for g, h in zip(a, b, strict=True):
            assert g.finish is FinishReason.STOP
            same(g, h)
    work, cold_work = with_sessions.stats(), without.stats()
    assert cold_work["tokens_cached"] == 0
    assert work["tokens_prefilled"] + work["tokens_cached"] == cold_work["tokens_prefilled"]
    # After the first turn, each turn adds the last sampled token and three given ones.
    first = len(prompts(1, longest=9, seed=4)[0])
    assert work["tokens_prefilled"] == first + 3 * 3 * 4


def test_prompt_routes_say_what_was_run() -> None:
    policy = policy_of()
    kept, cold = talk(engine_of(policy, max_context=256), 2), talk(engine_of(policy, max_context=256), 2, keep=False)
    for a, b in zip(kept, cold, strict=True):
        g, full = a[1], b[1]
        n = g.cached_tokens
        assert n > 0 and g.prompt_routes is not None and full.prompt_routes is not None
        assert (g.prompt_routes[:n] == NO_ROUTE).all()
        np.testing.assert_array_equal(g.prompt_routes[n:], full.prompt_routes[n:])
        assert len(g.prompt_routes) == len(full.prompt_routes)


def test_states_never_cross_a_version() -> None:
    engine = engine_of(policy_of(seed=0), max_context=256)
    prompt = prompts(1, seed=5)[0]
    engine.submit(request("a", prompt, max_tokens=40, stop_ids=ANY, keep=True))
    (g,) = drain(engine)["a"]
    assert engine.stats()["sessions"] == 1
    weights = arrays(policy_of(seed=7))
    engine.load(describe(2, weights), weights)
    assert engine.stats()["sessions"] == 0
    longer = [*prompt, *g.token_ids.tolist(), 9]
    engine.submit(request("b", longer))
    (h,) = drain(engine)["b"]
    assert h.cached_tokens == 0
    np.testing.assert_allclose(h.logprobs, plain(policy_of(seed=7), longer, h), atol=1e-6)


def test_a_kept_state_serves_its_own_tokens_only() -> None:
    policy = policy_of()
    engine = engine_of(policy, max_context=256)
    prompt = prompts(1, seed=6)[0]
    engine.submit(request("a", prompt, max_tokens=40, stop_ids=ANY, keep=True))
    (g,) = drain(engine)["a"]
    other = [*prompt, *g.token_ids.tolist(), 9, 9]
    other[0] = (other[0] + 1) % 512
    engine.submit(request("b", other))
    (h,) = drain(engine)["b"]
    assert h.cached_tokens == 0
    np.testing.assert_allclose(h.logprobs, plain(policy, other, h), atol=1e-6)


def test_the_least_recently_kept_state_is_evicted_and_memory_is_bounded() -> None:
    policy = policy_of()
    engine = engine_of(policy, max_batch=4, max_context=64)
    per_row = engine._state.nbytes // 4
    engine._sessions = Sessions(policy, 4, 64, max_bytes=3 * per_row)
    asked = prompts(6, seed=8)
    longer = []
    for i, p in enumerate(asked):
        engine.submit(request(f"a{i}", p, max_tokens=30, stop_ids=ANY, keep=True))
        (g,) = drain(engine)[f"a{i}"]
        longer.append([*p, *g.token_ids.tolist(), 3])
    assert len(engine._sessions) == 3 and engine._sessions._pool.nbytes <= 3 * per_row
    cached = []
    for i, p in enumerate(longer):
        engine.submit(request(f"b{i}", p))
        (h,) = drain(engine)[f"b{i}"]
        cached.append(h.cached_tokens > 0)
        np.testing.assert_allclose(h.logprobs, plain(policy, p, h), atol=1e-6)
    assert cached == [False] * 3 + [True] * 3


def test_more_states_in_one_step_than_the_pool_holds() -> None:
    policy = policy_of()
    engine = engine_of(policy, max_batch=8, max_context=64)
    engine._sessions = Sessions(policy, 8, 64, max_bytes=2 * (engine._state.nbytes // 8))
    prompt = prompts(1, seed=9)[0]
    # Greedy: all eight end in the same step; then as many different ones as the pool can hold.
    engine.submit(request("a", prompt, seeds=tuple(range(8)), max_tokens=30, temperature=0.0, stop_ids=ANY, keep=True))
    gs = drain(engine)["a"]
    assert len(engine._sessions) == 1
    longer = [*prompt, *gs[0].token_ids.tolist(), 3]
    engine.submit(request("b", longer))
    (h,) = drain(engine)["b"]
    assert h.cached_tokens == len(longer) - 2
    np.testing.assert_allclose(h.logprobs, plain(policy, longer, h), atol=1e-6)


def test_cut_off_turns_are_not_kept() -> None:
    engine = engine_of(policy_of())
    engine.submit(request("a", [1, 2, 3], max_tokens=5, keep=True))
    drain(engine)
    assert engine.stats()["sessions"] == 0
