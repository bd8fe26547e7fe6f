"""What a chunk of a long row reads of the tokens before it in full attention, and the gradient that it leaves there.

Where the indexers learn, a chunk reads the index keys of earlier tokens as it reads their latents, and leaves them a
gradient too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from kernels.indexer import index_scores, select_keys
from kernels.sparse_mla import latent_attend, sparse_attend, sparse_shares
from model.config import K3Config
from model.dsa import index_loss
from model.mla import MLA


@dataclass(frozen=True, eq=False)
class Attended:
    """What a full layer gives for a chunk of T tokens."""

    y: Tensor
    """[T, H]."""
    latent: Tensor
    """[T, D]: the tokens' own latents."""
    keys: Tensor | None = None
    """[T, d]: their index keys, where the indexer learns."""
    loss: Tensor | None = None
    """[T]: each token's index loss, there."""


class Past:
    """Latents and index keys of N packed tokens for every full layer; selections; gradients of latents and keys.

    With `offload` they lie in host memory (pinned, for a GPU) and come to the device one layer at a time.
    """

    def __init__(
        self,
        config: K3Config,
        tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        offload: bool,
        replay: Tensor | None = None,
        learn: bool = False,
    ) -> None:
        """replay int32 [N, L_full, k]: selections that were recorded, see `model.dsa`; learn: the indexers do."""
        self.device, self.home = device, torch.device("cpu") if offload else device
        self.pin = offload and device.type == "cuda"
        layers, indexed = len(config.linear_attn_config.full_attn_layers), config.index_topk is not None
        self.latents = [self._empty(tokens, config.latent_dim, dtype) for _ in range(layers)]
        self.keys = [self._empty(tokens, config.index_head_dim, dtype) for _ in range(layers * indexed)]
        self.selected: dict[tuple[int, int], Tensor] = {}
        """Int [T, k] by (layer, first token of the chunk): what `select_keys` chose."""
        self.replay = None if replay is None else replay.to(self.home)
        self.learn = learn
        self._grads: dict[str, list[Tensor]] = {}
        self.anchor = torch.zeros((), dtype=dtype, device=device, requires_grad=True)
        """Differentiate for it too: autograd visits only what leads to the inputs that it is asked for."""

    def _empty(self, tokens: int, width: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(tokens, width, dtype=dtype, device=self.home, pin_memory=self.pin)

    def start_gradients(self) -> None:
        """Set the gradients to zero; index keys are not needed any more, unless the indexers learn."""
        if not self.learn:
            self.keys = []
        self._grads = {kind: [torch.zeros_like(x) for x in getattr(self, kind)] for kind in ("latents", "keys")}

    def gradient(self, layer: int, span: slice, kind: str = "latents") -> Tensor:
        """What later chunks left in the latents (or "keys") of `span` [T, .]."""
        return self._grads[kind][layer][span].to(self.device)

    def read(self, layer: int, spans: list[slice], kind: str = "latents") -> Tensor:
        """Latents (or "keys") [p, .] of `spans`; their gradient is added to what later chunks left."""
        values = _gather(getattr(self, kind)[layer], spans, self.device)
        return _Deposit.apply(self.anchor, values, self, (kind, layer), spans)

    def add(self, place: tuple[str, int], spans: list[slice], grad: Tensor) -> None:
        """Add a gradient [p, .] of what `read` gave of `spans`."""
        (kind, layer), sizes = place, [s.stop - s.start for s in spans]
        for span, part in zip(spans, grad.to(self.home).split(sizes), strict=True):
            self._grads[kind][layer][span] += part

    def select(self, m: MLA, layer: int, span: slice, spans: list[slice], x: Tensor, q_latent: Tensor) -> Tensor:
        """Int [T, k]: the keys of a chunk's queries among those of `spans` and its own; chosen once, then replayed.

        A token with a recorded selection has that one.
        """
        name = (layer, span.start)
        indexer = m.indexer
        if indexer is not None and name not in self.selected:
            with torch.no_grad():
                keys = self.keys[layer]
                keys[span] = indexer.keys(x).to(self.home)
                given = None if self.replay is None else self.replay[span, layer]
                if given is None or bool((given < 0).all(-1).any()):
                    q, weights = indexer.queries(x, q_latent)
                    seen, start = _gather(keys, [*spans, span], self.device), sum(s.stop - s.start for s in spans)
                    index = select_keys(q, weights * indexer.head_dim**-0.5, seen, start, indexer.topk).to(self.home)
                    if given is not None:
                        index = F.pad(index, (0, indexer.topk - index.shape[1]), value=-1)
                        index = torch.where((given < 0).all(-1, keepdim=True), index, given)
                    given = index
                self.selected[name] = given
        return self.selected[name].to(self.device)


class _Deposit(Function):
    """Latents or keys of earlier chunks, as they are; their gradient goes to `Past`, at once, and no further."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, anchor: Tensor, values: Tensor, past: Past, place: tuple[str, int], spans: list[slice]
    ) -> Tensor:
        ctx.past, ctx.place, ctx.spans = past, place, spans
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        ctx.past.add(ctx.place, ctx.spans, grad)
        return grad.new_zeros(()), None, None, None, None


def _gather(x: Tensor, spans: list[slice], device: torch.device) -> Tensor:
    parts = [x[s].to(device, non_blocking=True) for s in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else x[:0].to(device)


def attend(m: MLA, x: Tensor, past: Past, layer: int, span: slice, spans: list[slice]) -> Attended:
    """The full mixer on a chunk x [T, H], the packed tokens `span`, behind those of `spans`, which `past` holds.

    With an indexer the absorbed form over its selection, else dense attention in the plain form; both make what they
    read of the past in blocks.
    """
    q_latent, q, latent, gate = m._project(x)
    latents = torch.cat((past.read(layer, spans), latent)) if spans else latent
    weight = m.kv_b_proj.weight.view(m.heads, m.nope + m.v_dim, m.kv_rank)
    keys = loss = None
    if m.indexer is None:
        o = latent_attend(q, latents, weight, m.scale)
    else:
        index = past.select(m, layer, span, spans, x, q_latent)
        to_key, to_value = weight.split((m.nope, m.v_dim), 1)
        inner = torch.bmm(q[..., : m.nope].transpose(0, 1), to_key).transpose(0, 1)
        inner = torch.cat((inner, q[..., m.nope :]), -1)
        read = sparse_attend(inner, latents, index, m.kv_rank, m.scale)
        o = torch.bmm(read.transpose(0, 1), to_value.mT).transpose(0, 1)
        if past.learn and torch.is_grad_enabled():
            keys = m.indexer.keys(x)
            every = torch.cat((past.read(layer, spans, "keys"), keys)) if spans else keys
            scores = index_scores(*m.indexer.queries(x, q_latent), every, index, m.indexer.head_dim**-0.5)
            loss = index_loss(scores, index >= 0, sparse_shares(inner, latents, index, m.scale))
    return Attended(m._output(o.flatten(1), gate), latent, keys, loss)
