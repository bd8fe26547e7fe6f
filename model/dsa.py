"""The sparse-attention indexer of K3.1 (DeepSeek-V3.2): which keys a query may see. No RoPE, no Hadamard: NoPE.

`picks` name the selected keys: int32 [..., k], k = index_topk, positions in the sequence (0 is its first token, of the
parent if a row has one), ascending as recorded here, then -1 for none. They are recorded in decoding and replayed in
training, because a top-k of slightly different scores is another set of keys. At K3.1's size a token's picks are
24 x 2048 x 4 B = 192 KiB, so that recording is asked for, never the default.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.config import K3Config


def select_topk(scores: Tensor, visible: Tensor, k: int) -> Tensor:
    """Bool mask of the k largest visible scores of the last axis; ties go to the smaller index, on every device.

    scores and visible [..., S] (broadcastable). Rows with at most k visible keys keep them all.
    """
    scores = scores.masked_fill(~visible, -torch.inf)
    if scores.shape[-1] <= k:
        return visible.expand_as(scores)
    # Only the k-th VALUE is taken from topk: its choice of indices among ties is not defined.
    least = torch.topk(scores, k, sorted=True).values[..., -1:]
    above = scores > least
    tied = scores == least
    room = k - above.sum(-1, keepdim=True)
    return (above | (tied & (tied.cumsum(-1) <= room))) & visible


# --- picks --------------------------------------------------------------------------------------------------------


def picks_of(selected: Tensor, k: int) -> Tensor:
    """Bool [..., S] with at most k set -> picks int32 [..., k]."""
    slot = torch.where(selected, selected.cumsum(-1) - 1, k)
    at = torch.arange(selected.shape[-1], dtype=torch.int32, device=selected.device).expand_as(slot)
    out = at.new_full((*selected.shape[:-1], k + 1), -1)
    return out.scatter_(-1, slot, at)[..., :k]


def mask_of(picks: Tensor, keys: int) -> Tensor:
    """picks [..., k] -> Bool [..., keys]."""
    out = torch.zeros(*picks.shape[:-1], keys + 1, dtype=torch.bool, device=picks.device)
    return out.scatter_(-1, torch.where(picks < 0, keys, picks.long()), True)[..., :keys]


@dataclass(frozen=True, eq=False)
class Picks:
    """What one forward replays and records, in packed tokens; the axis L_full counts the full-attention layers."""

    replay: Tensor | None
    """int32 [N, L_full, k]; a token without an entry in a layer selects live there. None: all do."""
    record: bool
    taken: dict[int, Tensor] = field(default_factory=dict)
    """By full layer: picks int32 [N, k] of every token."""

    def of_layer(self, slot: int) -> Tensor | None:
        """int32 [N, k] to replay in a full layer."""
        return None if self.replay is None else self.replay[:, slot]


def check_picks(picks: Tensor, shape: tuple[int, ...], axes: str) -> None:
    """Raise ValueError unless picks are int32 of this shape."""
    if tuple(picks.shape) != shape:
        raise ValueError(f"picks {tuple(picks.shape)} do not match {shape}: {axes}")
    if picks.dtype != torch.int32:
        raise ValueError(f"picks are {picks.dtype}: they must be torch.int32")


def check_replay(picks: Tensor, row: Tensor, pos: Tensor, position: Tensor) -> None:
    """Raise ValueError naming the first pick [N, L_full, k] that is no earlier key, or is there twice.

    row, pos and position Long [N]: each token's row, its place in that row and in the sequence.
    """
    ranked = picks.sort(-1).values
    twice = torch.zeros_like(ranked, dtype=torch.bool)
    twice[..., 1:] = (ranked[..., 1:] == ranked[..., :-1]) & (ranked[..., 1:] >= 0)
    future = ranked > position.view(-1, 1, 1)
    for bad, what in (
        (ranked < -1, "is no position (-1 is none)"),
        (future, "lies behind the token"),
        (twice, "is there twice"),
    ):
        if bool(bad.any()):
            n, layer, slot = (int(i) for i in bad.nonzero()[0])
            where = f"row {int(row[n])}, token {int(pos[n])} (position {int(position[n])}), full layer {layer}"
            raise ValueError(f"picks: {where}: key {int(ranked[n, layer, slot])} {what}")


# --- the indexer --------------------------------------------------------------------------------------------------


class Indexer(nn.Module):
    """Scores I[t, s] = sum_j w[t, j] ReLU(q[t, j] . k[s] / sqrt(d)); inputs detached (no gradient to the model)."""

    def __init__(self, config: K3Config) -> None:
        super().__init__()
        self.heads, self.head_dim, self.topk = config.index_n_heads, config.index_head_dim, config.index_topk or 0
        self.learn = False
        """Compute the loss in forwards with gradients."""
        self.dense = False
        """The loss's first stage: attention to all keys in those forwards, and the loss over all of them."""
        self.wq_b = nn.Linear(config.q_lora_rank, self.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(config.hidden_size, self.head_dim, bias=False)
        self.k_norm = nn.LayerNorm(self.head_dim, eps=1e-6)
        self.weights_proj = nn.Linear(config.hidden_size, self.heads, bias=False)

    def keys(self, x: Tensor) -> Tensor:
        """Index keys [N, d] of normed inputs x [N, H]."""
        return self.k_norm(self.wk(x.detach()))

    def queries(self, x: Tensor, q_latent: Tensor) -> tuple[Tensor, Tensor]:
        """(queries [N, J, d], head weights [N, J]) from x [N, H] and the mixer's normed query latent [N, r]."""
        q = self.wq_b(q_latent.detach()).view(-1, self.heads, self.head_dim)
        return q, self.weights_proj(x.detach()) * self.heads**-0.5

    def scores(self, q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """I [B, T, S] for q [B, T, J, d], weights [B, T, J], keys [B, S, d]."""
        b, t, j, d = q.shape
        dots = F.relu(torch.bmm(q.reshape(b, t * j, d), keys.mT)) * d**-0.5
        return torch.matmul(weights.unsqueeze(2), dots.view(b, t, j, -1)).squeeze(2)


def index_loss(scores: Tensor, selected: Tensor, attention: Tensor) -> Tensor:
    """Each token's KL(attention || softmax of the scores over the selected keys) [...]; gradient to the scores only.

    scores, selected (Bool) and attention [..., S]; attention is the mean over heads of the probabilities on the
    selected keys, which is their L1-normalised sum (DeepSeek-V3.2, section 2.1). Stage one selects every visible key.
    """
    log_q = torch.log_softmax(scores.masked_fill(~selected, -torch.inf), -1).masked_fill(~selected, 0.0)
    p = attention.detach()
    return (torch.xlogy(p, p) - p * log_q).sum(-1)


def token_mean(each: Tensor, copies: Tensor | None) -> Tensor:
    """Mean of one value a token [N], a token counting once for each of the rows that it stands for (copies [N])."""
    return each.mean() if copies is None else (each * copies).sum() / copies.sum()


# --- switches -----------------------------------------------------------------------------------------------------


def _indexers(policy: nn.Module) -> list[Indexer]:
    return [m for m in policy.modules() if isinstance(m, Indexer)]


def enable_index_loss(policy: nn.Module, on: bool = True, dense: bool = False) -> None:
    """Compute (or not) the indexers' loss in forwards with gradients: `Hidden.index_loss`, to be added to the loss.

    `dense`: the first of DeepSeek-V3.2's two stages, with attention to all keys; else on the selected keys only.
    """
    for m in _indexers(policy):
        m.learn, m.dense = on, on and dense


def freeze_indexers(policy: nn.Module, on: bool = True) -> None:
    """Stop (or resume) training the indexers: for RL, so that the selection moves only with the states."""
    for m in _indexers(policy):
        m.requires_grad_(not on)


def warm_up_indexers(policy: nn.Module) -> None:
    """Dense warm-up of a model that was trained without an indexer: all else is frozen, the loss is the dense one.

    Raises ValueError if the model has no indexer. Undo: `requires_grad_()` of the policy, then `enable_index_loss`.
    """
    if not _indexers(policy):
        raise ValueError("the model has no indexer to warm up (index_topk is null)")
    policy.requires_grad_(False)
    freeze_indexers(policy, False)
    enable_index_loss(policy, dense=True)
