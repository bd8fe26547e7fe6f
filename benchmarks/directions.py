"""Which direction of an update buys the most improvement for a given change of the policy, at the committed start.

Many independent batches of groups are sampled from the start; each gives the gradient that a step would follow, and an
estimate of the true gradient of the solve rate (raw outcomes, every cell weighted alike). A direction made of one batch
is judged by the true gradient of the OTHERS: expected gain, over the square root of the KL that the step costs.
The net gain that a noisy optimizer can reach in a given number of samples grows with the square of this figure.

    python -m benchmarks.directions --chunks 20 --groups 256

The mean and its jackknife error go to benchmarks/results/foundation-directions.json.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.solo import Solo, configured
from rl.algorithms import LOSSES
from rl.algorithms.loss.streams import Streams
from rl.batch import TrainBatch, build_batch
from rl.learner.engine import freeze
from rl.learner.scoring import Scorer, score
from rl.muon import orthogonalise
from rl.stats import GroupStats

RESULTS = Path(__file__).resolve().parent / "results" / "foundation-directions.json"
Gradient = list[Tensor]
"""One tensor for each trained parameter; [chunks, ...] where chunks are stacked."""

PRICED = 50
"""The step at which groups are assessed: prices have ramped up."""


class Bench:
    """The start, the sampled batches and their gradients."""

    def __init__(self, chunks: int, groups: int, start: str, seed: int = 0) -> None:
        self.solo = solo = Solo(configured({}, seed), start, device="cpu")
        freeze(solo.policy, solo.config.learner)
        named = [(n, p) for n, p in solo.policy.named_parameters() if p.requires_grad]
        self.names, self.parameters = [n for n, _ in named], [p for _, p in named]
        self.scorer = Scorer(solo.policy)
        solo.calibrate()
        followed, true = [], []
        for chunk in range(chunks):
            orders = [solo.state.mixture.order(solo.config.algorithm.group_size) for _ in range(groups)]
            seen = [solo.assess(g, PRICED) for g in solo.play(orders, 1.0, 1000 * (seed + 1) + chunk)]
            kept = [x for x in seen if not x.retired]
            batch = build_batch(
                [x.group for x in kept],
                [x.advantages for x in kept],
                solo.state.scale,
                [x.outcome_advantages for x in kept],
            )
            followed.append(self.gradient(batch))
            weights = [1 / self._weight(x.group.order) for x in seen]
            centred = []
            for x, w in zip(seen, weights, strict=True):
                stats = GroupStats(x.raw, x.valid)
                centred.append(w / sum(weights) * stats.centred(stats.leave_one_out_mean) / stats.n)
            true.append(self.gradient(build_batch([x.group for x in seen], centred), mean=False))
            print(f"chunk {chunk + 1} of {chunks}: {len(kept)} of {len(seen)} groups with a signal", flush=True)
        self.followed: Gradient = [torch.stack(x).double() for x in zip(*followed, strict=True)]
        self.true: Gradient = [torch.stack(x).double() for x in zip(*true, strict=True)]
        rows = build_batch([x.group for x in seen[:48]], [np.ones(len(x.raw)) for x in seen[:48]])
        self.judges = rows.shards(1, 16384)[0].micro_batches
        self.base = self._logprobs()

    def _weight(self, order: Any) -> float:
        mixture = self.solo.state.mixture
        cell = mixture.cells[order.task.environment, order.task.level, order.effort]
        return cell.contrast**self.solo.config.envs.focus + self.solo.config.envs.floor

    def gradient(self, batch: TrainBatch, mean: bool = True) -> Gradient:
        """Of the configured loss, per token or summed."""
        self.solo.policy.zero_grad()
        shard = batch.shards(1, 16384)[0]
        a = self.solo.config.algorithm
        for micro in shard.micro_batches:
            scored = score(self.scorer, micro, False, self.solo.device)
            mask, advantage = torch.as_tensor(micro.mask), torch.as_tensor(micro.advantage)
            now = scored.logprob.detach()
            streams = Streams(advantage, now, now, scored.logprob, mask, torch.ones_like(now))
            (LOSSES[a.loss](streams, a).loss / (shard.tokens if mean else 1)).backward()
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.parameters]

    @torch.no_grad()
    def _logprobs(self) -> list[Tensor]:
        self.solo.policy.refresh_quantized()
        return [score(self.scorer, m, False, self.solo.device).logprob for m in self.judges]

    @torch.no_grad()
    def kl(self, direction: Gradient, size: float) -> float:
        """Mean KL per token, in nats, of a step of `size` along a direction."""
        kept = [p.clone() for p in self.parameters]
        for p, d in zip(self.parameters, direction, strict=True):
            p.add_(d.float(), alpha=-size)
        new = self._logprobs()
        for p, old in zip(self.parameters, kept, strict=True):
            p.copy_(old)
        self.solo.policy.refresh_quantized()
        total = count = 0.0
        for m, a, b in zip(self.judges, self.base, new, strict=True):
            ratio = (b - a)[torch.as_tensor(m.mask)].double()
            total, count = total + float((ratio.exp() - 1 - ratio).sum()), count + ratio.numel()
        return total / count

    def judge(self, directions: Gradient) -> tuple[float, float]:
        """(gain in points of the mean solve rate for the square root of a KL of 0.01 nats, its jackknife error)."""
        chunks = len(directions[0])
        pairs = torch.zeros(chunks, chunks, dtype=torch.float64)
        for true, d in zip(self.true, directions, strict=True):
            pairs += true.reshape(chunks, -1) @ d.reshape(chunks, -1).mT
        pairs.fill_diagonal_(0)
        gain = float(pairs.sum()) / (chunks * (chunks - 1))
        without = [
            float(pairs.sum() - pairs[i].sum() - pairs[:, i].sum()) / ((chunks - 1) * (chunks - 2))
            for i in range(chunks)
        ]
        error = math.sqrt((chunks - 1) / chunks * sum((x - sum(without) / chunks) ** 2 for x in without))
        costs = []
        for chunk in (0, chunks // 2):
            one = [d[chunk] for d in directions]
            rms = math.sqrt(sum(float(d.square().sum()) for d in one) / sum(d.numel() for d in one))
            size = 1e-4 / rms
            for _ in range(4):
                cost = self.kl(one, size)
                if 0.005 < cost < 0.02:
                    break
                size *= math.sqrt(0.01 / max(cost, 1e-5))
            costs.append(cost / size**2)
        unit = 100 * math.sqrt(0.01) / math.sqrt(sum(costs) / len(costs))
        return gain * unit, error * unit


def directions(bench: Bench) -> dict[str, Callable[[], Gradient]]:
    """What is compared, by name."""
    square = [g.square().mean(0) for g in bench.followed]
    mean = [float(v.mean()) for v in square]
    floor = 1e-3 * float(torch.cat([v.flatten() for v in square]).mean())
    scaled = [0.1 if "embed_tokens" in n or "conv1d" in n else 1.0 for n in bench.names]

    def elements(power: float, scale: list[float] | None = None) -> Gradient:
        scale = scale or [1.0] * len(square)
        return [s * g * (v + floor) ** -power for s, g, v in zip(scale, bench.followed, square, strict=True)]

    def tensors(power: float) -> Gradient:
        return [g * max(m, 1e-30) ** -power for g, m in zip(bench.followed, mean, strict=True)]

    def muon(power: float) -> Gradient:
        out = []
        for name, g, m in zip(bench.names, bench.followed, mean, strict=True):
            matrix = g.ndim >= 3 and min(g.shape[-2:]) > 1 and not any(x in name for x in ("conv1d", "res_proj"))
            size = max(m, 1e-30)
            if matrix:
                whole = torch.stack([orthogonalise(x.float()).double() for x in g])
                out.append(whole * max(g.shape[-2:]) ** 0.5 * size ** (0.5 - power))
            else:
                out.append(g * size**-power)
        return out

    return {
        "gradient": lambda: tensors(0.0),
        "Adam (elements, F^-1/2)": lambda: elements(0.5),
        "Adam, embeddings and short convolutions at a tenth": lambda: elements(0.5, scaled),
        "elements, F^-1": lambda: elements(1.0),
        "tensors, F^-1/2": lambda: tensors(0.5),
        "tensors, F^-1 (tensorwise)": lambda: tensors(1.0),
        "tensors, F^-3/2": lambda: tensors(1.5),
        "Muon, tensors of one size": lambda: muon(0.5),
        "Muon, tensors by F^-1/2": lambda: muon(1.0),
    }


def main() -> None:
    """Sample, compare, write."""
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    p.add_argument("--start", default="assets/tiny.safetensors")
    p.add_argument("--chunks", type=int, default=20, help="independent batches")
    p.add_argument("--groups", type=int, default=256, help="groups of one batch")
    args = p.parse_args()
    begin = time.monotonic()
    bench = Bench(args.chunks, args.groups, args.start)
    rows = []
    for name, make in directions(bench).items():
        gain, error = bench.judge(make())
        rows.append({"direction": name, "gain": round(gain, 3), "error": round(error, 3)})
        print(f"{name:52} {gain:6.3f} +- {error:.3f}", flush=True)
    flat = torch.cat([g.reshape(len(g), -1) for g in bench.followed], 1)
    cosines = torch.nn.functional.normalize(flat, dim=1) @ torch.nn.functional.normalize(flat, dim=1).mT
    cosine = float(cosines.fill_diagonal_(0).sum()) / (len(flat) * (len(flat) - 1))
    out = {
        "hardware": f"{platform.machine()}, {platform.processor() or 'CPU'}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": f"python -m benchmarks.directions --chunks {args.chunks} --groups {args.groups}",
        "unit": "points of the mean solve rate, to first order, for a step of 0.01 nats of KL",
        "cosine": round(cosine, 4),
        "minutes": round((time.monotonic() - begin) / 60, 1),
        "directions": rows,
    }
    RESULTS.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
