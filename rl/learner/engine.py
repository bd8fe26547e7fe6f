"""DeepSpeed around the policy: parameter groups, the optimizer, ZeRO; no clipping, scheduling or scaling of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl.config import LearnerConfig
from rl.learner.limits import check
from rl.learner.muon import MuonAdamW
from rl.learner.tensorwise import Momentum

INDEXER = ".indexer."
"""Part of the names of the sparse-attention indexer's parameters, which learn from their own loss only."""
MTP = "model.mtp."
"""Part of the names of the MTP layer's parameters; likewise."""
NOT_MUON = ("embed_tokens", "lm_head", "conv1d", "res_proj", "patch_embed")
"""Matrices that AdamW steps under Muon: tables of vectors, filters, single vectors stored as rows."""
BUCKET = 50_000_000
"""Elements of one reduction at most; DeepSpeed allocates a buffer of this size, so it is cut to the model's."""


def freeze(policy: nn.Module, config: LearnerConfig) -> list[str]:
    """Switch gradients off where this run does not train; returns the names."""
    learns = {INDEXER: bool(config.index_loss or config.index_warmup_steps), MTP: bool(config.mtp_loss)}
    parts = [part for part, on in learns.items() if not on]
    frozen = [name for name, _ in policy.named_parameters() if any(part in name for part in parts)]
    for name, p in policy.named_parameters():
        if name in frozen:
            p.requires_grad_(False)
    return frozen


def parameter_groups(policy: nn.Module, config: LearnerConfig) -> list[dict[str, Any]]:
    """Groups that differ in weight decay (vectors have none), in step size (`lr_scale`), in optimizer half (Muon), in
    being an indexer's, and in expert parallelism.

    Groups of expert-parallel parameters are marked as DeepSpeed wants them: reduced over their own holders only.
    """
    groups: dict[tuple, list[Tensor]] = {}
    for name, p in policy.named_parameters():
        if p.requires_grad:
            matrix = p.ndim >= 2 and min(p.shape[-2:]) > 1
            muon = config.optimizer == "muon" and matrix and not any(part in name for part in NOT_MUON)
            scale = next((s for part, s in config.lr_scale.items() if part in name), 1.0)
            kind = (getattr(p, "group_name", None), matrix, muon, scale, INDEXER in name)
            groups.setdefault(kind, []).append(p)
    out = []
    for (expert, matrix, muon, scale, indexer), params in groups.items():
        group: dict[str, Any] = {"params": params, "weight_decay": config.weight_decay if matrix else 0.0}
        group["name"] = expert or f"shared_{'matrix' if matrix else 'vector'}{'_muon' if muon else ''}"
        group["lr_scale"], group["indexer"] = scale, indexer
        if expert is not None:
            group["moe"] = True
        if config.optimizer == "muon":
            group["muon"] = muon
        out.append(group)
    return out


def build_optimizer(groups: list[dict[str, Any]], config: LearnerConfig) -> torch.optim.Optimizer:
    """AdamW, Muon with AdamW for what is no matrix, or the momentum of gradients that `TensorScale` has scaled."""
    betas = (config.beta1, config.beta2)
    if config.optimizer == "tensorwise":
        return Momentum(groups, lr=config.lr, beta=config.beta1, weight_decay=config.weight_decay)
    if config.optimizer == "muon":
        return MuonAdamW(groups, lr=config.lr, betas=betas, weight_decay=config.weight_decay)
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, weight_decay=config.weight_decay, foreach=False)


def build_engine(module: nn.Module, policy: nn.Module, config: LearnerConfig) -> Any:
    """`deepspeed.initialize` with our optimizer. Raises ValueError for settings that `limits.check` names."""
    import deepspeed

    if wrong := check(config):
        raise ValueError("; ".join(wrong))
    optimizer = build_optimizer(parameter_groups(policy, config), config)
    elements = min(BUCKET, sum(p.numel() for p in policy.parameters()))
    settings = {
        "train_micro_batch_size_per_gpu": 1,  # batches have any size here: the loss carries its own denominator
        "gradient_accumulation_steps": 1,
        "steps_per_print": 2**62,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": config.zero_stage,
            "contiguous_gradients": True,
            "reduce_scatter": True,
            "overlap_comm": False,
            "reduce_bucket_size": elements,
            "allgather_bucket_size": elements,
        },
    }
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=settings)
    return engine


def learning_rate(config: LearnerConfig, step: int, steps: int) -> float:
    """Linear warm-up to `lr`, then a linear fall to `final_lr` x lr at the last of `steps`.

    A function of the step alone, so that a resume cannot count it twice.
    """
    done = min(1.0, step / max(1, steps - 1))
    return config.lr * min(1.0, (step + 1) / max(1, config.warmup_steps)) * (1 - (1 - config.final_lr) * done)


def set_learning_rate(engine: Any, rate: float, indexers_only: bool = False) -> None:
    """For every parameter group, times the group's own scale; `indexers_only`: 0 for all others, which then stay."""
    for group in engine.optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"] if group["indexer"] or not indexers_only else 0.0
