"""Gated multi-head latent attention without positions; with an indexer it is gated DSA."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.config import K3Config
from model.dsa import Indexer, Picks, index_loss, mask_of, picks_of, select_topk, token_mean
from model.far import read_chunk
from model.joined import Derived, Joined
from model.norms import RMSNorm
from model.packing import Blocks, Packing

SPARSE_CORE = 8
"""Keys, in multiples of top-k, from which selected latents are gathered instead of masking all keys: below, the
masked product of whole blocks is faster."""
GATHERED = 2**24
"""Values of gathered latents held at once (64 MiB in float32)."""


class MLA(Derived):
    """One gated MLA/DSA mixer: packed tokens [N, H] in and out; cache per token [c_kv | k_pe] and the index key."""

    def __init__(self, config: K3Config) -> None:
        super().__init__()
        h, nh = config.hidden_size, config.num_attention_heads
        self.heads, self.nope, self.pe, self.v_dim = (
            nh,
            config.qk_nope_head_dim,
            config.qk_rope_head_dim,
            config.v_head_dim,
        )
        self.q_rank, self.kv_rank, self.scale = config.q_lora_rank, config.kv_lora_rank, config.qk_head_dim**-0.5
        self.q_a_proj = nn.Linear(h, self.q_rank, bias=False)
        self.q_a_layernorm = RMSNorm(self.q_rank, config.rms_norm_eps)
        self.q_b_proj = nn.Linear(self.q_rank, nh * (self.nope + self.pe), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(h, self.kv_rank + self.pe, bias=False)
        self.kv_a_layernorm = RMSNorm(self.kv_rank, config.rms_norm_eps)
        self.kv_b_proj = nn.Linear(self.kv_rank, nh * (self.nope + self.v_dim), bias=False)
        self.g_proj = nn.Linear(h, nh * self.v_dim, bias=False)
        self.o_proj = nn.Linear(nh * self.v_dim, h, bias=False)
        self.indexer = Indexer(config) if config.index_topk is not None else None
        self._in = Joined(self.q_a_proj, self.kv_a_proj_with_mqa, self.g_proj)

    def refresh(self) -> None:
        """Join the projections for calls without gradients."""
        self._in.refresh()

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(normed query latent [N, r], queries [N, heads, nope + pe], cache rows [N, kv_rank + pe], gate [N, .])."""
        qa, c, k_pe, gate = (x @ self._in().mT).split((self.q_rank, self.kv_rank, self.pe, self.heads * self.v_dim), -1)
        q_latent = self.q_a_layernorm(qa)
        latent = torch.cat((self.kv_a_layernorm(c), k_pe), -1)
        return q_latent, self.q_b_proj(q_latent).view(-1, self.heads, self.nope + self.pe), latent, gate

    def _output(self, o: Tensor, gate: Tensor) -> Tensor:
        """o [N, heads * v], gate [N, heads * v] -> [N, H]."""
        return self.o_proj(torch.sigmoid(gate) * o)

    def _keys_values(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Cache rows [..., kv_rank + pe] as keys [..., heads, nope + pe] and values [..., heads, v]."""
        c, k_pe = latent.split((self.kv_rank, self.pe), -1)
        k, v = self.kv_b_proj(c).unflatten(-1, (self.heads, -1)).split((self.nope, self.v_dim), -1)
        return torch.cat((k, k_pe.unsqueeze(-2).expand(*k.shape[:-1], -1)), -1), v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """Plain form: q [B, T, heads, .], k and v [B, S, heads, .], visible Bool [B, T, S].

        Returns (o [B, T, heads * v], probabilities [B, heads, T, S]).
        """
        b, t, nh, _ = q.shape
        q, k, v = (x.transpose(1, 2).reshape(b * nh, x.shape[1], -1) for x in (q, k, v))
        hidden = torch.zeros(visible.shape, dtype=q.dtype, device=q.device).masked_fill_(~visible, -torch.inf)
        hidden = hidden.repeat_interleave(nh, 0)
        p = torch.softmax(torch.baddbmm(hidden, q, k.mT, alpha=self.scale), -1)
        return torch.bmm(p, v).view(b, nh, t, -1).transpose(1, 2).reshape(b, t, -1), p.view(b, nh, t, -1)

    def attend_selected(self, q: Tensor, latent: Tensor, picks: Tensor) -> tuple[Tensor, Tensor]:
        """Absorbed form on each query's own keys: q [B, T, heads, .], latent [B, S, .], picks [B, T, k] (-1: none).

        Returns (o [B, T, heads * v], probabilities [B, heads, T, k], zero where there is no key). Memory is linear in
        T: queries are taken piece by piece, again in the backward pass.
        """
        up_k, up_v = self.kv_b_proj.weight.view(self.heads, -1, self.kv_rank).split((self.nope, self.v_dim), 1)
        b, t = q.shape[:2]
        absorbed = torch.einsum("bthn,hnr->bthr", q[..., : self.nope], up_k)
        q = torch.cat((absorbed, q[..., self.nope :]), -1) * self.scale
        none = picks < 0
        at = picks.long().clamp(min=0) + torch.arange(b, device=q.device).view(-1, 1, 1) * latent.shape[1]
        rows = latent.flatten(0, 1)

        def piece(q: Tensor, rows: Tensor, at: Tensor, none: Tensor) -> tuple[Tensor, Tensor]:
            own = rows.index_select(0, at.flatten()).view(*at.shape, -1)  # [B, t, k, kv_rank + pe]
            scores = torch.matmul(q, own.mT).masked_fill(none.unsqueeze(2), -torch.inf)
            p = torch.softmax(scores, -1)
            return torch.matmul(p, own[..., : self.kv_rank]), p

        size = max(1, GATHERED // (b * picks.shape[2] * latent.shape[2]))
        parts = [
            (x, rows, y, z) for x, y, z in zip(q.split(size, 1), at.split(size, 1), none.split(size, 1), strict=True)
        ]
        if torch.is_grad_enabled() and len(parts) > 1:
            done = [checkpoint(piece, *part, use_reentrant=False) for part in parts]
        else:
            done = [piece(*part) for part in parts]
        mixed = torch.cat([m for m, _ in done], 1)
        o = torch.einsum("bthr,hvr->bthv", mixed, up_v)
        return o.reshape(b, t, -1), torch.cat([p for _, p in done], 1).transpose(1, 2)

    def forward(
        self, x: Tensor, packing: Packing, keep: bool = False, picks: Picks | None = None, slot: int = 0
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """x [N, H] of rows that start at position 0 or behind their parent; `slot`: this layer's place in `picks`.

        Returns (y [N, H], cache rows [N, .], index keys [N, d] or None, the indexer's loss or None). The indexer runs
        only where it is used: to `keep` its keys, to learn, or when a row can exceed its top-k and nothing is replayed.
        """
        q_latent, q, latent, gate = self._project(x)
        blocks = packing.blocks
        seen, index_keys = blocks.visible, None
        scores: list[Tensor] = []
        chosen: list[Tensor] = []
        core, record = False, picks is not None and picks.record
        if self.indexer is not None:
            seen, index_keys, scores = self._select(x, q_latent, blocks, keep, picks, slot)
            core = seen is not blocks.visible and blocks.longest > SPARSE_CORE * self.indexer.topk
            if core or record:
                chosen = [picks_of(some, self.indexer.topk) for some in seen]
            if picks is not None and record:
                picks.taken[slot] = blocks.join(chosen)
        if core:
            selected = zip(blocks.split(q), blocks.split_keys(latent), chosen, strict=True)
            done = [self.attend_selected(*part) for part in selected]
        else:
            k, v = self._keys_values(latent)
            parts = zip(blocks.split(q), blocks.split_keys(k), blocks.split_keys(v), seen, strict=True)
            done = [self._attend(*part) for part in parts]
        loss = None
        if scores and scores[0].requires_grad:
            if core:
                scores = [s.gather(2, i.long().clamp(min=0)) for s, i in zip(scores, chosen, strict=True)]
                seen = [i >= 0 for i in chosen]
            pieces = zip(scores, seen, done, strict=True)
            each = blocks.join([index_loss(s, some, p.detach().mean(1)) for s, some, (_, p) in pieces])
            loss = token_mean(each, packing.copies)
        return self._output(blocks.join([o for o, _ in done]), gate), latent, index_keys, loss

    def _select(
        self, x: Tensor, q_latent: Tensor, blocks: Blocks, keep: bool, picks: Picks | None, slot: int
    ) -> tuple[list[Tensor], Tensor | None, list[Tensor]]:
        """(what each block's queries see, index keys [N, d] or None, index scores of each block or none)."""
        indexer = self.indexer
        assert indexer is not None
        seen, index_keys = blocks.visible, None
        scores: list[Tensor] = []
        replay = None if picks is None else picks.of_layer(slot)
        learn = indexer.learn and torch.is_grad_enabled()
        dense = learn and indexer.dense
        if dense and picks is not None:
            raise ValueError(
                "the indexers' dense warm-up attends to every key: picks are neither replayed nor recorded"
            )
        live = replay is None or bool((replay < 0).all(-1).any())
        sparse = live and not dense and blocks.longest > indexer.topk
        with torch.set_grad_enabled(learn):
            if keep or learn or sparse:
                index_keys = indexer.keys(x)
            if index_keys is not None and (learn or sparse):
                inputs = [blocks.split(y) for y in indexer.queries(x, q_latent)]
                parts = zip(*inputs, blocks.split_keys(index_keys), strict=True)
                scores = [indexer.scores(*part) for part in parts]
        if sparse:
            pairs = zip(scores, seen, strict=True)
            seen = [select_topk(s.detach(), some, indexer.topk) for s, some in pairs]
        if replay is not None:
            recorded = blocks.split(replay)
            masks = [mask_of(r, some.shape[2]) for r, some in zip(recorded, seen, strict=True)]
            triples = zip(recorded, masks, seen, strict=True)
            seen = [torch.where((r < 0).all(-1, keepdim=True), some, mask) for r, mask, some in triples]
        return seen, index_keys, scores

    @torch.no_grad()
    def extend(
        self,
        x: Tensor,
        packing: Packing,
        latents: Tensor,
        index_keys: Tensor | None,
        rows: Tensor,
        past: Tensor,
        longest: int,
        picks: Picks | None = None,
        slot: int = 0,
    ) -> Tensor:
        """x [N, H] after `past` Long [B] cached tokens of cache rows `rows` Long [B]; writes the caches. No gradient.

        latents [capacity, max_len, .]; `longest`: the longest row afterwards. Returns y [N, H].
        """
        q_latent, q, latent, gate = self._project(x)
        at = (rows[packing.row], past[packing.row] + packing.pos)
        latents[at] = latent
        if self.indexer is not None and index_keys is not None:
            index_keys[at] = self.indexer.keys(x)
            if longest > SPARSE_CORE * self.indexer.topk:
                ends = past + packing.lengths
                o = self._extend_far(x, q_latent, q, packing, latents, index_keys, rows, ends, picks, slot)
                return self._output(o, gate)
        steps = torch.arange(packing.time, device=x.device)
        visible = torch.arange(longest, device=x.device) <= (past.view(-1, 1, 1) + steps.view(1, -1, 1))
        if self.indexer is not None and index_keys is not None:
            if longest > self.indexer.topk:
                iq, iw = self.indexer.queries(x, q_latent)
                scores = self.indexer.scores(packing.unpack(iq), packing.unpack(iw), index_keys[rows, :longest])
                visible = select_topk(scores, visible, self.indexer.topk)
            if picks is not None and picks.record:
                picks.taken[slot] = packing.pack(picks_of(visible, self.indexer.topk))
        o, _ = self._attend(packing.unpack(q), *self._keys_values(latents[rows, :longest]), visible)
        return self._output(packing.pack(o), gate)

    def _extend_far(
        self,
        x: Tensor,
        q_latent: Tensor,
        q: Tensor,
        packing: Packing,
        latents: Tensor,
        index_keys: Tensor,
        rows: Tensor,
        ends: Tensor,
        picks: Picks | None,
        slot: int,
    ) -> Tensor:
        """`extend` row by row, each over as many keys as it has; ends Long [B]: tokens of each row afterwards.

        Returns what the heads read [N, heads * v].
        """
        indexer = self.indexer
        assert indexer is not None
        up_k, up_v = self.kv_b_proj.weight.view(self.heads, -1, self.kv_rank).split((self.nope, self.v_dim), 1)
        inner = torch.bmm(q[..., : self.nope].transpose(0, 1), up_k).transpose(0, 1)
        inner = torch.cat((inner, q[..., self.nope :]), -1)
        index_q = indexer.queries(x, q_latent)
        done = []
        for some, row, end in zip(packing.rows(), rows.tolist(), ends.tolist(), strict=True):
            own = (index_q[0][some], index_q[1][some])
            done.append(
                read_chunk(
                    indexer, own, index_keys[row, :end], inner[some], latents[row, :end], self.kv_rank, self.scale
                )
            )
        if picks is not None and picks.record:
            picks.taken[slot] = torch.cat([chosen for _, chosen in done])
        read = torch.cat([o for o, _ in done])
        return torch.bmm(read.transpose(0, 1), up_v.mT).transpose(0, 1).flatten(1)
