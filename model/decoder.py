"""The K3 causal language model: depth with block attention residuals; training forward, prefill, extend, decode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from model.dsa import Picks, check_picks, check_replay
from model.joined import Derived
from model.kda import KDA
from model.logprob import NEVER
from model.mla import MLA
from model.moe import LatentMoE, Router, packed_routes
from model.mtp import MTPLayer
from model.norms import Query, RMSNorm, Scale
from model.packing import Packing
from model.quant import QuantSpec
from model.step import DecodeStep
from model.vision import Grid, MoonViT, Placed, Projector

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
    """Mean over tokens and full layers of the indexers' loss, if `dsa.enable_index_loss` is on; gradients reach them
    only. A token that rows share counts once for each row."""
    picks: Tensor | None = None
    """int32 [B, T, L_full, index_topk] if recorded: the keys that were attended to (`model.dsa`); -1 at pads."""
    mtp: Tensor | None = None
    """[B, T, H] if `mtp.enable_mtp` is on: what the next-but-one token is predicted from, after its norm."""


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
        self.mtp = MTPLayer(config, quant) if config.num_nextn_predict_layers else None
        self.block_size, self.eps = config.attn_res_block_size, config.rms_norm_eps

    def embed(self, ids: Tensor, images: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """[N, H] of ids [N]; images (index Long [M], features [M, H]): what stands in place of those tokens' own."""
        embedded = self.embed_tokens(ids)
        return embedded if images is None else embedded.index_copy(0, images[0], images[1].to(embedded))

    def forward(
        self,
        ids: Tensor,
        mixer: Callable[[int, nn.Module, Tensor], Tensor],
        routes: Tensor | None = None,
        copies: Tensor | None = None,
        images: tuple[Tensor, Tensor] | None = None,
        raw: list[Tensor] | None = None,
        around: Callable[..., Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run depth on packed tokens: ids [N], mixer(layer, module, x [N, H]) -> [N, H], routes [N, L_moe, K] or None.

        copies Long [N] or None: rows that each token stands for, where the experts' balance is counted.
        images: as in `embed`. raw: a list that gets the hidden [N, H] before the final norm.
        around(f, *args): calls a feed-forward part, f(*args) if None; it may keep less for the backward pass.
        Returns (final hidden [N, H], chosen experts Long [N, L_moe, K]).
        """
        bank = BlockBank(self.embed(ids, images), self.block_size)
        chosen: list[Tensor] = []
        for i, layer in enumerate(cast("Iterable[DecoderLayer]", self.layers)):
            x = bank.mix(*layer.attention_mix(), self.eps)
            bank.add_attention(i, mixer(i, layer.self_attn, x))
            x = bank.mix(*layer.ffn_mix(), self.eps)
            if layer.moe is None:
                y = layer.mlp(x) if around is None else around(layer.mlp, x)
            else:
                args = (x, None if routes is None else routes[:, len(chosen)], copies)
                y, experts = layer.moe(*args) if around is None else around(layer.moe, *args)
                chosen.append(experts)
            bank.add_ffn(y)
        keys = (self.output_attn_res_norm.weight, self.output_attn_res_proj.weight)
        if raw is not None:
            raw.append(bank.mix_raw(*keys, self.eps))
        return bank.mix(*keys, self.norm.weight, self.eps), torch.stack(chosen, 1)


class Policy(nn.Module):
    """The K3 family's causal language model. Rows are right-padded, start from an empty state, and have no pads inside.

    After every change of the weights call `refresh_quantized`; `load_named_weights` does so itself.
    """

    shares_prefixes = True
    """Whether `forward` takes parents: rows that begin alike are computed once."""

    def __init__(self, config: K3Config, quant: QuantSpec | None = None) -> None:
        super().__init__()
        self.config, self.quant = config, quant or QuantSpec()
        self.model = Backbone(config, self.quant)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        vision = config.vision
        self.vision_tower = None if vision is None else MoonViT(vision)
        self.mm_projector = None if vision is None else Projector(vision, config.hidden_size)
        marks = torch.tensor(config.media_tokens) if config.media_tokens else None
        self.register_buffer("marks", marks, persistent=False)  # moves with the policy; no weight
        self.marks: Tensor | None
        kinds = config.layer_types
        self._derived = False
        self._watched: list[Tensor] = []
        self._versions: list[int] = []
        self._step: DecodeStep | None = None
        """Folded from the weights at the first decode after a refresh."""
        self.rows_apart = False
        """Whether `decode` gives a row the same bits whatever the others are: `DecodeStep`."""
        self._slot = [kinds[:i].count(kind) for i, kind in enumerate(kinds)]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return self.lm_head.weight.dtype

    @property
    def sees(self) -> bool:
        """Whether it has a vision tower."""
        return self.vision_tower is not None

    @property
    def moe_shape(self) -> tuple[int, int] | None:
        """(MoE layers, experts of each)."""
        return len(self.config.moe_layers), self.config.num_experts

    @torch.no_grad()
    def reset_parameters(self, seed: int = 0) -> None:
        """Matrices N(0, initializer_range), norms 1, pseudo-queries and selection bias 0, KDA gates reset."""
        generator = torch.Generator().manual_seed(seed)
        vision = torch.Generator().manual_seed(seed)  # its own: a tower changes no weight of the text model
        kept = ("norm.weight", "norm0.weight", "norm1.weight", "res_proj.weight", "k_norm.bias", "A_log", "dt_bias")
        for name, p in self.named_parameters():
            if not name.endswith(kept):
                source = vision if name.startswith(("vision_tower.", "mm_projector.")) else generator
                noise = torch.randn(p.shape, generator=source, dtype=torch.float32)
                p.copy_(noise * self.config.initializer_range)
        for m in self.modules():
            if isinstance(m, KDA):
                m.reset_gate(generator)
        self.refresh_quantized()

    def routers(self) -> Iterator[Router]:
        """The routers of the MoE layers, in order; that of the MTP layer comes last."""
        layers = cast("Iterable[DecoderLayer]", self.model.layers)
        yield from (layer.moe.gate for layer in layers if layer.moe is not None)
        if self.model.mtp is not None:
            yield self.model.mtp.block_sparse_moe.gate

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

    def freeze_vision(self, tower: bool = True, projector: bool = False) -> None:
        """Whether the tower's and the projector's weights stay as they are; a frozen tower keeps nothing to go back.

        Raises ValueError if the policy has no vision tower.
        """
        for part, frozen in zip(self.seeing_parts(), (tower, projector), strict=True):
            part.requires_grad_(not frozen)

    def see(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Patches [P, 3, patch, patch] of images one after the other -> what stands for their tokens [M, H].

        Raises ValueError if the policy has no vision tower or a grid does not fit.
        """
        tower, projector = self.seeing_parts()
        return projector(tower(patches.to(self.lm_head.weight), grids))

    def seeing_parts(self) -> tuple[MoonViT, Projector]:
        """Tower and projector; raises ValueError if the policy has none."""
        if self.vision_tower is None or self.mm_projector is None:
            raise ValueError(
                "this policy has no vision tower: set model.vision, or take a model whose config has a vision_config"
            )
        return self.vision_tower, self.mm_projector

    def forward(
        self,
        input_ids: Tensor,
        lengths: Tensor,
        routes: Tensor | None = None,
        parents: Tensor | None = None,
        images: Placed | None = None,
        *,
        picks: Tensor | None = None,
        record_picks: bool = False,
    ) -> Hidden:
        """input_ids Long [B, T] right-padded, lengths Long [B] (1..T), routes [B, T, L_moe, K] or None.

        parents Long [B]: the row whose tokens come before a row's own, -1 for none. What several rows begin with is one
        row that they name: computed once, with the sum of their gradients, exactly as if each row were whole.
        Where routes are >= 0 those experts are used (replay), elsewhere the live choice. images: what stands in place
        of embeddings (`model.vision.place`); each row has its own, a parent's included. picks int32 [B, T, L_full,
        index_topk]: a token with an entry in a full layer attends there to exactly the keys named, others select live;
        `record_picks` returns them in that form. Raises ValueError for bad lengths or parents, routes of another shape
        or that are not top-k distinct experts, images outside the text, and picks of another shape or dtype or that
        name what the token cannot see.
        """
        b, t = input_ids.shape
        lengths = lengths.to(input_ids.device)
        packing = Packing(lengths, t, parents)
        at = packing.row * t + packing.pos
        if routes is not None:
            routes = packed_routes(routes, self.config, packing, (b, t), at)
        selection = None
        if picks is not None or record_picks:
            self._check_picks(picks, b, t)
            selection = self._selection(picks, packing, at, record_picks)
        losses: list[Tensor] = []

        def mixer(i: int, m: nn.Module, x: Tensor) -> Tensor:
            if not isinstance(m, MLA):
                return m(x, packing)[0]
            y, _, _, loss = m(x, packing, picks=selection, slot=self._slot[i])
            if loss is not None:
                losses.append(loss)
            return y

        media = None if images is None else (images.packed(at, t), images.features)
        mtp, ahead = self.model.mtp, None
        raw: list[Tensor] | None = None
        if mtp is not None and mtp.learn:
            if parents is not None:
                raise ValueError("the MTP layer reads the next token, which a shared beginning does not have: parents")
            raw = []
        ids = input_ids.flatten()[at]
        hidden, chosen = self.model(ids, mixer, routes, packing.copies, media, raw)
        if mtp is not None and raw is not None:
            ahead = scatter_rows(mtp(raw[0], self.model.embed(ids, media), packing), at, b * t).view(b, t, -1)
        out_routes = chosen.new_full((b * t, *chosen.shape[1:]), -1)
        out_routes[at] = chosen
        return Hidden(
            scatter_rows(hidden, at, b * t).view(b, t, -1),
            out_routes.view(b, t, *chosen.shape[1:]),
            torch.stack(losses).mean() if losses else None,
            _padded_picks(selection, at, b, t) if selection is not None and record_picks else None,
            ahead,
        )

    def _check_picks(self, picks: Tensor | None, *lead: int) -> None:
        k = self.config.index_topk
        if k is None:
            raise ValueError("picks cannot be recorded or replayed: the model has no indexer (index_topk is null)")
        if picks is not None:
            shape = (*lead, len(self.config.linear_attn_config.full_attn_layers), k)
            check_picks(picks, shape, "[..., full-attention layers, index_topk]")

    def _selection(self, picks: Tensor | None, packing: Packing, at: Tensor, record: bool) -> Picks:
        """What a forward replays and records; raises ValueError for picks that name what a token cannot see."""
        if picks is not None:
            picks = picks.to(packing.device).flatten(0, 1)[at]
            check_replay(picks, packing.row, packing.pos, packing.position)
        return Picks(picks, record)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] -> logits [..., V]; those of the marks of images are NEVER, in engine and learner alike."""
        logits = self.lm_head(hidden)
        logits = logits if self.config.logit_scale == 1.0 else logits * self.config.logit_scale
        return logits if self.marks is None else logits.index_fill(-1, self.marks, NEVER)

    # --- decoding ---------------------------------------------------------------------------------------------------

    def new_state(self, capacity: int, max_len: int) -> DecodeState:
        """An empty decode state for `capacity` sequences of at most `max_len` tokens."""
        return DecodeState(self.config, capacity, max_len, self.dtype, self.device)

    def new_picks(self, *lead: int) -> Tensor:
        """int32 [*lead, L_full, index_topk] for `prefill`, `extend` or `decode` to fill."""
        self._check_picks(None)
        shape = (*lead, len(self.config.linear_attn_config.full_attn_layers), self.config.index_topk or 0)
        return torch.empty(shape, dtype=torch.int32, device=self.device)

    def prefill(
        self,
        input_ids: Tensor,
        lengths: Tensor,
        state: DecodeState,
        rows: Rows,
        images: Placed | None = None,
        picks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run prompts from an empty state into distinct `rows` of `state`, whatever those rows held.

        input_ids Long [B, T], lengths Long [B], rows Long [B], images as in `forward` (of a prompt that is read in
        pieces: each piece its window). Returns (logits after each last token [B, V], routes Long [B, T, L_moe, K], -1
        at pads). picks int32 [B, T, L_full, index_topk], if given, is filled with the keys that were attended to
        (`model.dsa`), -1 at pads. Raises ValueError if a prompt does not fit.
        """
        state.own()
        state.lengths[state._rows(rows)[0]] = 0
        return self.extend(input_ids, lengths, state, rows, images, picks)

    @torch.no_grad()
    def extend(
        self,
        input_ids: Tensor,
        lengths: Tensor,
        state: DecodeState,
        rows: Rows,
        images: Placed | None = None,
        picks: Tensor | None = None,
        every: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """As `prefill`, but continuing from what the rows hold (the next turn of a conversation).

        every: logits after each token [B, T, V], 0 at pads, instead of those after the last. Raises ValueError as
        `prefill`, and for rows that are not distinct.
        """
        state.own()
        b, t = input_ids.shape
        selection = None
        if picks is not None:
            self._check_picks(picks, b, t)
            selection = Picks(None, True)
        host_rows, dev_rows = state._rows(rows)
        if len(host_rows) != b or len(host_rows.unique()) < b:
            raise ValueError(f"rows {host_rows.tolist()} for {b} prompts: each needs a row of its own")
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
                return m.extend(x, packing, state.latent[slot], index, dev_rows, past, longest, selection, slot)
            y, latent, keys, _ = m(x, packing, keep=True, picks=selection, slot=slot)
            state.latent[slot][cache_at] = latent
            if index is not None:
                index[cache_at] = keys
            return y

        at = packing.row * t + packing.pos
        media = None if images is None else (images.packed(at, t), images.features)
        hidden, chosen = self.model(input_ids.to(self.device).flatten()[at], mixer, images=media)
        state.lengths[host_rows] = after
        routes = chosen.new_full((b * t, *chosen.shape[1:]), -1)
        routes[at] = chosen
        if picks is not None and selection is not None:
            picks.copy_(_padded_picks(selection, at, b, t))
        if every:
            logits = hidden.new_zeros(b * t, self.config.vocab_size)
            logits[at] = self.logits(hidden)
            return logits.view(b, t, -1), routes.view(b, t, *chosen.shape[1:])
        return self.logits(hidden[packing.last]), routes.view(b, t, *chosen.shape[1:])

    @torch.no_grad()
    def decode(self, tokens: Tensor, state: DecodeState, n: int, picks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Append tokens Long [n] to rows 0..n-1 of `state`, in place, without copying rows.

        picks int32 [n, L_full, index_topk], if given, is filled with the keys that were attended to (`model.dsa`).
        Returns (logits [n, V], routes Long [n, L_moe, K]). Raises ValueError if a row is full or picks do not fit.
        """
        if not self._derived or any(map(gt, map(_version, self._watched), self._versions)):
            raise RuntimeError("weights changed: call refresh_quantized() before the next decode")
        if self._step is None or self._step.apart != self.rows_apart:
            self._step = DecodeStep(self, self.rows_apart)
        if picks is not None:
            self._check_picks(picks, n)
        return self._step(tokens.to(self.device), state, n, picks)

    # --- weights ----------------------------------------------------------------------------------------------------

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(public name, full-precision tensor) of every weight, experts one by one, then the selection biases."""
        mtp = f"model.layers.{self.config.num_hidden_layers}."
        for own, p in self.named_parameters():
            name = own.replace("model.mtp.", mtp)
            head, _, last = name.rpartition(".")
            if head.endswith(".experts") and last in EXPERT_WEIGHTS:
                for e in range(p.shape[0]):
                    yield f"{head}.{e}.{last}.weight", p.detach()[e]
            else:
                yield name, p.detach()
        for name, b in self.named_buffers():
            if name.endswith(".e_score_correction_bias"):
                yield name.replace("model.mtp.", mtp), b

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


def _padded_picks(selection: Picks, at: Tensor, b: int, t: int) -> Tensor:
    """What was recorded as int32 [B, T, L_full, k], -1 at pads."""
    taken = torch.stack([selection.taken[i] for i in range(len(selection.taken))], 1)
    out = taken.new_full((b * t, *taken.shape[1:]), -1)
    out[at] = taken
    return out.view(b, t, *taken.shape[1:])
