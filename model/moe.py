"""Stable LatentMoE (arXiv 2607.24653): router on the full hidden, latent experts, norm after their weighted sum."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from kernels.experts import routed_experts, straight_through
from kernels.router import route
from model.activations import SituMLP
from model.balance import Histogram
from model.config import K3Config
from model.joined import Derived
from model.norms import RMSNorm
from model.packing import Packing
from model.quant import QuantSpec, straight_through_round


def check_routes(routes: Tensor, experts: int, place: Callable[[int], str]) -> None:
    """Raise ValueError naming the first token for which a layer of routes [N, L_moe, K] has other than K distinct
    experts, or none at all (-1). place(n): what the error calls token n.
    """
    ranked = routes.sort(-1).values
    least, most = ranked[..., 0], ranked[..., -1]
    for bad, what in (
        ((least < -1) | (most >= experts), f"names what is none of {experts} experts"),
        ((least < 0) & (most >= 0), "names some experts, and -1 (none is recorded) for others"),
        ((ranked[..., 1:] == ranked[..., :-1]).any(-1) & (least >= 0), "names an expert twice"),
    ):
        if bool(bad.any()):
            n, layer = (int(i) for i in bad.nonzero()[0])
            raise ValueError(f"routes: {place(n)}, MoE layer {layer} {what}: {routes[n, layer].tolist()}")


def packed_routes(routes: Tensor, config: K3Config, packing: Packing, shape: tuple[int, int], at: Tensor) -> Tensor:
    """Recorded routes [B, T, L_moe, K] of a batch of `shape` (B, T) as [N, L_moe, K], those at `at` of the flat batch.

    Raises ValueError for another shape, and as `check_routes`.
    """
    want = (*shape, len(config.moe_layers), config.num_experts_per_token)
    if tuple(routes.shape) != want:
        raise ValueError(f"routes {tuple(routes.shape)} do not match {want}")
    routes = routes.to(at.device).flatten(0, 1)[at]
    check_routes(routes, config.num_experts, lambda n: f"row {int(packing.row[n])}, token {int(packing.pos[n])}")
    return routes


class Router(nn.Module):
    """Sigmoid scores, selection by score + bias, weights from the scores of the chosen, renormalised by default."""

    def __init__(self, config: K3Config) -> None:
        super().__init__()
        self.k, self.factor = config.num_experts_per_token, config.routed_scaling_factor
        self.renormalise = config.moe_renormalize
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.e_score_correction_bias: Tensor
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
        self.histogram = Histogram(config.num_experts, self.k)

    def forward(self, x: Tensor, routes: Tensor | None = None, copies: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(weights [N, K], chosen Long [N, K]) for x [N, H]; copies [N]: see `Histogram.add`.

        Where `routes` [N, K] is >= 0 those experts are used, with weights from the live dense scores.
        Equal scores go to the smaller expert index.
        """
        logits = nn.functional.linear(x.to(self.weight.dtype), self.weight)
        bias = self.e_score_correction_bias
        routed = route(logits, bias, self.k, routes, self.renormalise, self.factor)
        if routes is None and self.histogram.enabled and self.training and torch.is_grad_enabled():
            self.histogram.add(routed.scores, routed.next, bias, copies)
        return routed.weights, routed.chosen


class Experts(Derived):
    """All routed experts of a layer, stacked: w1 (gate), w3 (up) [E, I, L] and w2 (down) [E, L, I]."""

    def __init__(self, config: K3Config, quant: QuantSpec) -> None:
        super().__init__()
        e, i, latent = config.num_experts, config.moe_intermediate_size, config.routed_expert_hidden_size
        self.w1 = nn.Parameter(torch.empty(e, i, latent))
        self.w3 = nn.Parameter(torch.empty(e, i, latent))
        self.w2 = nn.Parameter(torch.empty(e, latent, i))
        self.betas = (config.activation_situ_beta, config.activation_situ_linear_beta)
        self.quant = quant
        self._cached: tuple[Tensor, Tensor] | None = None
        self._versions: list[int] = []

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the weights and keep the result; call it after every change of the weights."""
        rounding = self.quant.weight_rounding
        if rounding is not None:
            self._cached = (torch.cat((rounding(self.w1), rounding(self.w3)), 1), rounding(self.w2))
            self._versions = [w._version for w in (self.w1, self.w3, self.w2)]

    def gemm_weights(self) -> tuple[Tensor, Tensor]:
        """(w13 [E, 2I, L], w2 [E, L, I]) as the GEMMs see them; gradients reach the masters straight through.

        Raises RuntimeError if the weights changed after the last `refresh`.
        """
        if self.quant.expert_weights == "none":
            return torch.cat((self.w1, self.w3), 1), self.w2
        now = [w._version for w in (self.w1, self.w3, self.w2)]
        if self._cached is None or any(n > v for n, v in zip(now, self._versions, strict=True)):
            raise RuntimeError("expert weights changed: call refresh_quantized() before the next forward")
        return straight_through(self._cached[0], self.w1, self.w3), straight_through(self._cached[1], self.w2)

    def forward(self, z: Tensor, weights: Tensor, chosen: Tensor, norm: RMSNorm | None = None) -> Tensor:
        """Weighted sum of the chosen experts' outputs, then `norm`: z [N, L], weights and chosen [N, K] -> [N, L]."""
        rounding = self.quant.activation_rounding
        z, after = straight_through_round(z, rounding), None if norm is None else (norm.weight, norm.eps)
        return routed_experts(z, *self.gemm_weights(), weights, chosen, self.betas, rounding, after)


class LatentMoE(nn.Module):
    """Router, latent experts and shared expert of one layer; `experts` may be replaced (expert parallelism)."""

    def __init__(self, config: K3Config, quant: QuantSpec) -> None:
        super().__init__()
        h, latent = config.hidden_size, config.routed_expert_hidden_size
        self.gate = Router(config)
        self.experts: nn.Module = Experts(config, quant)
        self.shared_experts = SituMLP(config, config.shared_intermediate_size)
        self.routed_expert_down_proj = nn.Linear(h, latent, bias=False)
        self.routed_expert_norm = RMSNorm(latent, config.rms_norm_eps)
        self.routed_expert_up_proj = nn.Linear(latent, h, bias=False)

    def forward(self, x: Tensor, routes: Tensor | None = None, copies: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Real tokens only: x [N, H], routes [N, K] and copies [N] or None -> (y [N, H], chosen Long [N, K])."""
        weights, chosen = self.gate(x, routes, copies)
        z, norm = self.routed_expert_down_proj(x), self.routed_expert_norm
        own = type(self.experts) is Experts
        u = self.experts(z, weights, chosen, norm) if own else norm(self.experts(z, weights, chosen))
        return self.routed_expert_up_proj(u) + self.shared_experts(x), chosen
