"""Gated multi-head latent attention without positions; with an indexer it is gated DSA."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config import K3Config
from model.dsa import Indexer, index_loss, select_topk
from model.joined import Derived, Joined
from model.norms import RMSNorm
from model.packing import Packing


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

    def forward(
        self, x: Tensor, packing: Packing, keep: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """x [N, H] of rows that start at position 0 or behind their parent.

        Returns (y [N, H], cache rows [N, .], index keys [N, d] or None, the indexer's loss or None). The indexer runs
        only where it is used: to `keep` its keys, to learn, or when a row can exceed its top-k.
        """
        q_latent, q, latent, gate = self._project(x)
        k, v = self._keys_values(latent)
        blocks = packing.blocks
        seen, index_keys, scores, loss = blocks.visible, None, [], None
        if self.indexer is not None:
            learn, sparse = self.indexer.learn and torch.is_grad_enabled(), blocks.longest > self.indexer.topk
            with torch.set_grad_enabled(learn):
                if keep or learn or sparse:
                    index_keys = self.indexer.keys(x)
                if index_keys is not None and (learn or sparse):
                    inputs = [blocks.split(y) for y in self.indexer.queries(x, q_latent)]
                    parts = zip(*inputs, blocks.split_keys(index_keys), strict=True)
                    scores = [self.indexer.scores(*part) for part in parts]
                    pairs = zip(scores, seen, strict=True)
                    seen = [select_topk(s.detach(), some, self.indexer.topk) for s, some in pairs]
        parts = zip(blocks.split(q), blocks.split_keys(k), blocks.split_keys(v), seen, strict=True)
        done = [self._attend(*part) for part in parts]
        if scores and scores[0].requires_grad:
            pieces = zip(scores, seen, done, strict=True)
            loss = blocks.join([index_loss(s, some, p.detach().mean(1)) for s, some, (_, p) in pieces]).mean()
        return self._output(blocks.join([o for o, _ in done]), gate), latent, index_keys, loss

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
    ) -> Tensor:
        """x [N, H] after `past` Long [B] cached tokens of cache rows `rows` Long [B]; writes the caches. No gradient.

        latents [capacity, max_len, .]; `longest`: the longest row afterwards. Returns y [N, H].
        """
        q_latent, q, latent, gate = self._project(x)
        at = (rows[packing.row], past[packing.row] + packing.pos)
        latents[at] = latent
        steps = torch.arange(packing.time, device=x.device)
        visible = torch.arange(longest, device=x.device) <= (past.view(-1, 1, 1) + steps.view(1, -1, 1))
        if self.indexer is not None and index_keys is not None:
            index_keys[at] = self.indexer.keys(x)
            if longest > self.indexer.topk:
                iq, iw = self.indexer.queries(x, q_latent)
                scores = self.indexer.scores(packing.unpack(iq), packing.unpack(iw), index_keys[rows, :longest])
                visible = select_topk(scores, visible, self.indexer.topk)
        o, _ = self._attend(packing.unpack(q), *self._keys_values(latents[rows, :longest]), visible)
        return self._output(packing.pack(o), gate)
