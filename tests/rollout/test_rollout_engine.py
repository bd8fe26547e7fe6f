"""Laws of the native engine: what it samples is what the policy says, whatever else is in the batch."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_tools import drain, engine_of, plain, policy_of, prompts, request, same

from model import K3Config, Policy, QuantSpec
from model.logprob import token_logprobs
from rollout.engine.base import FinishReason, Generation
from rollout.engine.sampling import sample, uniforms
from rollout.trajectory import NO_ROUTE


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-4), (torch.float64, 1e-7)])
@pytest.mark.parametrize("preset", ["tiny", "tiny_odd"])
def test_log_probs_equal_a_plain_forward(preset: str, dtype: torch.dtype, tolerance: float) -> None:
    # In float64 what is left is the rounding of the stored float32.
    policy = policy_of(preset, dtype)
    engine = engine_of(policy, max_batch=6)
    asked = prompts(5)
    for i, p in enumerate(asked):
        engine.submit(request(f"r{i}", p, seeds=(i, i + 100), max_tokens=6 + i))
    out = drain(engine)
    for i, p in enumerate(asked):
        for g in out[f"r{i}"]:
            assert len(g.token_ids) == 6 + i and g.finish is FinishReason.LENGTH
            want = plain(policy, p, g)
            np.testing.assert_allclose(g.logprobs, want, atol=tolerance, rtol=tolerance)


def test_routes_are_those_of_a_plain_forward_and_align_with_the_tokens() -> None:
    policy = policy_of("tiny_odd")
    engine = engine_of(policy)
    prompt = prompts(1, longest=9, seed=3)[0]
    engine.submit(request("a", prompt, seeds=(1, 2), max_tokens=70))
    for g in drain(engine)["a"]:
        ids = torch.tensor([[*prompt, *g.token_ids.tolist()]])
        want = policy.forward(ids, torch.tensor([ids.shape[1]])).routes[0].numpy()
        assert g.routes is not None and g.prompt_routes is not None
        got = np.concatenate([g.prompt_routes, g.routes]).astype(np.int64)
        assert got.shape == want.shape
        np.testing.assert_array_equal(got[:-1], want[:-1])
        assert (got[-1] == NO_ROUTE).all()  # the last sampled token was never run


@pytest.mark.parametrize("max_batch", [1, 3, 8, 64])
def test_batch_size_and_neighbours_change_nothing(max_batch: int) -> None:
    policy = policy_of()
    asked = [request(f"r{i}", p, seeds=(i,), max_tokens=3 + 7 * (i % 3)) for i, p in enumerate(prompts(10))]
    alone = {}
    for r in asked:
        engine = engine_of(policy, max_batch=1)
        engine.submit(r)
        alone |= drain(engine)
    together = engine_of(policy, max_batch=max_batch)
    for r in asked:
        together.submit(r)
    for id, (g,) in drain(together).items():
        same(g, alone[id][0])


def test_decoding_is_the_same_bit_for_bit_whatever_the_number_of_rows() -> None:
    # float32 and rounded experts: here a last bit that differs may become another expert or another code.
    policy = Policy(K3Config.preset("tiny"), QuantSpec())
    policy.reset_parameters(5)
    prompt = prompts(1, longest=20, seed=13)[0]
    many = engine_of(policy, max_batch=64)
    many.submit(request("g", prompt, seeds=tuple(range(39)), max_tokens=30))
    together = drain(many)["g"]
    for i in (0, 17, 38):
        alone = engine_of(policy, max_batch=1)
        alone.submit(request("g", prompt, seeds=(i,), max_tokens=30))
        (g,) = drain(alone)["g"]
        assert g.logprobs.tobytes() == together[i].logprobs.tobytes()
        same(g, together[i])


def test_order_and_moment_of_admission_change_nothing() -> None:
    policy = policy_of()
    asked = [
        request(f"r{i}", p, seeds=(i, 50 + i), max_tokens=4 + 3 * (i % 4)) for i, p in enumerate(prompts(9, seed=1))
    ]
    forward = engine_of(policy, max_batch=5)
    for r in asked:
        forward.submit(r)
    want = drain(forward)
    rng = np.random.default_rng(0)
    for _ in range(3):
        engine, got = engine_of(policy, max_batch=5), {}
        for i in rng.permutation(len(asked)):
            engine.submit(asked[i])
            for _ in range(rng.integers(0, 6)):
                got.update(engine.step())
        got.update(drain(engine))
        assert got.keys() == want.keys()
        for id in want:
            for a, b in zip(got[id], want[id], strict=True):
                same(a, b)


def test_a_forked_prompt_equals_separate_prompts_and_is_prefilled_once() -> None:
    policy = policy_of()
    prompt = prompts(1, longest=20, seed=5)[0]
    forked = engine_of(policy, max_batch=8)
    forked.submit(request("g", prompt, seeds=tuple(range(8))))
    together = drain(forked)["g"]
    assert forked.stats()["tokens_prefilled"] == len(prompt)
    for i, g in enumerate(together):
        engine = engine_of(policy)
        engine.submit(request("one", prompt, seeds=(i,)))
        same(drain(engine)["one"][0], g)
    assert len({tuple(g.token_ids.tolist()) for g in together}) > 4  # seeds differ, so do samples


def test_more_continuations_than_rows_are_served_in_turns() -> None:
    policy = policy_of()
    prompt = prompts(1, seed=6)[0]
    wide, narrow = engine_of(policy, max_batch=8), engine_of(policy, max_batch=3)
    for engine in (wide, narrow):
        engine.submit(request("g", prompt, seeds=tuple(range(7)), max_tokens=9))
    for a, b in zip(drain(wide)["g"], drain(narrow)["g"], strict=True):
        same(a, b)


def test_an_episode_waits_once_and_not_before_each_of_its_turns() -> None:
    engine = engine_of(policy_of(), max_batch=1)
    asked = [request(f"r{i}", p, max_tokens=3) for i, p in enumerate(prompts(5))]
    assert all(a.began <= b.began for a, b in itertools.pairwise(asked))
    for r in asked[:4]:
        engine.submit(r)
    ended = [id for _ in range(2) for id, _ in engine.step()]
    engine.submit(replace(asked[4], id="turn2", began=asked[0].began))  # the first episode goes on
    ended += list(drain(engine))
    assert ended == ["r0", "turn2", "r1", "r2", "r3"]


@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.0, 1.3])
def test_log_probs_are_of_the_distribution_that_was_sampled(temperature: float) -> None:
    policy = policy_of()
    engine = engine_of(policy)
    prompt = prompts(1, seed=7)[0]
    engine.submit(request("t", prompt, seeds=(1, 2, 3), temperature=temperature))
    for g in drain(engine)["t"]:
        np.testing.assert_allclose(np.exp(plain(policy, prompt, g, temperature) - g.logprobs), 1.0, atol=1e-5)


def test_scaled_log_prob_of_a_known_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    _, logp = sample(logits, np.array([0.5], np.float32), np.zeros(1))
    assert logp.item() == pytest.approx(-0.14293, abs=1e-5)  # not -0.40761 (raw), not -0.81521 (divided)


def test_log_probs_are_bit_for_bit_those_of_the_shared_scorer() -> None:
    logits = 5 * torch.randn(64, 97, generator=torch.Generator().manual_seed(0))
    temperature = np.linspace(0.3, 1.7, 64, dtype=np.float32)
    for wide in (logits, logits.double(), logits.bfloat16()):
        tokens, logp = sample(wide, temperature, uniforms(np.arange(64, dtype=np.uint64), np.zeros(64)))
        assert torch.equal(logp, token_logprobs(wide, tokens, torch.from_numpy(temperature))[0])


@pytest.mark.parametrize("u", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_interval_give_tokens_of_positive_probability(u: float) -> None:
    logits = torch.tensor([[-1e9, 0.0, 1.0, -1e9], [-1e9, -1e9, 0.0, -1e9]])
    tokens, logp = sample(logits, np.ones(2, np.float32), np.full(2, u))
    assert tokens.tolist() == [1 if u == 0.0 else 2, 2] and torch.isfinite(logp).all()


def test_sample_frequencies_follow_the_temperature() -> None:
    n, t = 20_000, 0.7
    logits = torch.tensor([2.0, 1.0, 0.0, -1e9])
    u = uniforms(np.arange(n, dtype=np.uint64), np.full(n, 17))
    tokens, _ = sample(logits.expand(n, 4), np.full(n, t, np.float32), u)
    want = torch.softmax(logits / t, 0).numpy()
    got = np.bincount(tokens.numpy(), minlength=4) / n
    np.testing.assert_allclose(got, want, atol=4 * 0.5 / np.sqrt(n))
    assert got[3] == 0


def test_uniforms_are_in_range_spread_and_independent_of_the_batch() -> None:
    seeds = np.array([0, 1, 2, 2**63 - 1, 2**64 - 1], np.uint64)
    grid = np.array([uniforms(np.full(2000, s), np.arange(2000)) for s in seeds])
    assert grid.min() >= 0.0 and grid.max() < 1.0
    np.testing.assert_allclose(grid.mean(1), 0.5, atol=0.03)
    assert np.abs(np.corrcoef(grid) - np.eye(5)).max() < 0.1
    assert np.abs([np.corrcoef(g[:-1], g[1:])[0, 1] for g in grid]).max() < 0.1
    assert not np.isin(grid[0], grid[1]).any()  # a neighbouring seed is not the same stream, shifted
    one = uniforms(seeds[3:4], np.array([1234]))[0]
    assert one == grid[3, 1234]


def test_greedy_takes_the_largest_logit_and_ignores_the_seed() -> None:
    policy = policy_of()
    prompt = prompts(1, seed=8)[0]
    engine = engine_of(policy)
    engine.submit(request("z", prompt, seeds=(1, 2), temperature=0.0))
    a, b = drain(engine)["z"]
    same(a, b)
    ids = torch.tensor([[*prompt, *a.token_ids.tolist()]])
    hidden = policy.forward(ids, torch.tensor([ids.shape[1]])).hidden[0]
    assert policy.logits(hidden[len(prompt) - 1 : -1]).argmax(-1).tolist() == a.token_ids.tolist()
    np.testing.assert_allclose(a.logprobs, plain(policy, prompt, a), atol=1e-6)  # scored at temperature 1


def test_mixed_temperatures_and_seeds_stay_with_their_rows() -> None:
    policy = policy_of()
    asked = [
        request(f"r{i}", p, seeds=(i,), max_tokens=2 + 5 * (i % 3), temperature=(0.0, 0.6, 1.4)[i % 3])
        for i, p in enumerate(prompts(7, seed=9))
    ]
    engine = engine_of(policy, max_batch=4)
    for r in asked:
        engine.submit(r)
    out = drain(engine)
    for r in asked:
        one = engine_of(policy, max_batch=1)
        one.submit(r)
        same(out[r.id][0], drain(one)[r.id][0])


def test_finish_reasons() -> None:
    policy = policy_of()
    prompt = prompts(1, longest=10, seed=10)[0]
    engine = engine_of(policy, max_context=40)
    engine.submit(request("free", prompt, max_tokens=20))
    ids = drain(engine)["free"][0].token_ids.tolist()
    stop = next(t for t in ids[3:] if t not in ids[:3])
    at = ids.index(stop) + 1

    def finish(**how: object) -> tuple[list[int], FinishReason]:
        engine.submit(request("x", prompt, **how))  # type: ignore[arg-type]
        g = drain(engine)["x"][0]
        return g.token_ids.tolist(), g.finish

    # The stop token is part of the output; any of several; the others do not stop.
    assert finish(max_tokens=20, stop_ids=(stop,)) == (ids[:at], FinishReason.STOP)
    assert finish(max_tokens=20, stop_ids=(511 if 511 not in ids else 510, stop, 509)) == (ids[:at], FinishReason.STOP)
    # On the last token that is allowed, a stop is a stop.
    assert finish(max_tokens=at, stop_ids=(stop,)) == (ids[:at], FinishReason.STOP)
    assert finish(max_tokens=at - 1, stop_ids=(stop,)) == (ids[: at - 1], FinishReason.LENGTH)
    assert finish(max_tokens=1) == (ids[:1], FinishReason.LENGTH)
    out, reason = finish(max_tokens=1000)
    assert reason is FinishReason.CONTEXT and len(prompt) + len(out) == 40
    out, reason = finish(max_tokens=40 - len(prompt))
    assert reason is FinishReason.LENGTH and len(prompt) + len(out) == 40


def test_requests_that_cannot_be_served_are_refused() -> None:
    engine = engine_of(policy_of(), max_context=16)
    for prompt in ([], [1] * 16):
        with pytest.raises(ValueError, match="does not fit"):
            engine.submit(request("p", prompt))
    for how in ({"max_tokens": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"seeds": ()}):
        with pytest.raises(ValueError):
            engine.submit(request("p", [1, 2], **how))  # type: ignore[arg-type]
    engine.submit(request("p", [1, 2]))
    with pytest.raises(ValueError, match="in flight"):
        engine.submit(request("p", [1, 2]))
    assert list(drain(engine)) == ["p"]


def test_abort_gives_back_what_was_sampled_and_leaves_the_others_alone() -> None:
    policy = policy_of()
    p, q = prompts(2, seed=11)
    engine = engine_of(policy, max_batch=3)
    engine.submit(request("gone", p, seeds=(1, 2, 3, 4), max_tokens=30))
    engine.submit(request("stays", q, seeds=(5, 6), max_tokens=10))
    got: dict = {}
    for _ in range(4):
        got.update(engine.step())
    assert engine.abort("gone") and not engine.abort("gone") and not engine.abort("unknown")
    got.update(drain(engine))
    assert [g.finish for g in got["gone"]] == [FinishReason.ABORT] * 4
    assert [len(g.token_ids) for g in got["gone"]] == [5, 5, 5, 0]
    np.testing.assert_allclose(got["gone"][0].logprobs, plain(policy, p, got["gone"][0]), atol=1e-6)
    alone = engine_of(policy)
    alone.submit(request("stays", q, seeds=(5, 6), max_tokens=10))
    for a, b in zip(got["stays"], drain(alone)["stays"], strict=True):
        same(a, b)


def test_long_prompts_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of("tiny_odd")
    asked = [request(f"r{i}", p, seeds=(i,), max_tokens=4) for i, p in enumerate(prompts(6, longest=60, seed=12))]
    want = {}
    for pieces in (4096, 16):
        monkeypatch.setattr("rollout.engine.prefill.MAX_TOKENS", pieces)
        engine = engine_of(policy)
        for r in asked:
            engine.submit(r)
        got = drain(engine)
        for id in want:
            same(got[id][0], want[id][0])
            np.testing.assert_array_equal(got[id][0].prompt_routes, want[id][0].prompt_routes)
        want = got


def test_progress_is_the_beginning_of_what_comes() -> None:
    engine = engine_of(policy_of(), max_batch=2)
    engine.submit(request("a", prompts(1)[0], seeds=(1, 2, 3), max_tokens=70))
    assert engine.progress("b") == [] and [len(ids) for ids, _ in engine.progress("a")] == [0, 0, 0]
    seen = []
    out: dict = {}
    while engine.busy:
        out.update(engine.step())
        seen.append(engine.progress("a"))
    assert seen.pop() == [], "it has ended"
    lengths = [[len(ids) for ids, _ in state] for state in seen]
    assert lengths == sorted(lengths) and lengths[0][2] == 0 < lengths[-1][2], "the third one waited for a row"
    for state in seen:
        for (ids, logps), g in zip(state, out["a"], strict=True):
            np.testing.assert_array_equal(ids, g.token_ids[: len(ids)])
            np.testing.assert_array_equal(logps, g.logprobs[: len(ids)])


@pytest.mark.parametrize("tokens", [0, 3, 5000])
def test_a_continuation_arrives_as_it_was_sent(tokens: int) -> None:
    """Small ones travel as bytes, large ones as arrays."""
    rng = np.random.default_rng(tokens)
    routes = rng.integers(0, 900, (tokens, 3, 4)).astype(np.uint16)
    ids, logprobs = rng.integers(0, 99, tokens).astype(np.int32), rng.standard_normal(tokens).astype(np.float32)
    for sent in (
        Generation(ids, logprobs, 0 * ids, FinishReason.STOP, routes, routes[:2], 7),
        Generation(ids, logprobs, 0 * ids, FinishReason.ABORT, picks=routes.astype(np.int32)),
    ):
        came = pickle.loads(pickle.dumps(sent))
        assert type(came.finish) is FinishReason
        for field in dataclasses.fields(Generation):
            a, b = getattr(sent, field.name), getattr(came, field.name)
            assert type(a) is type(b)
            if isinstance(a, np.ndarray):
                assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            else:
                assert a == b
