"""The feed-forward parts of a decode step: dense layer, mixture of experts, and mixtures that run as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.experts.torch import DENSE_MACS
from kernels.mx import RoundMxfp8
from model.activations import SituMLP
from model.moe import Experts, LatentMoE
from model.step_parts import Inverse, Space, columns

_ROWS = 16
"""Rows of an engine's smallest step: if running all experts on all rows pays there (DENSE_MACS), it is always done."""


FeedForward = Callable[[Tensor, Tensor], Tensor | None]
"""Adds a layer's feed-forward part to the running sum: (x [n, H], sum [n, H]) -> chosen experts [n, K] or None."""


class _Situ:
    """SiTU-GLU, but for its constant factor: one matrix gives [u / linear_beta | g / beta | g]."""

    def __init__(self, gate: Tensor, up: Tensor, betas: tuple[float, float | None]) -> None:
        self._uncapped = betas[1] is None
        linear_beta = 1.0 if betas[1] is None else betas[1]
        self.weight = torch.cat((up / linear_beta, gate / betas[0], gate))
        """[3 I, in]."""
        self.factor, self._width = betas[0] * linear_beta, up.shape[0]

    def bind(self, y: Tensor, out: Tensor) -> Callable[[], None]:
        """y [n, 3 I], which is overwritten -> out [n, I], short of the factor."""
        width = self._width
        capped, gate, up = y[:, width * self._uncapped : 2 * width], y[:, width:], y[:, :width]

        def run() -> None:
            capped.tanh_()
            torch.mul(F.glu(gate, 1), up, out=out)

        return run


def ffn_step(m: nn.Module, norm: Tensor, apart: bool) -> _MLPStep | _MoEStep | _ModuleStep:
    """A layer's feed-forward part; norm [H]: the weight of the norm before it. apart: see `DecodeStep`."""
    if isinstance(m, SituMLP):
        return _MLPStep(m, norm)
    moe = cast(LatentMoE, m)
    experts = moe.experts
    if isinstance(experts, Experts) and 2 * _ROWS * experts.w1.numel() <= DENSE_MACS[norm.device.type == "cpu"]:
        return _MoEStep(moe, experts, norm)
    return _ModuleStep(moe, norm, apart)


class _ModuleStep:
    """A mixture of experts that is too large for running all of them, or replaced: as it is, one row after the other if
    they are kept apart."""

    def __init__(self, m: LatentMoE, norm: Tensor, apart: bool) -> None:
        self._m, self._norm, self._apart = m, norm.detach(), apart

    def bind(self, _: Space) -> FeedForward:
        """See FeedForward."""

        def run(x: Tensor, total: Tensor) -> Tensor:
            if not self._apart:
                y, chosen = self._m(x * self._norm)
                total += y
                return cast(Tensor, chosen)
            done = [self._m(row) for row in (x * self._norm).split(1)]
            total += torch.cat([y for y, _ in done])
            return torch.cat([chosen for _, chosen in done])

        return run


class _MLPStep:
    """The dense layer."""

    def __init__(self, m: SituMLP, norm: Tensor) -> None:
        self._situ = _Situ(m.gate_proj.weight.detach(), m.up_proj.weight.detach(), m.betas)
        self._in = columns(self._situ.weight, norm)
        self._out = columns(m.down_proj.weight * self._situ.factor)

    def bind(self, space: Space) -> FeedForward:
        """See FeedForward."""
        hidden, act = space("in", self._in.shape[1]), space("act", self._out.shape[0])
        situ = self._situ.bind(hidden, act)

        def run(x: Tensor, total: Tensor) -> None:
            torch.mm(x, self._in, out=hidden)
            situ()
            total.addmm_(act, self._out)

        return run


class _MoEStep:
    """Router, all experts and the shared one, on all rows."""

    def __init__(self, m: LatentMoE, experts: Experts, norm: Tensor) -> None:
        w13, w2 = experts.gemm_weights()
        self._experts, self._latent, width = w2.shape
        shared = m.shared_experts
        self._shared = _Situ(shared.gate_proj.weight.detach(), shared.up_proj.weight.detach(), shared.betas)
        self._in = columns(torch.cat((m.gate.weight, m.routed_expert_down_proj.weight, self._shared.weight)), norm)
        self._bias, self._k, self._factor = m.gate.e_score_correction_bias, m.gate.k, m.gate.factor
        self._renormalise = m.gate.renormalise
        self._situ = _Situ(w13[:, :width].flatten(0, 1), w13[:, width:].flatten(0, 1), experts.betas)
        self._w13, self._w2 = columns(self._situ.weight), w2.detach().mT.flatten(0, 1).contiguous()
        self._round = _rounding(experts, norm)
        self._inverse = Inverse(norm, self._latent, m.routed_expert_norm.eps)
        up = columns(m.routed_expert_up_proj.weight, m.routed_expert_norm.weight)
        self._out = torch.cat((up, columns(shared.down_proj.weight * self._shared.factor)))
        self._zero, self._least = norm.new_tensor(0.0), norm.new_tensor(1e-20)
        self._cap = norm.new_tensor(self._situ.factor)

    def bind(self, space: Space) -> FeedForward:
        """See FeedForward."""
        n, experts, latent, renormalise = space.n, self._experts, self._latent, self._renormalise
        projected = space("in", self._in.shape[1])
        logits, z, shared_hidden = projected.split([experts, latent, projected.shape[1] - experts - latent], 1)
        scores, ranked, share = (space(name, experts) for name in ("scores", "ranked", "share"))
        hidden, act = space("hidden", self._w13.shape[1]), space("act", self._w2.shape[0])
        situ, act_experts, shares = self._situ.bind(hidden, act), act.view(n, experts, -1), share.unsqueeze(2)
        both, u = space("both", self._out.shape[0]), space("u", latent)
        normed = both[:, :latent]
        shared = self._shared.bind(shared_hidden, both[:, latent:])

        def run(x: Tensor, total: Tensor) -> Tensor:
            torch.mm(x, self._in, out=projected)
            torch.sigmoid(logits, out=scores)
            torch.add(scores, self._bias, out=ranked)
            chosen = torch.sort(ranked, dim=1, descending=True, stable=True)[1][:, : self._k]
            picked = scores.gather(1, chosen)
            if renormalise:
                total_score = picked.sum(1, keepdim=True).add_(self._least)
                weights = torch.addcdiv(self._zero, picked, total_score, value=self._factor)
            else:
                weights = picked * self._factor
            share.zero_().scatter_(1, chosen, weights)
            torch.mm(self._round(z), self._w13, out=hidden)
            situ()
            act.mul_(self._cap)
            torch.mm(self._round(act_experts).mul_(shares).view(n, -1), self._w2, out=u)
            torch.mul(u, self._inverse(u), out=normed)
            shared()
            total.addmm_(both, self._out)
            return chosen

        return run


def _rounding(experts: Experts, like: Tensor) -> Callable[[Tensor], Tensor]:
    """The rounding of the experts' inputs. What goes in is bounded: normed hidden states and capped activations."""
    quant: Any = experts.quant
    if quant.activation_rounding is None:
        return lambda x: x
    if like.dtype == torch.float32:
        return RoundMxfp8(quant.scale_rule, like.device, quant.activation_format)
    return cast(Callable[[Tensor], Tensor], quant.activation_rounding)
