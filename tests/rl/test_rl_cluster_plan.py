"""Laws of the cluster planner: nothing is lost when it is divided, the published sizes, and the smallest fit is one."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import yaml

from model.config import K3Config
from rl.checks import Verdict
from rl.cluster_plan import MOMENTS, learner_need, rollout_need, smallest_engine, smallest_learner
from rl.compose import compose
from rl.config import ClusterConfig, Config, ModelConfig
from rl.plan import Plan, plan
from rl.policy_size import policy_size

K3, K31 = K3Config.preset("k3"), K3Config.preset("k31_pro")
GB = 10**9
WHOLE = ClusterConfig(gpus=896, expert_parallel=1, zero_stage=3)
WORDS = ("model=k31_pro", "policy.init=scratch")


@cache
def composed(*words: str) -> Config:
    return compose([*WORDS, *words])


def planned(*words: str) -> Plan:
    config = deepcopy(composed(*[w for w in words if not w.startswith("cluster.")]))
    for word in words:
        if word.startswith("cluster."):
            key, _, value = word.removeprefix("cluster.").partition("=")
            setattr(config.cluster, key, yaml.safe_load(value) if value != "nan" else float(value))
    return plan(config, 2, 24 * GB, 0)


def cluster_checks(*words: str) -> list[tuple[Verdict, str]]:
    return [(c.verdict, c.text) for c in planned(*words).checks if c.about == "cluster"]


@pytest.mark.parametrize(("ep", "optimizer"), list(product([1, 7, 64, 896], MOMENTS)))
def test_what_is_divided_adds_up_over_all_gpus(ep: int, optimizer: str) -> None:
    every = K31.param_count() + K31.vision_count()
    routed = K31.part_counts()["routed_experts"]
    c = replace(WHOLE, expert_parallel=ep)
    for stage in range(4):
        need = learner_need(K31, replace(c, zero_stage=stage), optimizer, rounded=True).parts
        replicas = lambda part, least, stage=stage: 1 if stage >= least else 896
        for part, least, size in (
            ("optimizer", 1, 4 * MOMENTS[optimizer] + 4),  # float32 moments and masters
            ("gradients", 2, 4),
        ):
            experts = 1 if stage >= least else 896 // ep
            total = size * ((every - routed) * replicas(part, least) + routed * experts)
            assert need[part] * 896 == pytest.approx(total, rel=1e-6), (part, stage)
        if stage < 3:
            assert need["parameters"] == pytest.approx(2 * (every - routed + routed / ep), rel=1e-6)
            assert need["rounded experts"] == pytest.approx(2 * routed / ep, rel=1e-6)
    # ZeRO-3 holds a share of everything, and two layers of which each has its experts' part.
    layer = (every - routed - 2 * K31.vocab_size * K31.hidden_size) / 93 + routed / 92 / ep
    assert need["parameters"] == pytest.approx(2 * every / 896 + 2 * 2 * layer, rel=1e-6)


def test_dtypes_count_as_their_bytes() -> None:
    of = lambda **change: learner_need(K31, replace(WHOLE, **change), "adamw", rounded=False).parts
    base = of()
    assert base["rounded experts"] == 0
    assert of(gradients="bf16")["gradients"] * 2 == pytest.approx(base["gradients"], abs=2)
    assert of(moments="bf16")["optimizer"] * 12 == pytest.approx(base["optimizer"] * 8, rel=1e-6)
    full = of(weights="fp32")  # its own master
    assert full["optimizer"] * 12 == pytest.approx(base["optimizer"] * 8, rel=1e-6)
    assert full["parameters"] == pytest.approx(2 * base["parameters"], abs=2)


def test_activations_are_of_one_chunk_and_what_chunks_hand_on_grows_with_them() -> None:
    of = lambda **change: learner_need(K31, replace(WHOLE, **change), "adamw", rounded=False)
    long, longer = of(sequence=2**17), of(sequence=2**20)
    assert long.parts["activations"] == longer.parts["activations"]
    assert of(chunk=8192).parts["activations"] == 2 * long.parts["activations"]
    assert of(micro_batch=3).parts["activations"] == 3 * long.parts["activations"]
    assert of(recompute=False).parts["activations"] > 10 * long.parts["activations"]
    assert of(chunk=2**17).parts["carried states"] == 0  # one chunk hands nothing on
    # 256 starts of chunks, and 33 GiB of latents and index keys with as many gradients.
    state = 434_110_464 + 15_261_696
    assert longer.parts["carried states"] == 256 * state + 2 * 33 * 2**30 and longer.host == 0
    away = of(sequence=2**20, offload=True)
    assert away.host == longer.parts["carried states"]
    assert away.parts["carried states"] == 2 * state + 2 * 33 * 2**30 // 24
    # By hand, at 4,096 tokens: 186 sublayers' inputs and 8 sources in bf16, a layer's 70 float32, the logits thrice.
    assert long.parts["activations"] == 4096 * (2 * 194 * 7168 + 4 * 70 * 7168 + 12 * 163_840)


def test_an_engine_holds_the_released_checkpoint_and_the_published_states() -> None:
    c = ClusterConfig(rollout_gpus=32, rollout_tensor_parallel=32, rollout_batch=1, sequence=2**20)
    need = rollout_need(K3, c)
    assert need.parts["weights"] * 32 == pytest.approx(1.561e12, rel=1e-3)
    assert need.parts["decode states"] == pytest.approx(27 * 2**30 + (434_110_464 + 15_261_696) / 32, abs=1)
    # Groups of 8: 32 sequences over 4 of them; heads are divided by 8, latents are not.
    need = rollout_need(K31, replace(c, rollout_tensor_parallel=8, rollout_batch=32, latent="fp8_ds_mla", index="fp8"))
    assert need.parts["decode states"] == pytest.approx(
        8 * ((434_110_464 + 15_261_696) / 8 + (15_744 + 3_168) * 2**20), abs=1
    )
    assert rollout_need(K31, replace(c, rollout_weights="bf16")).parts["weights"] * 32 == pytest.approx(
        2 * (K31.param_count() + K31.vision_count()), rel=1e-6
    )
    # 896 experts on 100 GPUs: one of them has 9.
    uneven = rollout_need(K3, replace(c, rollout_gpus=100, rollout_tensor_parallel=100)).parts["weights"]
    assert uneven > 9 * 92 * 17_547_264


def _brute_force(model: K3Config, c: ClusterConfig, stages: tuple[int, ...]) -> tuple[int, int, int] | None:
    room = (c.gpu_memory_gb - c.reserve_gb) * 1e9
    for gpus in range(8, 400, 8):
        for stage, ep in product(stages, range(1, model.num_experts + 1)):
            if gpus % ep == 0 and model.num_experts % ep == 0:
                setup = replace(c, gpus=gpus, zero_stage=stage, expert_parallel=ep)
                if learner_need(model, setup, "adamw", True).total <= room:
                    return gpus, stage, ep
    return None


@pytest.mark.parametrize("share", [0.05, 0.11, 0.3, 1.0])
def test_the_smallest_set_up_is_what_trying_all_finds(share: float) -> None:
    model = K3Config.preset("small")
    c = ClusterConfig(sequence=512, chunk=64, reserve_gb=0)
    activations = learner_need(model, c, "adamw", True).parts["activations"]
    c = replace(c, gpu_memory_gb=(activations + share * 18 * model.param_count()) / 1e9)
    for stages in ((0, 1, 2, 3), (0, 1, 2), (2,)):
        want = _brute_force(model, c, stages)
        found = smallest_learner(model, c, "adamw", True, stages)
        if want is None:
            assert found is None or found.gpus > 392 or found.offload
        else:
            assert found is not None and (found.gpus, found.zero_stage, found.expert_parallel) == want
            assert found.chunk == c.chunk and not found.offload


def test_more_gpus_never_need_more_of_each() -> None:
    for stage, ep in product(range(4), (1, 8, 64)):
        sizes = [
            learner_need(K31, replace(WHOLE, gpus=n, zero_stage=stage, expert_parallel=ep), "adamw", True).total
            for n in range(64, 2048, 64)
        ]
        assert sizes == sorted(sizes, reverse=True)
    engines = [rollout_need(K31, replace(WHOLE, rollout_gpus=n)).total for n in range(8, 512, 8)]
    assert engines == sorted(engines, reverse=True)


def test_a_million_tokens_go_to_the_host_before_chunks_shrink() -> None:
    c = ClusterConfig(sequence=2**20)
    found = smallest_learner(K31, c, "tensorwise", True, (3,))
    assert found is not None and found.offload and found.chunk == c.chunk
    tight = smallest_learner(K31, replace(c, gpu_memory_gb=40.0), "tensorwise", True, (3,))
    assert tight is not None and tight.offload and tight.chunk < c.chunk
    assert smallest_learner(K31, replace(c, gpu_memory_gb=9.0), "tensorwise", True, (0, 1, 2, 3)) is None
    assert smallest_engine(K31, replace(c, gpu_memory_gb=40.0)) is None  # latents of one sequence: 33 GiB


def test_an_mtp_layer_counts_and_its_experts_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    more, c = replace(K31, num_nextn_predict_layers=1), ClusterConfig()
    grown = (
        learner_need(more, c, "adamw", True).parts["gradients"] - learner_need(K31, c, "adamw", True).parts["gradients"]
    )
    assert grown == pytest.approx(4 * more.mtp_count() / c.gpus, rel=1e-6)
    monkeypatch.setattr("model.checkpoint_config.architecture", lambda *_: more)
    size = policy_size(ModelConfig())
    assert (size.parameters, size.routed) == (K31.total_count() + more.mtp_count(), K31.routed_count() * 93 // 92)


@pytest.mark.parametrize(
    ("keys", "times"),
    [
        (["cluster.recompute=false", "cluster.chunk=131072"], 3),
        (["cluster.chunk=131072"], 4),
        (["cluster.recompute=false"], 4),
        ([], 5),
    ],
)
def test_what_is_run_again_is_counted_among_the_operations(keys: list[str], times: int) -> None:
    assert f"GFLOP per token on average, in training {times} times that" in planned(*keys).render()


def test_the_plan_says_what_does_not_fit_and_keys_that_do() -> None:
    lacking = planned()
    text = lacking.render()
    for part in ("parameters", "gradients", "optimizer", "activations", "carried states", "decode states", "GFLOP"):
        assert part in text.split("== Cluster")[1], part
    (verdict, advice), (engine, _) = cluster_checks()
    assert verdict == Verdict.FAIL and engine == Verdict.PASS
    assert [f for f in lacking.failures if f.startswith("cluster: ")]
    keys = re.findall(r"cluster\.\w+=\w+", advice.partition(" is the smallest that fits")[0])
    assert any(k.startswith("cluster.gpus=") for k in keys)
    assert [v for v, _ in cluster_checks(*keys)] == [Verdict.PASS, Verdict.PASS]
    gpus = next(int(k.partition("=")[2]) for k in keys if k.startswith("cluster.gpus="))
    fewer = [k for k in keys if "gpus" not in k and "expert_parallel" not in k]
    ((verdict, again), _) = cluster_checks(*fewer, f"cluster.gpus={gpus - 8}", "cluster.expert_parallel=1")
    assert verdict == Verdict.FAIL and f"cluster.gpus={gpus} " in again
    # An engine that does not fit names the one that does.
    ((verdict, advice), _) = cluster_checks(*keys, "cluster.rollout_gpus=8")
    assert verdict == Verdict.FAIL
    enough = re.findall(r"cluster\.rollout_gpus=\d+", advice)
    assert [v for v, _ in cluster_checks(*keys, *enough)] == [Verdict.PASS, Verdict.PASS]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cluster.expert_parallel=48"], "cluster.expert_parallel=48 must divide cluster.gpus=64 and 896 experts"),
        (["cluster.gpus=60"], "use 1 or 2 or 4"),
        (["cluster.sequence=2097152"], "cluster.sequence=2097152"),
        (["cluster.rollout_gpus=12"], "cluster.rollout_tensor_parallel=8 must divide"),
        (["cluster.reserve_gb=141"], "cluster.reserve_gb=141"),
        (["cluster.gpu_memory_gb=20", "cluster.micro_batch=64"], "nothing fits"),
        (["learner=muon"], "learner.optimizer=adamw"),
        (["cluster.sequence=1048576", "cluster.gpu_memory_gb=40"], "no engine fits"),
    ],
)
def test_set_ups_that_contradict_are_refused_by_name(words: list[str], says: str) -> None:
    failed = [text for verdict, text in cluster_checks(*words) if verdict == Verdict.FAIL]
    assert any(says in text for text in failed), failed


@pytest.mark.parametrize(
    "word", ["cluster.zero_stage=4", "cluster.chunk=0", "cluster.latent=fp4", "cluster.gpu_memory_gb=nan"]
)
def test_values_out_of_range_are_refused(word: str) -> None:
    key = word.partition("=")[0]
    assert [f for f in planned(word).failures if f.startswith(f"{key}: ")]


def test_policies_that_fit_a_gpu_have_no_such_section() -> None:
    def of(*words: str) -> Any:
        return plan(compose(list(words)), 2, 24 * GB, 0)

    assert "== Cluster" not in of().render() and not [c for c in of().checks if c.about == "cluster"]
    asked = of("cluster.gpus=8", "cluster.expert_parallel=8", "cluster.sequence=4096")
    assert asked.ok and "== Cluster" in asked.render()
