"""What a chunk of a long row reads of the tokens before it in full attention, and the gradient that it leaves there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kernels.flash import latent_attend
from kernels.sparse import sparse_attend
from kernels.topk import select_keys
from model.config import K3Config
from model.mla import MLA


class Past:
    """Latents and index keys of N packed tokens for every full layer; selections; gradients of the latents.

    With `offload` they lie in host memory (pinned, for a GPU) and come to the device one layer at a time.
    """

    def __init__(self, config: K3Config, tokens: int, dtype: torch.dtype, device: torch.device, offload: bool) -> None:
        self.device, self.home = device, torch.device("cpu") if offload else device
        self.pin = offload and device.type == "cuda"
        layers, indexed = len(config.linear_attn_config.full_attn_layers), config.index_topk is not None
        self.latents = [self._empty(tokens, config.latent_dim, dtype) for _ in range(layers)]
        self.keys = [self._empty(tokens, config.index_head_dim, dtype) for _ in range(layers * indexed)]
        self.selected: dict[tuple[int, int], Tensor] = {}
        """Int [T, k] by (layer, first token of the chunk): what `select_keys` chose."""
        self._grads: list[Tensor] = []
        self.anchor = torch.zeros((), dtype=dtype, device=device, requires_grad=True)
        """Differentiate for it too: autograd visits only what leads to the inputs that it is asked for."""

    def _empty(self, tokens: int, width: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(tokens, width, dtype=dtype, device=self.home, pin_memory=self.pin)

    def start_gradients(self) -> None:
        """Set the gradients to zero; index keys are not needed any more."""
        self.keys = []
        self._grads = [torch.zeros_like(x) for x in self.latents]

    def gradient(self, layer: int, span: slice) -> Tensor:
        """What later chunks left in the latents of `span` [T, D]."""
        return self._grads[layer][span].to(self.device)

    def read(self, layer: int, spans: list[slice]) -> Tensor:
        """Latents [p, D] of `spans`; their gradient is added to what later chunks left."""
        return _Deposit.apply(self.anchor, _gather(self.latents[layer], spans, self.device), self, layer, spans)

    def add(self, layer: int, spans: list[slice], grad: Tensor) -> None:
        """Add a gradient [p, D] of the latents of `spans`."""
        sizes = [s.stop - s.start for s in spans]
        for span, part in zip(spans, grad.to(self.home).split(sizes), strict=True):
            self._grads[layer][span] += part

    def select(self, m: MLA, layer: int, span: slice, spans: list[slice], x: Tensor, q_latent: Tensor) -> Tensor:
        """Int [T, k]: the keys of a chunk's queries among those of `spans` and its own; chosen once, then replayed."""
        name = (layer, span.start)
        indexer = m.indexer
        if indexer is not None and name not in self.selected:
            with torch.no_grad():
                keys = self.keys[layer]
                keys[span] = indexer.keys(x).to(self.home)
                q, weights = indexer.queries(x, q_latent)
                seen, start = _gather(keys, [*spans, span], self.device), sum(s.stop - s.start for s in spans)
                index = select_keys(q, weights * indexer.head_dim**-0.5, seen, start, indexer.topk)
                self.selected[name] = index.to(self.home)
        return self.selected[name].to(self.device)


class _Deposit(Function):
    """Latents of earlier chunks, as they are; their gradient goes to `Past`, at once, and no further."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, latents: Tensor, past: Past, layer: int, spans: list[slice]) -> Tensor:  # type: ignore[override]
        ctx.past, ctx.layer, ctx.spans = past, layer, spans
        return latents.view_as(latents)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        ctx.past.add(ctx.layer, ctx.spans, grad)
        return grad.new_zeros(()), None, None, None, None


def _gather(x: Tensor, spans: list[slice], device: torch.device) -> Tensor:
    parts = [x[s].to(device, non_blocking=True) for s in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else x[:0].to(device)


def attend(m: MLA, x: Tensor, past: Past, layer: int, span: slice, spans: list[slice]) -> tuple[Tensor, Tensor]:
    """The full mixer on a chunk x [T, H], the packed tokens `span`, behind those of `spans`, which `past` holds.

    With an indexer the absorbed form over its selection, else dense attention in the plain form; both make what they
    read of the past in blocks. Returns (y [T, H], the chunk's latents [T, D]).
    """
    q_latent, q, latent, gate = m._project(x)
    latents = torch.cat((past.read(layer, spans), latent)) if spans else latent
    weight = m.kv_b_proj.weight.view(m.heads, m.nope + m.v_dim, m.kv_rank)
    if m.indexer is None:
        o = latent_attend(q, latents, weight, m.scale)
    else:
        index = past.select(m, layer, span, spans, x, q_latent)
        to_key, to_value = weight.split((m.nope, m.v_dim), 1)
        inner = torch.bmm(q[..., : m.nope].transpose(0, 1), to_key).transpose(0, 1)
        read = sparse_attend(torch.cat((inner, q[..., m.nope :]), -1), latents, index, m.kv_rank, m.scale)
        o = torch.bmm(read.transpose(0, 1), to_value.mT).transpose(0, 1)
    return m._output(o.flatten(1), gate), latent
