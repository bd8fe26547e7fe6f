"""Expert parallelism: DeepSpeed's AutoEP layer around this family's experts (`foreign_experts`: around others').

AutoEP as it comes cannot express the family (router on the full hidden size, experts in a latent, SiTU, fake-quantised
weights, recorded routes), so `ExpertParallel` subclasses its layer and replaces two parts: the router, by the routing
that `LatentMoE` has already decided (live or replayed), and the expert kernel, by `model.moe.Experts` on a slice.
Split plan, all-to-all, local permutation, combine, process groups and the marks that ZeRO reduces expert gradients by
are DeepSpeed's. What travels is the latent, already rounded to MXFP8. No capacity: no token is ever dropped.
Measured on two gloo ranks (4,096 tokens, tiny preset, forward and backward): as fast as an own all-to-all dispatch,
within the noise (21 ms of CPU time each); outputs equal bit by bit to the layer that is not spread.
With expert_parallel = 1 nothing is swapped: the model's own experts are the oracle of this file.
"""

from __future__ import annotations

from typing import cast

import torch
from deepspeed.module_inject.auto_ep_config import AutoEPConfig, MoELayerSpec
from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer
from torch import Tensor, nn

from kernels.experts import grouped_situ_mlp
from model.hf import HFPolicy
from model.moe import Experts, LatentMoE
from model.quant import straight_through_round


class _DecidedRouter(nn.Module):
    """Hands the layer a routing that was decided outside; holds no parameter."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.experts = experts
        self.routing: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, expert_bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(weights [N, K], chosen [N, K], tokens of each expert int32 [E])."""
        assert self.routing is not None
        weights, chosen = self.routing
        self.routing = None
        return weights, chosen, torch.bincount(chosen.flatten(), minlength=self.experts).int()


class LocalExperts(Experts):
    """This rank's slice of a layer's experts; called with rows that are sorted by local expert."""

    def __init__(self, w1: nn.Parameter, w3: nn.Parameter, w2: nn.Parameter, like: Experts) -> None:
        nn.Module.__init__(self)
        self.w1, self.w3, self.w2 = w1, w3, w2
        self.betas, self.quant = like.betas, like.quant
        self._cached, self._versions = None, []

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:  # type: ignore[override]
        """rows [P, L] sorted by expert and padded with zero rows, counts int [local experts] -> [P, L]."""
        sizes = counts.tolist()
        w13, w2 = self.gemm_weights()
        used = rows[: sum(sizes)]
        out = grouped_situ_mlp(used, w13, w2, sizes, self.betas, self.quant.activation_rounding)
        return nn.functional.pad(out, (0, 0, 0, rows.shape[0] - used.shape[0]))


class SpreadExperts(AutoEPMoELayer):
    """AutoEP's layer with the routing decided outside, between `dispatch` and this rank's experts.

    Built from `source`, a module with the experts to cut; its subclass then puts its own kernel in `experts`, whose
    parameters carry `marks`: the attributes by which DeepSpeed reduces expert gradients over their holders only.
    """

    def __init__(self, spec: MoELayerSpec, source: nn.Module, ep_size: int, ep_rank: int) -> None:
        super().__init__(spec, source, ep_size, ep_rank, AutoEPConfig(use_grouped_mm=False, load_balance_coeff=None))
        self.router = _DecidedRouter(spec.num_experts)
        self.marks = {k: v for k, v in vars(self.experts.w1).items() if k in _MARKS}

    @property
    def first_expert(self) -> int:
        """Global index of this rank's first expert."""
        return self.ep_rank * self.num_local_experts

    def dispatch(self, rows: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """rows [N, D], weights [N, K], chosen [N, K] -> weighted sums of the chosen experts' outputs [N, D]."""
        self.router.routing = (weights.contiguous(), chosen.contiguous())
        return super().forward(rows.unsqueeze(0)).squeeze(0)


_MARKS = ("allreduce", "group_name", "ds_zero_placement_family", "ds_zero_partition_group_name")


class ExpertParallel(SpreadExperts):
    """Drop-in for `LatentMoE.experts`: (z [N, L], weights [N, K], chosen [N, K]) -> [N, L], experts spread over ranks.

    Every rank must call it equally often, with at least one token (it may send them all elsewhere).
    """

    def __init__(self, experts: Experts, top_k: int, ep_size: int, ep_rank: int) -> None:
        count, inner, latent = experts.w1.shape
        spec = MoELayerSpec(
            moe_module_name="block_sparse_moe",
            model_family="k3",
            router_name="gate",
            experts_name="experts",
            expert_storage="fused_3d",
            expert_w1_name="w1",
            expert_w2_name="w2",
            expert_w3_name="w3",
            num_experts=count,
            top_k=top_k,
            hidden_size=latent,
            ffn_hidden_size=inner,
            score_func="sigmoid",
            score_apply="post",
            route_norm=True,
            gate_bias=False,
            return_router_logits=False,
            router_logits_capture_target="none",
            router_logits_capture_index=None,
            router_logits_capture_layer_name=None,
            has_shared_experts=False,
            shared_experts_name="",
        )
        source = nn.Module()
        source.gate = nn.Linear(1, count, bias=False)  # AutoEP copies a gate; ours stays in LatentMoE
        source.experts = experts
        super().__init__(spec, source, ep_size, ep_rank)
        self.rounding = experts.quant.activation_rounding
        # Its parameters carry DeepSpeed's marks: keep them, replace the kernel.
        grouped = cast(Experts, self._modules.pop("experts"))
        self.experts = LocalExperts(grouped.w1, grouped.w3, grouped.w2, experts)
        self.experts.refresh()

    def forward(self, z: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:  # type: ignore[override]
        """See the class."""
        return self.dispatch(straight_through_round(z, self.rounding), weights, chosen)


def spread_experts(policy: nn.Module, ep_size: int, rank: int) -> list[SpreadExperts]:
    """Swap every layer's experts for this rank's slice; returns the new layers, in order.

    Raises ValueError if the policy has no experts to spread, or ep_size does not divide their number.
    """
    layers: list[SpreadExperts] = []
    for name, moe in policy.named_modules():
        if isinstance(moe, LatentMoE):
            experts = cast(Experts, moe.experts)
            count = experts.w1.shape[0]
            if count % ep_size:
                raise ValueError(f"{name}: expert_parallel={ep_size} does not divide {count} experts")
            layers.append(ExpertParallel(experts, moe.gate.k, ep_size, rank % ep_size))
            moe.experts = layers[-1]
    if isinstance(policy, HFPolicy) and policy.moe_blocks:
        from rl.learner.foreign_experts import spread_foreign

        layers += spread_foreign(policy, ep_size, rank)
    if not layers:
        raise ValueError(f"expert_parallel={ep_size} needs a policy with experts; a dense one is trained with 1")
    return layers
