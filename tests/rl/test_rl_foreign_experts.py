"""Laws of a Hugging Face mixture of experts in the learner, on two gloo processes: spreading its experts over ranks
changes neither gradient, norm, routes, checkpoint nor the names that go out."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learner_processes import ROOT, launch

KINDS = ("qwen3_moe", "qwen2_moe", "mixtral", "deepseek_v2", "deepseek_v3")


# --- what the processes run -----------------------------------------------------------------------------------------


def foreign(rank: int, meeting: Any, folder: Path) -> dict[str, Any]:
    """Plain SGD with lr 1: the change of the weights IS the gradient."""
    sys.path.insert(0, str(ROOT / "tests" / "model"))
    import hf_cases
    import learner_cases as cases
    import torch
    from safetensors.numpy import save_file
    from torch.distributed import all_gather_object, barrier

    import rl.learner.engine as engine
    from model.hf import HFPolicy
    from rl.batch import MicroBatch, Shard
    from rl.learner.rank import LearnerRank

    built = engine.build_optimizer
    engine.build_optimizer = lambda groups, c: torch.optim.SGD(groups, lr=c.lr)
    rows = [dataclasses.replace(r, token_ids=r.token_ids % 300) for r in cases.rows(10)]
    batch = dataclasses.replace(cases.batch(), rows=rows)
    shards = batch.shards(2, 96)

    def start(kind: str, **changes: Any) -> LearnerRank:
        path = folder / kind
        if rank == 0 and not path.exists():
            hf_cases.make(kind, path)
        barrier()
        hf = {"model__kind": "hf", "model__path": str(path), "policy__init": "warm", "learner__router_replay": False}
        learner = LearnerRank(cases.config(**hf | changes), rank, meeting)
        out = learner.setup(("", 0))
        assert out["experts"] == ([2 * rank, 2 * rank + 2] if learner.config.learner.expert_parallel == 2 else [0, 4])
        return learner

    def everything(learner: LearnerRank) -> dict[str, np.ndarray]:
        parts: list[Any] = [None, None]
        all_gather_object(parts, learner.export_weights())
        assert not parts[0].keys() & parts[1].keys()
        return parts[0] | parts[1]

    def gradient(learner: LearnerRank, shards: list[Shard]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        before = everything(learner)
        metrics = learner.train_step(shards[rank], 0)
        after = everything(learner)
        learner.load_weights(before)
        return {k: before[k] - after[k] for k in before}, metrics

    out: dict[str, Any] = {}
    for kind in KINDS:
        one = start(kind, learner__expert_parallel=1)
        config = one.config
        want, _ = cases.oracle(config, batch)
        norm = math.sqrt(sum(float(np.square(g.astype(np.float64)).sum()) for g in want.values()))
        alone, metrics = gradient(one, shards)
        spread = start(kind, learner__expert_parallel=2)
        got, spread_metrics = gradient(spread, shards)
        spread.config.learner.clip_grad_norm = norm / 4
        clipped, _ = gradient(spread, shards)
        spread.config.learner.clip_grad_norm = 0.0
        largest = max(float(np.abs(g).max()) for g in want.values())
        off = lambda a, b, largest=largest: max(float(np.abs(a[k] - b[k]).max()) for k in b) / largest
        out[kind] = {
            "one": off(alone, want),
            "spread": off(got, alone),
            "experts": off(*({k: g[k] for k in want if ".experts." in k} for g in (got, alone))),
            "touched": min(float(np.abs(g).max()) for k, g in got.items() if ".experts." in k),
            "router": max(float(np.abs(g).max()) for k, g in got.items() if k.endswith("gate.weight")),
            "clipped": off(clipped, {k: g / 4 for k, g in want.items()}),
            "norms": (metrics["grad_norm"] / norm, spread_metrics["grad_norm"] / norm),
            "loads": [[v for k, v in m.items() if k.startswith("expert_load")] for m in (metrics, spread_metrics)],
            "fewer": sum(p.numel() for p in spread.trained),
            "all": sum(p.numel() for p in one.trained),
        }
        # Recorded routes, all of them to the experts 0 and 1, which are on one rank.
        routes = np.tile(np.arange(2, dtype=np.int16), (len(one.policy.moe_blocks), 1))
        crowd = [dataclasses.replace(r, routes=np.tile(routes, (len(r), 1, 1))) for r in rows]
        crowded, found = dataclasses.replace(batch, rows=crowd).shards(2, 96), []
        for learner in (one, spread):
            learner.config.learner.router_replay = True
            found.append(gradient(learner, crowded)[0])
        out[kind] |= {
            "replayed": off(found[1], found[0]),
            "far": max(float(np.abs(g).max()) for k, g in found[1].items() if ".experts.3." in k),
            "replay_router": max(float(np.abs(g).max()) for k, g in found[1].items() if k.endswith("gate.weight")),
        }
        # What all ranks send is the folder's own set of tensors; written to a folder it is loaded bit by bit.
        with torch.no_grad():
            for p in spread.policy.parameters():
                p.mul_(1.25)
        sent = everything(spread)
        if rank == 0:
            copy = folder / f"{kind}_saved"
            hf_cases.make(kind, copy, seed=9)
            names = dict(HFPolicy.load(copy).named_weights()).keys()
            save_file(sent, copy / "model.safetensors", metadata={"format": "pt"})
            read = dict(HFPolicy.load(copy).named_weights())
            out[kind]["saved"] = names == sent.keys() and all(np.array_equal(read[k].numpy(), sent[k]) for k in sent)
    engine.build_optimizer = built
    # One rank trains nothing: it joins the collectives of every layer.
    thirds, idle = [MicroBatch.of(batch.rows[i::3]) for i in range(3)], MicroBatch.idle()
    uneven = [Shard(p, batch.tokens, batch.environments) for p in (thirds, [idle] * 3)]
    real = {"learner__lr": 3e-3, "learner__expert_parallel": 2}
    learner = start("qwen3_moe", **real)
    out["idle"] = learner.train_step(uneven[rank], 0)["loss"]
    out["idle_want"] = start("qwen3_moe", **real | {"learner__expert_parallel": 1}).train_step(uneven[rank], 0)["loss"]
    # A checkpoint of spread experts goes on at the other size, with its optimizer state.
    for name, changes in (("adamw", {}), ("tensorwise", {"learner__optimizer": "tensorwise"})):
        learner = start("qwen3_moe", **real | changes)
        first = [learner.train_step(shards[rank], i)["loss"] for i in range(2)]
        place = folder / f"state_{name}"
        if rank == 0:
            place.mkdir()
        barrier()
        learner.save(place)
        straight = [learner.train_step(shards[rank], i)["loss"] for i in range(2, 4)]
        whole = start("qwen3_moe", **real | changes | {"learner__expert_parallel": 1})
        whole.load(place)
        resumed = [whole.train_step(shards[rank], i)["loss"] for i in range(2, 4)]
        out[name] = {"first": first, "straight": straight, "resumed": resumed}
    try:
        start("llama", learner__expert_parallel=2)
    except ValueError as error:
        out["dense"] = str(error)
    return out


# --- the laws -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch(__file__, "foreign", 2, tmp_path_factory.mktemp("foreign")).results("foreign")


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_spread_experts_is_that_of_whole_ones_and_of_plain_autograd(
    ranks: list[dict[str, Any]], kind: str
) -> None:
    for rank in ranks:
        r = rank[kind]
        assert r["one"] < 2e-6 and r["spread"] < 2e-6 and r["experts"] < 2e-6
        assert r["touched"] > 0 and r["router"] > 0, "a gradient that is zero shows nothing"
        assert r["fewer"] < r["all"], "the experts were not spread"


@pytest.mark.parametrize("kind", KINDS)
def test_norm_and_clipping_see_experts_and_shared_weights_alike(ranks: list[dict[str, Any]], kind: str) -> None:
    for rank in ranks:
        assert rank[kind]["norms"] == pytest.approx((1.0, 1.0), abs=1e-5)
        assert rank[kind]["clipped"] < 2e-6


@pytest.mark.parametrize("kind", KINDS)
def test_routes_are_counted_and_do_not_depend_on_where_experts_are(ranks: list[dict[str, Any]], kind: str) -> None:
    whole, spread = ranks[0][kind]["loads"]
    assert len(whole) == (1 if kind.startswith("deepseek") else 2) and min(whole) >= 1 and whole == spread


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_routes_are_replayed_wherever_experts_are(ranks: list[dict[str, Any]], kind: str) -> None:
    for rank in ranks:
        assert rank[kind]["replayed"] < 2e-6 and rank[kind]["far"] == 0.0 and rank[kind]["replay_router"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_ranks_send_is_a_folder_that_loads_bit_by_bit(ranks: list[dict[str, Any]], kind: str) -> None:
    assert ranks[0][kind]["saved"]


def test_a_rank_without_work_joins(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["idle"] == pytest.approx(ranks[0]["idle_want"], abs=1e-6)


@pytest.mark.parametrize("name", ["adamw", "tensorwise"])
def test_a_checkpoint_does_not_know_how_experts_were_spread(ranks: list[dict[str, Any]], name: str) -> None:
    r = ranks[0][name]
    assert r["resumed"] == pytest.approx(r["straight"], abs=2e-5)
    assert abs(r["straight"][-1] - r["first"][0]) > 1e-3, "nothing was trained"


def test_a_dense_model_has_no_experts_to_spread(ranks: list[dict[str, Any]]) -> None:
    assert "a dense one is trained with 1" in ranks[0]["dense"]
