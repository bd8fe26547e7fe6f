"""Metrics of one optimizer step, from the very tensors that the loss used; sums over ranks, weighted by tokens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl.algorithms.loss.streams import LossResult
from rl.batch import MicroBatch
from rl.learner.distributed import max_over_ranks, sum_over_ranks

SUMS = ("loss", "entropy", "ratio", "clip_low", "clip_high", "kl", "logp_diff", "correction", "tokens")
"""Summed over tokens; all but loss and tokens are reported as means over tokens."""
PEAKS = ("ratio", "logp_diff", "correction")
"""Maxima over tokens."""
PER_ENV = ("entropy", "kl", "logp_diff", "tokens")
"""Also summed by environment."""


COUNTS = ("micro_batches", "micro_batches_idle", "routed", "routed_live")
"""Micro-batches that train something, and dummies; tokens whose routing matters, and those without a recorded route."""


class StepMetrics:
    """Accumulates over micro-batches; `reduce` is a collective, called once by every rank."""

    def __init__(self, environments: tuple[str, ...], moe_shape: tuple[int, int] | None) -> None:
        self.environments = environments
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64)
        self.peaks = torch.zeros(len(PEAKS), dtype=torch.float64)
        self.env_sums = torch.zeros(len(environments), len(PER_ENV), dtype=torch.float64)
        self.env_peak = torch.zeros(len(environments), dtype=torch.float64)
        self.load = None if moe_shape is None else torch.zeros(moe_shape, dtype=torch.float64)
        """Tokens of every expert [MoE layers, experts]; None for a dense policy."""
        self.counts = torch.zeros(len(COUNTS), dtype=torch.float64)

    def add_tokens(
        self, result: LossResult, current: Tensor, behaviour: Tensor, entropy: Tensor, correction: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Take in one micro-batch: tensors [B, T]; returns the per-token values that it summed (float64, masked)."""
        log_ratio = (current.detach() - behaviour).masked_fill(~mask, 0.0).double()
        values = {
            "entropy": entropy,
            "ratio": log_ratio.clamp(-20, 20).exp(),
            "clip_low": result.cut_low,
            "clip_high": result.cut_high,
            # k3 of KL(behaviour || current), from samples of the behaviour policy: r - 1 - log r >= 0 (Schulman 2020).
            "kl": log_ratio.clamp(-20, 20).exp() - 1 - log_ratio,
            "logp_diff": log_ratio.abs(),
            "correction": correction,
            "tokens": torch.ones_like(log_ratio),
        }
        values = {k: v.detach().double().masked_fill(~mask, 0.0).cpu() for k, v in values.items()}
        values["loss"] = result.loss.detach().double().cpu()
        self.sums += torch.stack([values[k].sum() for k in SUMS])
        self.peaks = torch.maximum(self.peaks, torch.stack([values[k].max() for k in PEAKS]))
        return values

    def add_environments(self, values: dict[str, Tensor], environment: Tensor) -> None:
        """The same values by environment Long [B] of each row."""
        rows = torch.stack([values[k].sum(1) for k in PER_ENV], 1)
        self.env_sums.index_add_(0, environment, rows)
        self.env_peak.scatter_reduce_(0, environment, values["logp_diff"].amax(1), "amax")

    def add_micro_batch(self, batch: MicroBatch) -> None:
        """Count a micro-batch, and its tokens without a recorded route (the last of a row routes nothing further).

        A shared prompt counts once for each row that continues it: however rows are cut, the numbers are the same.
        """
        self.counts[int(batch.dummy)] += 1
        if self.load is not None and not batch.dummy:
            width, shared = batch.input_ids.shape[1], np.array([not name for name in batch.ids])
            weight = (np.arange(width) < batch.lengths[:, None] - ~shared[:, None]) * batch.copies[:, None]
            live = weight if batch.routes is None else weight[(batch.routes < 0).any((2, 3))]
            self.counts[2:] += torch.tensor([float(weight.sum()), float(live.sum())], dtype=torch.float64)

    def add_routes(self, routes: Tensor | None, batch: MicroBatch) -> None:
        """Count experts of real tokens: routes Long [B, T, L, K]; a shared prompt for each row that continues it."""
        if routes is None or self.load is None:
            return
        lengths, copies = (torch.as_tensor(x).to(routes.device) for x in (batch.lengths, batch.copies))
        real = torch.arange(routes.shape[1], device=routes.device) < lengths.unsqueeze(1)
        chosen = routes[real]  # [N, L, K]
        layers, experts = self.load.shape
        flat = chosen + torch.arange(layers, device=routes.device).view(1, -1, 1) * experts
        weight = copies.double().repeat_interleave(lengths).view(-1, 1, 1).expand_as(flat)
        counts = torch.bincount(flat.flatten(), weight.flatten(), minlength=layers * experts)
        self.load += counts.view(layers, experts).cpu()

    def reduce(self) -> dict[str, float]:
        """Over all ranks: the same dict on every one."""
        parts = [self.sums, self.env_sums, self.counts] + ([] if self.load is None else [self.load])
        total = sum_over_ranks(torch.cat([p.flatten() for p in parts]))
        parts = [t.view(p.shape) for t, p in zip(total.split([p.numel() for p in parts]), parts, strict=True)]
        peaks = max_over_ranks(torch.cat([self.peaks, self.env_peak])).tolist()
        sums = dict(zip(SUMS, parts[0].tolist(), strict=True))
        tokens = max(1.0, sums["tokens"])
        out = {"loss": sums["loss"] / tokens, "tokens": sums["tokens"]}
        counts = dict(zip(COUNTS, parts[2].tolist(), strict=True))
        out |= {k: counts[k] for k in COUNTS[:2]}
        if self.load is not None:
            out["routes_live"] = counts["routed_live"] / max(1.0, counts["routed"])
        out |= {f"{k}_mean": sums[k] / tokens for k in ("ratio", "logp_diff", "correction")}
        out |= {k: sums[k] / tokens for k in ("entropy", "clip_low", "clip_high", "kl")}
        out |= {f"{k}_max": peaks[i] for i, k in enumerate(PEAKS)}
        for e, env in enumerate(self.environments):
            row = dict(zip(PER_ENV, parts[1][e].tolist(), strict=True))
            if row["tokens"]:
                out |= {f"{k}/{env}": row[k] / row["tokens"] for k in ("entropy", "kl")}
                out[f"logp_diff_mean/{env}"] = row["logp_diff"] / row["tokens"]
                out[f"logp_diff_max/{env}"] = peaks[len(PEAKS) + e]
                out[f"tokens/{env}"] = row["tokens"]
        if self.load is not None:
            for i, load in enumerate(parts[3]):
                out[f"expert_load/{i}"] = float(load.max() / load.mean().clamp_min(1e-30))
        return out
