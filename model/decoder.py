"""The K3 causal language model: depth with block attention residuals; training forward, prefill, extend, decode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter, gt
from typing import Any, cast

import torch
from torch import Tensor, nn

from kernels.rows import scatter_rows
from model.activations import SituMLP
from model.attn_res import BlockBank
from model.cache import DecodeState, Rows
from model.config import K3Config
from model.joined import Derived
from model.kda import KDA
from model.mla import MLA
from model.moe import LatentMoE, Router
from model.norms import Query, RMSNorm, Scale
from model.packing import Packing
from model.quant import QuantSpec
from model.step import DecodeStep

EXPERT_WEIGHTS = ("w1", "w2", "w3")

_version = attrgetter("_version")


@dataclass(frozen=True, eq=False)
class Hidden:
    """What a forward returns."""

    hidden: Tensor
    """[B, T, H], after the final norm; zero at pads."""
    routes: Tensor | None
    """Long [B, T, L_moe, K]: experts that were used, best first; -1 at pads. None from a foreign model."""
    index_loss: Tensor | None = None
    """Mean over full layers of the indexers' loss, if `dsa.enable_index_loss` is on; gradients reach indexers only."""


class DecoderLayer(nn.Module):
    """A mixer (KDA or full attention) and a feed-forward part (dense or MoE), with the queries of their depth mixes."""

    def __init__(self, config: K3Config, layer: int, quant: QuantSpec) -> None:
        super().__init__()
        h, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn: nn.Module = (KDA if config.layer_types[layer] == "kda" else MLA)(config)
        if layer in config.moe_layers:
            self.block_sparse_moe = LatentMoE(config, quant)
        else:
            self.mlp = SituMLP(config, config.intermediate_size)
        self.input_layernorm = RMSNorm(h, eps)
        self.post_attention_layernorm = RMSNorm(h, eps)
        self.self_attention_res_norm, self.self_attention_res_proj = Scale(h), Query(h)
        self.mlp_res_norm, self.mlp_res_proj = Scale(h), Query(h)

    @property
    def moe(self) -> LatentMoE | None:
        """The MoE part, or None in a dense layer."""
        return getattr(self, "block_sparse_moe", None)

    def attention_mix(self) -> tuple[Tensor, Tensor, Tensor]:
        """(key weight, pseudo-query, norm weight) of the depth mix before the mixer."""
        return self.self_attention_res_norm.weight, self.self_attention_res_proj.weight, self.input_layernorm.weight

    def ffn_mix(self) -> tuple[Tensor, Tensor, Tensor]:
        """(key weight, pseudo-query, norm weight) of the depth mix before the feed-forward part."""
        return self.mlp_res_norm.weight, self.mlp_res_proj.weight, self.post_attention_layernorm.weight


class Backbone(nn.Module):
    """Everything under the public prefix `model.`."""

    def __init__(self, config: K3Config, quant: QuantSpec) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, i, quant) for i in range(config.num_hidden_layers))
        self.output_attn_res_norm, self.output_attn_res_proj = Scale(config.hidden_size), Query(config.hidden_size)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.block_size, self.eps = config.attn_res_block_size, config.rms_norm_eps

    def forward(
        self,
        ids: Tensor,
        mixer: Callable[[int, nn.Module, Tensor], Tensor],
        routes: Tensor | None = None,
        copies: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run depth on packed tokens: ids [N], mixer(layer, module, x [N, H]) -> [N, H], routes [N, L_moe, K] or None.

        copies Long [N] or None: rows that each token stands for, where the experts' balance is counted.
        Returns (final hidden [N, H], chosen experts Long [N, L_moe, K]).
        """
        bank = BlockBank(self.embed_tokens(ids), self.block_size)
        chosen: list[Tensor] = []
        for i, layer in enumerate(cast("Iterable[DecoderLayer]", self.layers)):
            x = bank.mix(*layer.attention_mix(), self.eps)
            bank.add_attention(i, mixer(i, layer.self_attn, x))
            x = bank.mix(*layer.ffn_mix(), self.eps)
            if layer.moe is None:
                y = layer.mlp(x)
            else:
                y, experts = layer.moe(x, None if routes is None else routes[:, len(chosen)], copies)
                chosen.append(experts)
            bank.add_ffn(y)
        out = (self.output_attn_res_norm.weight, self.output_attn_res_proj.weight, self.norm.weight)
        return bank.mix(*out, self.eps), torch.stack(chosen, 1)


class Policy(nn.Module):
    """The K3 family's causal language model. Rows are right-padded, start from an empty state, and have no pads inside.

    After every change of the weights call `refresh_quantized`; `load_named_weights` does so itself.
    """

    shares_prefixes = True
    """Whether `forward` takes parents: rows that begin alike are computed once."""

    def __init__(self, config: K3Config, quant: QuantSpec | None = None) -> None:
        super().__init__()
        if config.num_nextn_predict_layers:
            raise ValueError(f"num_nextn_predict_layers={config.num_nextn_predict_layers}: this policy has none, set 0")
        self.config, self.quant = config, quant or QuantSpec()
        self.model = Backbone(config, self.quant)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        kinds = config.layer_types
        self._derived = False
        self._watched: list[Tensor] = []
        self._versions: list[int] = []
        self._step: DecodeStep | None = None
        """Folded from the weights at the first decode after a refresh."""
        self._slot = [kinds[:i].count(kind) for i, kind in enumerate(kinds)]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return self.lm_head.weight.dtype

    @torch.no_grad()
    def reset_parameters(self, seed: int = 0) -> None:
        """Matrices N(0, initializer_range), norms 1, pseudo-queries and selection bias 0, KDA gates reset."""
        generator = torch.Generator().manual_seed(seed)
        kept = ("norm.weight", "res_proj.weight", "k_norm.bias", "A_log", "dt_bias")
        for name, p in self.named_parameters():
            if not name.endswith(kept):
                noise = torch.randn(p.shape, generator=generator, dtype=torch.float32)
                p.copy_(noise * self.config.initializer_range)
        for m in self.modules():
            if isinstance(m, KDA):
                m.reset_gate(generator)
        self.refresh_quantized()

    def routers(self) -> Iterator[Router]:
        """The routers of the MoE layers, in order."""
        layers = cast("Iterable[DecoderLayer]", self.model.layers)
        return (layer.moe.gate for layer in layers if layer.moe is not None)

    def refresh_quantized(self) -> None:
        """Recompute rounded experts and joined projections; call it once after every change of the weights."""
        for m in self.modules():
            if isinstance(m, Derived):
                m.refresh()
        self._derived, self._step = True, None
        self._watched = list(self.parameters())
        self._versions = list(map(_version, self._watched))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Policy:
        """Keep what is derived from the weights with them when they move or change dtype."""
        super()._apply(fn, recurse)
        if self._derived:
            self.refresh_quantized()
        return self

    # --- training ---------------------------------------------------------------------------------------------------

    def forward(
        self, input_ids: Tensor, lengths: Tensor, routes: Tensor | None = None, parents: Tensor | None = None
    ) -> Hidden:
        """input_ids Long [B, T] right-padded, lengths Long [B] (1..T), routes [B, T, L_moe, K] or None.

        parents Long [B]: the row whose tokens come before a row's own, -1 for none. What several rows begin with is one
        row that they name: computed once, with the sum of their gradients, exactly as if each row were whole.
        Where routes are >= 0 those experts are used (replay), elsewhere the live choice. Raises ValueError for bad
        lengths or parents, or a routes shape that does not match.
        """
        b, t = input_ids.shape
        lengths = lengths.to(input_ids.device)
        packing = Packing(lengths, t, parents)
        at = packing.row * t + packing.pos
        if routes is not None:
            want = (b, t, len(self.config.moe_layers), self.config.num_experts_per_token)
            if tuple(routes.shape) != want:
                raise ValueError(f"routes {tuple(routes.shape)} do not match {want}")
            routes = routes.to(input_ids.device).flatten(0, 1)[at]
        losses: list[Tensor] = []

        def mixer(_: int, m: nn.Module, x: Tensor) -> Tensor:
            out = m(x, packing)
            if isinstance(m, MLA) and out[3] is not None:
                losses.append(out[3])
            return out[0]

        hidden, chosen = self.model(input_ids.flatten()[at], mixer, routes, packing.copies)
        out_routes = chosen.new_full((b * t, *chosen.shape[1:]), -1)
        out_routes[at] = chosen
        return Hidden(
            scatter_rows(hidden, at, b * t).view(b, t, -1),
            out_routes.view(b, t, *chosen.shape[1:]),
            torch.stack(losses).mean() if losses else None,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] -> logits [..., V]."""
        logits = self.lm_head(hidden)
        return logits if self.config.logit_scale == 1.0 else logits * self.config.logit_scale

    # --- decoding ---------------------------------------------------------------------------------------------------

    def new_state(self, capacity: int, max_len: int) -> DecodeState:
        """An empty decode state for `capacity` sequences of at most `max_len` tokens."""
        return DecodeState(self.config, capacity, max_len, self.dtype, self.device)

    def prefill(self, input_ids: Tensor, lengths: Tensor, state: DecodeState, rows: Rows) -> tuple[Tensor, Tensor]:
        """Run prompts from an empty state into distinct `rows` of `state`, whatever those rows held.

        input_ids Long [B, T], lengths Long [B], rows Long [B]. Returns (logits after each last token [B, V],
        routes Long [B, T, L_moe, K], -1 at pads). Raises ValueError if a prompt does not fit.
        """
        state.lengths[state._rows(rows)[0]] = 0
        return self.extend(input_ids, lengths, state, rows)

    @torch.no_grad()
    def extend(self, input_ids: Tensor, lengths: Tensor, state: DecodeState, rows: Rows) -> tuple[Tensor, Tensor]:
        """As `prefill`, but continuing from what the rows hold (the next turn of a conversation)."""
        b, t = input_ids.shape
        host_rows, dev_rows = state._rows(rows)
        host_past = state.lengths[host_rows]
        after = host_past + lengths.cpu()
        longest = int(after.max())
        if longest > state.max_len:
            raise ValueError(f"a sequence of {longest} tokens does not fit max_len {state.max_len}")
        packing = Packing(lengths.to(self.device), t)
        past = host_past.to(self.device) if bool(host_past.any()) else None
        cache_at = (dev_rows[packing.row], packing.pos)

        def mixer(i: int, m: Any, x: Tensor) -> Tensor:
            slot = self._slot[i]
            if isinstance(m, KDA):
                conv = recurrent = None
                if past is not None:  # a row that starts at 0 starts from zeros, whatever it held before
                    started = (past > 0).to(x.dtype)
                    conv = state.conv[slot, dev_rows] * started.view(-1, 1, 1)
                    recurrent = state.recurrent[slot, dev_rows] * started.view(-1, 1, 1, 1)
                y, state.conv[slot, dev_rows], state.recurrent[slot, dev_rows] = m(x, packing, conv, recurrent)
                return y
            index = None if state.index is None else state.index[slot]
            if past is not None:
                return m.extend(x, packing, state.latent[slot], index, dev_rows, past, longest)
            y, latent, keys, _ = m(x, packing, keep=True)
            state.latent[slot][cache_at] = latent
            if index is not None:
                index[cache_at] = keys
            return y

        at = packing.row * t + packing.pos
        hidden, chosen = self.model(input_ids.to(self.device).flatten()[at], mixer)
        state.lengths[host_rows] = after
        routes = chosen.new_full((b * t, *chosen.shape[1:]), -1)
        routes[at] = chosen
        return self.logits(hidden[packing.last]), routes.view(b, t, *chosen.shape[1:])

    @torch.no_grad()
    def decode(self, tokens: Tensor, state: DecodeState, n: int) -> tuple[Tensor, Tensor]:
        """Append tokens Long [n] to rows 0..n-1 of `state`, in place, without copying rows.

        Returns (logits [n, V], routes Long [n, L_moe, K]). Raises ValueError if a row is full.
        """
        if not self._derived or any(map(gt, map(_version, self._watched), self._versions)):
            raise RuntimeError("weights changed: call refresh_quantized() before the next decode")
        if self._step is None:
            self._step = DecodeStep(self)
        return self._step(tokens.to(self.device), state, n)

    # --- weights ----------------------------------------------------------------------------------------------------

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(public name, full-precision tensor) of every weight, experts one by one, then the selection biases."""
        for name, p in self.named_parameters():
            head, _, last = name.rpartition(".")
            if head.endswith(".experts") and last in EXPERT_WEIGHTS:
                for e in range(p.shape[0]):
                    yield f"{head}.{e}.{last}.weight", p.detach()[e]
            else:
                yield name, p.detach()
        for name, b in self.named_buffers():
            if name.endswith(".e_score_correction_bias"):
                yield name, b

    @torch.no_grad()
    def load_named_weights(self, weights: Mapping[str, Any]) -> None:
        """Copy in every weight by its public name (tensors or arrays) and refresh the rounded experts.

        Strict: raises ValueError naming what is missing, unknown or of another shape, before anything is written.
        """
        own = dict(self.named_weights())
        new = {k: torch.as_tensor(v) for k, v in weights.items()}
        wrong = [f"missing {k}" for k in own if k not in new] + [f"unknown {k}" for k in new if k not in own]
        wrong += [
            f"{k}: {tuple(new[k].shape)} for {tuple(v.shape)}"
            for k, v in own.items()
            if k in new and new[k].shape != v.shape
        ]
        if wrong:
            raise ValueError(f"{len(wrong)} weights do not fit: {'; '.join(wrong[:5])}")
        for k, v in own.items():
            v.copy_(new[k])
        self.refresh_quantized()
