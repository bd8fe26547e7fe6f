"""Laws of weight updates: verified before served, no trace of older weights, every token tagged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_tools import arrays, drain, engine_of, plain, policy_of, prompts, request, same

from model import K3Config, Policy, QuantSpec
from rollout.engine.base import EngineNotReady, FinishReason, WeightManifest
from rollout.engine.weights import describe, verify

OLD, NEW = 0, 7


def weights_of(seed: int) -> tuple[WeightManifest, dict[str, np.ndarray]]:
    tensors = arrays(policy_of(seed=seed))
    return describe(2, tensors), tensors


def test_nothing_is_generated_before_weights_are_verified() -> None:
    engine = engine_of(policy_of(), version=None)
    with pytest.raises(EngineNotReady):
        engine.submit(request("a", [1, 2, 3]))
    assert engine.stats()["version"] == -1


def test_after_an_update_the_engine_equals_a_cold_one() -> None:
    prompt = prompts(1, seed=1)[0]
    engine, cold = engine_of(policy_of(seed=OLD)), engine_of(policy_of(seed=NEW), version=2)
    ask = request("a", prompt, seeds=(1, 2, 3), keep=True)
    engine.submit(ask)
    before = drain(engine)["a"]
    assert engine.load(*weights_of(NEW)) == 2
    assert engine.stats()["prefixes"] == 0
    engine.submit(ask)
    cold.submit(ask)
    for a, b in zip(drain(engine)["a"], drain(cold)["a"], strict=True):
        same(a, b)
        assert a.cached_tokens == 0 and set(a.versions.tolist()) == {2}
    assert [g.token_ids.tolist() for g in before] != [g.token_ids.tolist() for g in drain_again(engine, ask)]


def drain_again(engine, ask):  # type: ignore[no-untyped-def]
    engine.submit(replace(ask, id="again"))
    return drain(engine)["again"]


def test_a_push_of_what_is_served_forgets_nothing() -> None:
    """An engine that is too busy to say which version it serves is given it again."""
    engine = engine_of(policy_of(seed=OLD), max_context=96)
    engine.load(*weights_of(NEW))
    prompt = prompts(1, seed=1)[0]
    engine.submit(request("a", prompt, keep=True))
    drain(engine)
    engine.submit(request("b", [5, *prompt], max_tokens=30))
    for _ in range(9):
        engine.step()
    before = engine.stats()
    assert engine.load(*weights_of(NEW)) == 2
    after = engine.stats()
    assert after["prefixes"] == before["prefixes"] > 0 and after["tokens_recomputed"] == after["updates"] == 0
    assert drain(engine)["b"][0].finish is FinishReason.LENGTH


@pytest.mark.parametrize("quant", [QuantSpec("none", "none"), QuantSpec()])
def test_three_pushes_of_the_same_weights_equal_one(quant: QuantSpec) -> None:
    # With rounded experts a second load into already converted tensors would show.
    source = Policy(K3Config.preset("tiny"), quant)
    source.reset_parameters(3)
    once, thrice = engine_of(source, version=3), engine_of(source)
    tensors = arrays(source)
    for version in (2, 3):
        thrice.load(describe(version, tensors), tensors)
    for engine in (once, thrice):
        engine.submit(request("a", [5, 6, 7], seeds=(1, 2)))
    for a, b in zip(drain(once)["a"], drain(thrice)["a"], strict=True):
        same(a, b, 0.0)


def test_rounded_experts_follow_a_push() -> None:
    source = Policy(K3Config.preset("tiny"), QuantSpec())
    source.reset_parameters(3)
    engine = engine_of(source)
    tensors = {n: a * (16.0 if ".experts." in n else 1.0) for n, a in arrays(source).items()}
    engine.load(describe(2, tensors), tensors)
    fresh = Policy(K3Config.preset("tiny"), QuantSpec())
    fresh.load_named_weights(tensors)
    engine.submit(request("a", [5, 6, 7], seeds=(1, 2)))
    for g in drain(engine)["a"]:
        np.testing.assert_allclose(g.logprobs, plain(fresh, [5, 6, 7], g), atol=1e-4)


def broken(kind: str) -> tuple[WeightManifest, dict[str, np.ndarray], str]:
    manifest, tensors = weights_of(NEW)
    name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    if kind == "bit":
        tensors[name].view(np.uint8).reshape(-1)[17] ^= 1
    elif kind == "missing":
        del tensors[name]
    elif kind == "unknown":
        tensors["other"] = name_array = tensors[name]
        manifest.tensors["other"] = describe(2, {"other": name_array}).tensors["other"]
        name = "other"
    elif kind == "shape":
        tensors[name] = tensors[name].reshape(1, -1)
    elif kind == "dtype":
        tensors[name] = tensors[name].astype(np.float16)
    elif kind == "reinterpreted":
        tensors[name] = tensors[name].view(np.int64)
    elif kind == "model shape":
        tensors[name] = tensors[name].reshape(1, -1)
        manifest.tensors[name] = describe(2, {name: tensors[name]}).tensors[name]
    elif kind == "swapped":
        other = name.replace("experts.3", "experts.4")
        tensors[name], tensors[other] = tensors[other], tensors[name]
    return manifest, tensors, name


@pytest.mark.parametrize(
    "kind", ["bit", "missing", "unknown", "shape", "dtype", "reinterpreted", "model shape", "swapped"]
)
def test_a_wrong_push_is_refused_by_name_and_the_engine_then_refuses(kind: str) -> None:
    engine = engine_of(policy_of(seed=OLD))
    engine.submit(request("flying", [1, 2], max_tokens=50))
    engine.step()
    manifest, tensors, name = broken(kind)
    with pytest.raises(ValueError, match=name.replace("experts.3", r"experts\.[34]") if kind == "swapped" else name):
        engine.load(manifest, tensors)
    assert not engine.busy and engine.stats()["version"] == -1
    with pytest.raises(EngineNotReady, match="version 2 was refused"):
        engine.submit(request("a", [1, 2]))
    engine.load(*weights_of(NEW))  # a right push heals it
    engine.submit(request("flying", [1, 2]))
    same(drain(engine)["flying"][0], drain_of(NEW, [1, 2])[0])


def drain_of(seed: int, prompt: list[int]):  # type: ignore[no-untyped-def]
    cold = engine_of(policy_of(seed=seed), version=2)
    cold.submit(request("cold", prompt))
    return drain(cold)["cold"]


def test_verification_comes_before_any_tensor_is_written() -> None:
    engine = engine_of(policy_of(seed=OLD))
    before = {n: w.clone() for n, w in engine.policy.named_weights()}
    manifest, tensors, _ = broken("bit")
    with pytest.raises(ValueError):
        engine.load(manifest, tensors)
    assert all(torch.equal(w, before[n]) for n, w in engine.policy.named_weights())


def test_one_version_cannot_be_two_weight_sets() -> None:
    engine = engine_of(policy_of(seed=OLD), version=2)
    with pytest.raises(ValueError, match="version 2 is already served"):
        engine.load(*weights_of(NEW))


def test_sequences_in_flight_continue_on_the_new_weights_and_say_so() -> None:
    old, new = policy_of(seed=OLD), policy_of(seed=NEW)
    asked = {f"r{i}": p for i, p in enumerate(prompts(5, longest=12, seed=2))}
    engine, got = engine_of(old, max_batch=4), {}
    for id, p in asked.items():
        engine.submit(request(id, p, seeds=(3, 4), max_tokens=6 if id == "r0" else 14))
    for _ in range(8):
        got.update(engine.step())
    engine.load(*weights_of(NEW))
    got.update(drain(engine))
    mixed = 0
    for id, p in asked.items():
        for g in got[id]:
            cut = int((g.versions == 1).sum())
            assert g.versions.tolist() == [1] * cut + [2] * (len(g.versions) - cut)
            assert g.finish is FinishReason.LENGTH
            # Each token's log-prob is that of its own version on the whole sequence before it.
            want = np.concatenate([plain(old, p, g)[:cut], plain(new, p, g)[cut:]])
            np.testing.assert_allclose(g.logprobs, want, atol=1e-6)
            mixed += 0 < cut < len(g.versions)
    assert mixed >= 2


def test_manifest_checksum_covers_names_and_content() -> None:
    a, b = np.zeros(3, np.float32), np.ones(3, np.float32)
    sums = {describe(1, t).checksum for t in ({"x": a, "y": b}, {"x": b, "y": a}, {"x": a, "z": b}, {"x": a})}
    assert len(sums) == 4
    verify(describe(1, {"x": a}), {"x": a}, {"x": (3,)})
