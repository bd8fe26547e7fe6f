"""A Hugging Face mixture of experts in two learner processes: one training step with whole and with spread experts.

`learner_processes.launch` runs `foreign` for the tests and `qwen3_moe` for the benchmark in both processes.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import learner_cases as cases
import numpy as np
import torch
from learner_processes import ROOT
from torch.distributed import all_gather_object, barrier

import rl.learner.engine as engine
from rl.batch import MicroBatch, Shard
from rl.learner.rank import LearnerRank

sys.path.insert(0, str(ROOT / "tests" / "model"))
import hf_cases

KINDS = ("qwen3_moe", "qwen2_moe", "mixtral", "deepseek_v2", "deepseek_v3")


class Spread:
    """One rank of two with a batch of ten rows, and models that transformers made."""

    def __init__(self, rank: int, meeting: Any, folder: Path) -> None:
        self.rank, self.meeting, self.folder = rank, meeting, folder
        rows = [dataclasses.replace(r, token_ids=r.token_ids % 300) for r in cases.rows(10)]
        self.batch = dataclasses.replace(cases.batch(), rows=rows)
        self.shards = self.batch.shards(2, 96)

    def start(self, kind: str, **changes: Any) -> LearnerRank:
        """A learner with this model, made on first use."""
        path = self.folder / kind
        if self.rank == 0 and not path.exists():
            hf_cases.make(kind, path)
        barrier()
        hf = {"model__kind": "hf", "model__path": str(path), "policy__init": "warm", "learner__router_replay": False}
        learner = LearnerRank(cases.config(**hf | changes), self.rank, self.meeting)
        experts, spread = learner.setup(("", 0))["experts"], learner.config.learner.expert_parallel == 2
        assert experts == ([2 * self.rank, 2 * self.rank + 2] if spread else [0, 4])
        return learner

    @staticmethod
    def everything(learner: LearnerRank) -> dict[str, np.ndarray]:
        """What both ranks send."""
        parts: list[Any] = [None, None]
        all_gather_object(parts, learner.export_weights())
        assert not parts[0].keys() & parts[1].keys()
        return parts[0] | parts[1]

    def step(
        self, learner: LearnerRank, shards: list[Shard] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """By how much one step lowers each weight, and its metrics; the weights are put back."""
        before = self.everything(learner)
        metrics = learner.train_step((shards or self.shards)[self.rank], 0)
        after = self.everything(learner)
        learner.load_weights(before)
        return {k: before[k] - after[k] for k in before}, metrics

    def measure(self, kind: str) -> dict[str, Any]:
        """Differences are relative to the largest value of the whole gradient, which plain autograd gives."""
        built = engine.build_optimizer
        # Plain SGD with lr 1: the change of the weights IS the gradient.
        engine.build_optimizer = lambda groups, c: torch.optim.SGD(groups, lr=c.lr)
        try:
            return self._measure(kind)
        finally:
            engine.build_optimizer = built

    def _measure(self, kind: str) -> dict[str, Any]:
        from safetensors.numpy import save_file

        from model.hf import HFPolicy

        one = self.start(kind, learner__expert_parallel=1)
        want, _ = cases.oracle(one.config, self.batch)
        norm = math.sqrt(sum(float(np.square(g.astype(np.float64)).sum()) for g in want.values()))
        alone, metrics = self.step(one)
        spread = self.start(kind, learner__expert_parallel=2)
        got, spread_metrics = self.step(spread)
        spread.config.learner.clip_grad_norm = norm / 4
        clipped, _ = self.step(spread)
        spread.config.learner.clip_grad_norm = 0.0
        largest = max(float(np.abs(g).max()) for g in want.values())
        off = lambda a, b: max(float(np.abs(a[k] - b[k]).max()) for k in b) / largest
        out = {
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
        rows = [dataclasses.replace(r, routes=np.tile(routes, (len(r), 1, 1))) for r in self.batch.rows]
        crowded, found = dataclasses.replace(self.batch, rows=rows).shards(2, 96), []
        for learner in (one, spread):
            learner.config.learner.router_replay = True
            found.append(self.step(learner, crowded)[0])
        out |= {
            "replayed": off(found[1], found[0]),
            "far": max(float(np.abs(g).max()) for k, g in found[1].items() if ".experts.3." in k),
            "replay_router": max(float(np.abs(g).max()) for k, g in found[1].items() if k.endswith("gate.weight")),
        }
        # What all ranks send is the folder's own set of tensors; written to a folder it is loaded bit by bit.
        with torch.no_grad():
            for p in spread.policy.parameters():
                p.mul_(1.25)
        sent = self.everything(spread)
        if self.rank == 0:
            copy = self.folder / f"{kind}_saved"
            hf_cases.make(kind, copy, seed=9)
            names = dict(HFPolicy.load(copy).named_weights()).keys()
            save_file(sent, copy / "model.safetensors", metadata={"format": "pt"})
            read = dict(HFPolicy.load(copy).named_weights())
            out["saved"] = names == sent.keys() and all(np.array_equal(read[k].numpy(), sent[k]) for k in sent)
        return out


def qwen3_moe(rank: int, meeting: Any, folder: Path) -> dict[str, Any]:
    """One kind alone."""
    return Spread(rank, meeting, folder).measure("qwen3_moe")


def foreign(rank: int, meeting: Any, folder: Path) -> dict[str, Any]:
    """Every kind, then real training with AdamW and the project's own optimizer."""
    case = Spread(rank, meeting, folder)
    out: dict[str, Any] = {kind: case.measure(kind) for kind in KINDS}
    # One rank trains nothing: it joins the collectives of every layer.
    batch = case.batch
    thirds, idle = [MicroBatch.of(batch.rows[i::3]) for i in range(3)], MicroBatch.idle()
    uneven = [Shard(p, batch.tokens, batch.environments) for p in (thirds, [idle] * 3)]
    real = {"learner__lr": 3e-3, "learner__expert_parallel": 2}
    learner = case.start("qwen3_moe", **real)
    out["idle"] = learner.train_step(uneven[rank], 0)["loss"]
    whole = case.start("qwen3_moe", **real | {"learner__expert_parallel": 1})
    out["idle_want"] = whole.train_step(uneven[rank], 0)["loss"]
    # A checkpoint of spread experts goes on at the other size, with its optimizer state.
    shard = case.shards[rank]
    for name, changes in (("adamw", {}), ("tensorwise", {"learner__optimizer": "tensorwise"})):
        learner = case.start("qwen3_moe", **real | changes)
        first = [learner.train_step(shard, i)["loss"] for i in range(2)]
        place = folder / f"state_{name}"
        if rank == 0:
            place.mkdir()
        barrier()
        learner.save(place)
        straight = [learner.train_step(shard, i)["loss"] for i in range(2, 4)]
        whole = case.start("qwen3_moe", **real | changes | {"learner__expert_parallel": 1})
        whole.load(place)
        resumed = [whole.train_step(shard, i)["loss"] for i in range(2, 4)]
        out[name] = {"first": first, "straight": straight, "resumed": resumed}
    try:
        case.start("llama", learner__expert_parallel=2)
    except ValueError as error:
        out["dense"] = str(error)
    return out
