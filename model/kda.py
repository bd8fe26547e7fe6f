"""The Kimi Delta Attention mixer: short convolutions, bounded gate, delta rule, gated head norm (arXiv 2607.24653)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from kernels.conv import conv_silu
from kernels.kda import kda_attend, kda_chunk, takes_raw
from kernels.norm import gated_head_norm, l2_norm
from model.config import K3Config
from model.joined import Derived, Joined
from model.norms import Scale
from model.packing import Packing


class ShortConv(nn.Module):
    """Holds the weight [C, 1, W] of one causal depthwise convolution."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))


class KDA(Derived):
    """One KDA mixer: packed tokens [N, H] in and out; state per sequence: [heads, K, V] and the last conv inputs."""

    def __init__(self, config: K3Config) -> None:
        super().__init__()
        la, h = config.linear_attn_config, config.hidden_size
        self.heads, self.head_dim, self.width = la.num_heads, la.head_dim, la.width
        self.lower_bound, self.eps, self.taps = la.gate_lower_bound, config.rms_norm_eps, la.short_conv_kernel_size
        self.q_proj = nn.Linear(h, la.width, bias=False)
        self.k_proj = nn.Linear(h, la.width, bias=False)
        self.v_proj = nn.Linear(h, la.width, bias=False)
        self.g_proj = nn.Linear(h, la.width, bias=False)
        self.f_a_proj = nn.Linear(h, la.head_dim, bias=False)
        self.f_b_proj = nn.Linear(la.head_dim, la.width, bias=False)
        self.b_proj = nn.Linear(h, la.num_heads, bias=False)
        self.q_conv1d = ShortConv(la.width, self.taps)
        self.k_conv1d = ShortConv(la.width, self.taps)
        self.v_conv1d = ShortConv(la.width, self.taps)
        self.A_log = nn.Parameter(torch.zeros(la.a_log_size))
        self.dt_bias = nn.Parameter(torch.empty(la.width))
        self.o_norm = Scale(la.head_dim)
        self.o_proj = nn.Linear(la.width, h, bias=False)
        self._in = Joined(self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.f_a_proj, self.b_proj)
        self._conv = Joined(self.q_conv1d, self.k_conv1d, self.v_conv1d)

    def refresh(self) -> None:
        """Join the projections and convolutions for calls without gradients."""
        self._in.refresh()
        self._conv.refresh()

    @torch.no_grad()
    def reset_gate(self, generator: torch.Generator | None) -> None:
        """A_log = 0 and dt_bias = softplus^-1(dt), dt log-uniform in [1e-3, 1e-1]: initial log-decay about -5 dt."""
        self.A_log.zero_()
        u = torch.rand(self.dt_bias.shape, generator=generator, dtype=torch.float32)
        dt = torch.exp(math.log(1e-3) + u * (math.log(1e-1) - math.log(1e-3))).clamp_min(1e-4)
        self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))

    @property
    def _a_log(self) -> Tensor:
        """Clamped far above any trained value, so that exp of it times 0 is 0."""
        return self.A_log[: self.heads].clamp(max=20.0)

    def _decay(self, low: Tensor) -> Tensor:
        """Log-decay [N, D]."""
        rate = self._a_log.exp().repeat_interleave(self.head_dim)
        return torch.sigmoid(rate * torch.addmm(self.dt_bias, low, self.f_b_proj.weight.mT)) * self.lower_bound

    def _output(self, o: Tensor, gate: Tensor) -> Tensor:
        """o [N, heads, V], gate [N, D] -> [N, H]."""
        y = gated_head_norm(o, gate.view(-1, self.heads, self.head_dim), self.o_norm.weight, self.eps)
        return self.o_proj(y.reshape(-1, self.width))

    def forward(
        self, x: Tensor, packing: Packing, conv: Tensor | None = None, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x [N, H] from `conv` [B, W-1, 3D] and `state` [B, heads, K, V], both None at position 0.

        Returns (y [N, H], the last W-1 conv inputs of each row [B, W-1, 3D], state after each row's last token).
        """
        sizes = (3 * self.width, self.width, self.head_dim, self.heads)
        inputs, gate, low, b = (x @ self._in().mT).split(sizes, -1)
        before = self.taps - 1
        carried = inputs.new_zeros(packing.batch, before, 3 * self.width) if conv is None else conv
        inputs = torch.cat((inputs, inputs.new_zeros(1, 3 * self.width), carried.flatten(0, 1)))
        windows, tails = packing.windows(before)
        qkv = conv_silu(inputs.index_select(0, windows.flatten()).unflatten(0, windows.shape), self._conv().squeeze(1))
        qkv = qkv.view(*qkv.shape[:2], 3, self.heads, self.head_dim)
        if takes_raw(x, self.head_dim):
            z = (low @ self.f_b_proj.weight.mT).unflatten(-1, (self.heads, self.head_dim))
            q, k, v = packing.from_tiles(qkv).unbind(1)
            o, state = self._attend(packing, (q, k, v, z, b), state)
            return self._output(o, gate), inputs[tails], state
        q, k, v = qkv.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        q, k = l2_norm(q, self.head_dim**-0.5), l2_norm(k)
        g = packing.to_tiles(self._decay(low)).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        # Pads have beta = 0 and log-decay 0: they leave the state alone.
        beta = packing.to_tiles(torch.sigmoid(b)).transpose(1, 2)
        o, state = kda_chunk(q, k, v, g, beta, packing.tiles, state)
        return self._output(packing.from_tiles(o.transpose(1, 2)), gate), inputs[tails], state

    def _attend(
        self, packing: Packing, inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`kda_attend` of packed inputs [N, heads, ..]; rows that continue others start from their last states."""
        gate = self._a_log, self.dt_bias.view(self.heads, self.head_dim)
        parts = packing.generations
        outs: list[Tensor] = []
        states: list[Tensor] = []
        if len(parts) == 1:
            return kda_attend(*inputs, *gate, parts[0].bounds, state, self.lower_bound)
        for i, part in enumerate(parts):
            start = states[-1][part.parents] if i else None if state is None else state[part.rows]
            q, k, v, z, b = (x.index_select(0, part.tokens) for x in inputs)
            o, last = kda_attend(q, k, v, z, b, *gate, part.bounds, start, self.lower_bound)
            outs.append(o)
            states.append(last)
        tokens = torch.argsort(torch.cat([part.tokens for part in parts]))
        rows = torch.argsort(torch.cat([part.rows for part in parts]))
        return torch.cat(outs)[tokens], torch.cat(states)[rows]
