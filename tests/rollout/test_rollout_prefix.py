"""Laws of kept states: a prompt and a turn are run once, give what a cold engine gives, and never cross versions."""

from __future__ import annotations

import numpy as np
import pytest
from engine_tools import arrays, drain, engine_of, plain, policy_of, prompts, request, same

from rollout.engine.base import FinishReason, Generation
from rollout.engine.native import NativeEngine
from rollout.engine.prefix import Checkpoint
from rollout.engine.weights import describe
from rollout.images import identity

ANY = tuple(range(0, 512, 3))
"""Stop ids that end a turn after a few tokens."""


def talk(engine: NativeEngine, turns: int, seeds: tuple[int, ...] = (1, 2, 3)) -> list[list[Generation]]:
    """A conversation per seed: every turn adds what was sampled and three given tokens."""
    first = prompts(1, longest=9, seed=4)[0]
    engine.submit(request("t0", first, seeds=seeds, max_tokens=40, stop_ids=ANY, keep=True))
    rows = drain(engine)["t0"]
    histories = [[*first, *g.token_ids.tolist()] for g in rows]
    out = [[g] for g in rows]
    for turn in range(1, turns):
        for i, h in enumerate(histories):
            h += [7, 8, 10 + i]
            engine.submit(request(f"t{turn}.{i}", h, seeds=(seeds[i] + turn,), max_tokens=40, stop_ids=ANY, keep=True))
        done = drain(engine)
        for i, h in enumerate(histories):
            (g,) = done[f"t{turn}.{i}"]
            h += g.token_ids.tolist()
            out[i].append(g)
    return out


@pytest.mark.parametrize("preset", ["tiny", "tiny_odd"])
def test_kept_states_change_nothing_but_the_work(preset: str) -> None:
    policy = policy_of(preset)
    engine, without = engine_of(policy, max_context=256), engine_of(policy, max_context=256, prefix_bytes=0)
    kept, cold = talk(engine, 4), talk(without, 4)
    for a, b in zip(kept, cold, strict=True):
        for g, h in zip(a, b, strict=True):
            assert g.finish is FinishReason.STOP
            same(g, h)
    work, cold_work = engine.stats(), without.stats()
    assert cold_work["tokens_cached"] == 0
    assert work["tokens_prefilled"] + work["tokens_cached"] == cold_work["tokens_prefilled"]
    # After the first turn, each turn adds the last sampled token and three given ones.
    first = len(prompts(1, longest=9, seed=4)[0])
    assert work["tokens_prefilled"] == first + 3 * 3 * 4


def test_prompt_routes_say_what_was_run() -> None:
    policy = policy_of()
    kept = talk(engine_of(policy, max_context=256), 2)
    cold = talk(engine_of(policy, max_context=256, prefix_bytes=0), 2)
    for a, b in zip(kept, cold, strict=True):
        g, full = a[1], b[1]
        n = g.cached_tokens
        assert n > 0 and g.prompt_routes is not None and full.prompt_routes is not None
        assert (g.prompt_begin, full.prompt_begin) == (n, 0)
        np.testing.assert_array_equal(g.prompt_routes, full.prompt_routes[n:])


def test_states_never_cross_a_version() -> None:
    engine = engine_of(policy_of(seed=0), max_context=256)
    prompt = prompts(1, seed=5)[0]
    engine.submit(request("a", prompt, max_tokens=40, stop_ids=ANY, keep=True))
    (g,) = drain(engine)["a"]
    assert engine.stats()["prefixes"] > 0
    weights = arrays(policy_of(seed=7))
    engine.load(describe(2, weights), weights)
    assert engine.stats()["prefixes"] == 0
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


def test_the_least_recently_used_is_evicted_and_memory_is_bounded() -> None:
    policy = policy_of()
    asked = prompts(6, seed=8)

    def serve(engine: NativeEngine) -> list[list[int]]:
        longer = []
        for i, p in enumerate(asked):
            engine.submit(request(f"a{i}", p, max_tokens=30, stop_ids=ANY, keep=True))
            (g,) = drain(engine)[f"a{i}"]
            longer.append([*p, *g.token_ids.tolist(), 3])
        return longer

    free = engine_of(policy, max_context=64)
    serve(free)
    budget = free.prefixes.bytes // 2
    engine = engine_of(policy, max_context=64, prefix_bytes=budget)
    longer = serve(engine)
    stats = engine.stats()
    assert 0 < stats["prefix_bytes"] <= budget and stats["prefix_evictions"] > 0
    assert held_bytes(engine) == engine.prefixes.bytes
    cached = {}
    for i in (5, 0):
        p = longer[i]
        engine.submit(request(f"b{i}", p, max_tokens=2))
        (h,) = drain(engine)[f"b{i}"]
        cached[i] = h.cached_tokens > 0
        np.testing.assert_allclose(h.logprobs, plain(policy, p, h), atol=1e-6)
    assert cached == {5: True, 0: False}
    assert engine.prefixes.bytes == held_bytes(engine) <= budget


def held_bytes(engine: NativeEngine) -> int:
    """Counted anew, every tensor that a kept checkpoint leads to once."""
    held: dict[int, Checkpoint] = {}
    for checkpoint in engine.prefixes._held.values():
        part: Checkpoint | None = checkpoint
        while part is not None:
            held[id(part)] = part
            part = part.parent
    tensors = [x for c in held.values() for x in (*c.fixed, *c.grown)]
    ends = sum(c.end.nbytes for c in held.values() if c.end is not None)
    return ends + sum(x.numel() * x.element_size() for x in tensors)


def test_a_use_makes_a_checkpoint_the_last_to_go() -> None:
    engine = engine_of(policy_of(), max_context=64)
    a, b = prompts(2, longest=20, seed=15)
    for name, p in (("a", a), ("b", b), ("a again", a)):
        engine.submit(request(name, p, max_tokens=1))
        drain(engine)
    cache = engine.prefixes
    cache.max_bytes = cache.bytes - 1
    cache._evict()
    assert [c.length for c in cache._held.values()] == [len(a)]


def test_a_budget_of_zero_keeps_nothing_and_changes_nothing() -> None:
    policy = policy_of()
    off, on = engine_of(policy, max_context=256, prefix_bytes=0), engine_of(policy, max_context=256)
    for a, b in zip(talk(off, 3), talk(on, 3), strict=True):
        for g, h in zip(a, b, strict=True):
            same(g, h)
            assert g.cached_tokens == 0
    stats, kept = off.stats(), on.stats()
    assert stats["prefixes"] == stats["prefix_bytes"] == stats["prefix_hits"] == stats["tokens_cached"] == 0
    assert stats["tokens_distinct"] == kept["tokens_distinct"] == kept["tokens_prefilled"] < stats["tokens_prefilled"]


def test_siblings_of_a_prompt_share_its_end() -> None:
    """In one request that finds too few rows, and in requests of their own: the prompt is run once."""
    policy = policy_of()
    prompt = prompts(1, longest=20, seed=16)[0]
    cold = engine_of(policy)
    cold.submit(request("g", prompt, seeds=tuple(range(6))))
    want = drain(cold)["g"]
    engine = engine_of(policy, max_batch=2)
    engine.submit(request("g", prompt, seeds=tuple(range(4))))
    got = drain(engine)["g"]
    for i in (4, 5):
        engine.submit(request(f"s{i}", prompt, seeds=(i,)))
        (g,) = drain(engine)[f"s{i}"]
        assert g.cached_tokens == len(prompt)
        got.append(g)
    for a, b in zip(got, want, strict=True):
        same(a, b)
        assert a.prompt_routes is not None and b.prompt_routes is not None
        np.testing.assert_array_equal(a.prompt_routes, b.prompt_routes)  # replay loses nothing
    stats = engine.stats()
    assert stats["tokens_prefilled"] == stats["tokens_distinct"] == len(prompt)
    assert [g.cached_tokens for g in got] == [0] * 4 + [len(prompt)] * 2


def test_branches_of_a_conversation_hold_its_latents_once() -> None:
    policy = policy_of()
    engine = engine_of(policy, max_context=256)
    talk(engine, 6, seeds=(1,))
    deepest = max(engine.prefixes._held.values(), key=lambda c: c.length)
    parts: list[Checkpoint] = []
    part: Checkpoint | None = deepest
    while part is not None:
        parts.append(part)
        part = part.parent
    assert len(parts) >= 6
    assert sum(p.grown[0].shape[1] for p in parts) == deepest.length
    assert held_bytes(engine) == engine.prefixes.bytes


def test_an_evicted_turn_leaves_its_latents_to_those_that_continue_it() -> None:
    policy = policy_of()
    engine = engine_of(policy, max_context=256)
    (turns,) = talk(engine, 4, seeds=(1,))
    cache = engine.prefixes
    last = list(cache._held.values())[-1]
    while len(cache) > 1:  # all but the last turn
        cache.max_bytes = cache.bytes - 1
        cache._evict()
    assert list(cache._held.values()) == [last] and held_bytes(engine) == cache.bytes
    first = prompts(1, longest=9, seed=4)[0]
    history = list(first)
    for i, g in enumerate(turns):
        history += ([] if i == 0 else [7, 8, 10]) + g.token_ids.tolist()
    engine.submit(request("next", [*history, 5]))
    (g,) = drain(engine)["next"]
    assert g.cached_tokens == last.length == len(history) - 1
    np.testing.assert_allclose(g.logprobs, plain(policy, [*history, 5], g), atol=1e-6)
    cache.clear()
    assert cache.bytes == 0 and len(cache) == 0 and not last.grown


def test_a_group_over_many_turns_prefills_what_is_distinct() -> None:
    """The law of the benchmark `prefix`, smaller: a group of 4, 8 turns, counted by a trie of all prompts."""
    policy = policy_of()
    engine = engine_of(policy, max_context=512)
    rng = np.random.default_rng(3)
    first = rng.integers(0, 512, 200).tolist()
    trie: set[tuple[int, ...]] = set()
    histories = {i: list(first) for i in range(4)}
    for turn in range(8):
        if turn == 0:
            asked = [request("t0", first, seeds=tuple(range(4)), max_tokens=60, stop_ids=ANY, keep=True)]
        else:
            asked = [
                request(f"t{turn}.{i}", h, seeds=(100 * turn + i,), max_tokens=60, stop_ids=ANY, keep=True)
                for i, h in histories.items()
            ]
        for r in asked:
            ids = r.prompt_ids.tolist()
            trie.update(tuple(ids[: n + 1]) for n in range(len(ids)))
            engine.submit(r)
        done = drain(engine)
        for i, h in histories.items():
            g = done["t0"][i] if turn == 0 else done[f"t{turn}.{i}"][0]
            assert g.finish is FinishReason.STOP
            h += g.token_ids.tolist() + rng.integers(0, 512, 12).tolist()
    stats = engine.stats()
    assert stats["tokens_prefilled"] == 200 + 7 * 4 * 13 <= 1.05 * len(trie)  # 12 told, and the one sampled last
    assert stats["prefix_hits"] == 7 * 4 and stats["prefix_lookups"] == 7 * 4 + 1
    assert stats["tokens_distinct"] == stats["tokens_prefilled"]


def test_after_an_update_no_old_checkpoint_is_found_and_its_memory_is_free() -> None:
    engine = engine_of(policy_of(seed=0), max_context=256)
    talk(engine, 3)
    before = engine.stats()
    assert before["prefix_bytes"] > 0 and before["prefix_hits"] > 0
    old = list(engine.prefixes._held.values())
    weights = arrays(policy_of(seed=7))
    engine.load(describe(2, weights), weights)
    assert engine.stats()["prefix_bytes"] == 0 and all(not c.fixed and not c.grown for c in old)
    first = prompts(1, longest=9, seed=4)[0]
    engine.submit(request("again", first, seeds=(1, 2, 3), max_tokens=4))
    for g in drain(engine)["again"]:
        assert g.cached_tokens == 0
        np.testing.assert_allclose(g.logprobs, plain(policy_of(seed=7), first, g), atol=1e-6)
    assert engine.stats()["prefix_hits"] == 0


def test_a_checkpoint_of_another_version_is_not_found() -> None:
    """By its key alone: what `clear` forgets would not serve either."""
    engine = engine_of(policy_of(), max_context=64)
    prompt = prompts(1, seed=17)[0]
    engine.submit(request("a", prompt))
    drain(engine)
    assert engine.prefixes.find(1, identity(np.array(prompt, np.int32))) is not None
    assert engine.prefixes.find(2, identity(np.array(prompt, np.int32))) is None


def test_turns_that_end_alike_are_kept_once() -> None:
    policy = policy_of()
    engine = engine_of(policy, max_batch=8, max_context=64)
    prompt = prompts(1, seed=9)[0]
    engine.submit(request("a", prompt, seeds=tuple(range(8)), max_tokens=30, temperature=0.0, stop_ids=ANY, keep=True))
    gs = drain(engine)["a"]
    assert len(gs[0].token_ids) > 1 and len(engine.prefixes) == 2  # the prompt's end and the turn's
    longer = [*prompt, *gs[0].token_ids.tolist(), 3]
    for id in ("b", "c"):  # it serves any number of times
        engine.submit(request(id, longer))
        (h,) = drain(engine)[id]
        assert h.cached_tokens == len(longer) - 2
        np.testing.assert_allclose(h.logprobs, plain(policy, longer, h), atol=1e-6)


def test_cut_off_turns_are_not_kept() -> None:
    engine = engine_of(policy_of())
    engine.submit(request("a", [1, 2, 3], max_tokens=5, keep=True))
    drain(engine)
    assert engine.stats()["prefixes"] == 1  # of the prompt
