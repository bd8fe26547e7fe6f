"""Expert parallelism of Hugging Face policies: DeepSpeed's AutoEP finds the experts, and its layer carries them.

A preset of AutoEP knows an architecture's layers, checks their shapes and that the experts compute the SwiGLU that it
thinks they do. Two parts are the model's own instead of AutoEP's: the router (transformers' numbers, recorded routes,
the same names at every expert_parallel), so only `experts` is replaced and not the whole block; and the stacks
`gate_up_proj` and `down_proj`, which are cut but not taken apart, so that a checkpoint of one expert_parallel is read
at another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from deepspeed.module_inject.auto_ep import AutoEP
from deepspeed.module_inject.auto_ep_config import AutoEPConfig, MoELayerSpec
from torch import Tensor, nn
from torch.nn import functional as F

from model.hf import HFPolicy
from rl.learner.experts import SpreadExperts
from rl.learner.limits import AUTOEP_TYPES


class LocalStacks(nn.Module):
    """This rank's slice of a layer's stacks; called with rows that are sorted by local expert."""

    def __init__(self, gate_up: nn.Parameter, down: nn.Parameter, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = gate_up, down
        self.activation = activation

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """rows [P, H] sorted by expert and padded with zero rows, counts int [local experts] -> [P, H]."""
        sizes = counts.tolist()
        used = rows[: sum(sizes)]
        out = []
        # Unbound, because the backward pass of an index into a stack would fill a whole stack for every expert.
        for x, gate_up, down in zip(
            used.split(sizes), self.gate_up_proj.unbind(), self.down_proj.unbind(), strict=True
        ):
            gate, up = F.linear(x, gate_up).chunk(2, -1)
            out.append(F.linear(self.activation(gate) * up, down))
        return torch.cat([*out, rows[len(used) :]])


class ForeignExperts(SpreadExperts):
    """Drop-in for `experts` of a transformers block: (x [N, H], chosen [N, K], weights [N, K]) -> [N, H].

    Every rank must call it equally often, with at least one token (it may send them all elsewhere).
    """

    def __init__(self, spec: MoELayerSpec, block: Any, ep_size: int, ep_rank: int) -> None:
        spec = dataclasses.replace(
            spec,
            has_shared_experts=False,  # they stay in the block
            shared_experts_name="",
            shared_experts_gate_name="",
            return_router_logits=False,
            router_logits_capture_target="none",
        )
        super().__init__(spec, block, ep_size, ep_rank)
        source, begin, end = block.experts, self.first_expert, self.first_expert + self.num_local_experts
        stacks = []
        for stack in (source.gate_up_proj, source.down_proj):
            part = nn.Parameter(stack.detach()[begin:end].clone(), requires_grad=stack.requires_grad)
            part.__dict__.update(self.marks)
            stacks.append(part)
        self.experts = LocalStacks(stacks[0], stacks[1], source.act_fn)

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:  # type: ignore[override]
        """See the class."""
        return self.dispatch(x, weights, chosen)


def spread_foreign(policy: HFPolicy, ep_size: int, rank: int) -> list[ForeignExperts]:
    """Swap every layer's experts for this rank's slice; returns the new layers, in order.

    Raises ValueError for an architecture that AutoEP has no preset for, or whose layers do not match its preset.
    """
    kind = policy.config.model_type
    if kind not in AUTOEP_TYPES:
        raise ValueError(
            f"DeepSpeed's AutoEP has no preset for {kind} (it has {', '.join(AUTOEP_TYPES)}): "
            "set learner.expert_parallel=1"
        )
    config = AutoEPConfig(enabled=True, autoep_size=ep_size, use_grouped_mm=False)
    specs = AutoEP(policy.model, config).ep_parser()
    found = {id(policy.model.get_submodule(s.moe_module_name)) for s in specs}
    if found != {id(block) for block in policy.moe_blocks}:
        raise ValueError(
            f"DeepSpeed's AutoEP found {len(found)} of {len(policy.moe_blocks)} mixture-of-experts layers of {kind}: "
            "set learner.expert_parallel=1"
        )
    layers = []
    for spec, block in zip(specs, policy.moe_blocks, strict=True):
        if spec.num_experts % ep_size:
            raise ValueError(
                f"{spec.moe_module_name}: expert_parallel={ep_size} does not divide {spec.num_experts} experts"
            )
        layers.append(ForeignExperts(spec, block, ep_size, rank % ep_size))
        block.experts = layers[-1]
    return layers
