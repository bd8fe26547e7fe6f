"""The sparse-attention indexer of K3.1 (DeepSeek-V3.2): which keys a query may see. No RoPE, no Hadamard: NoPE."""

from __future__ import annotations

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


class Indexer(nn.Module):
    """Scores I[t, s] = sum_j w[t, j] ReLU(q[t, j] . k[s] / sqrt(d)); inputs detached (no gradient to the model)."""

    def __init__(self, config: K3Config) -> None:
        super().__init__()
        self.heads, self.head_dim, self.topk = config.index_n_heads, config.index_head_dim, config.index_topk or 0
        self.learn = False
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
    selected keys, so it sums to 1 there (DeepSeek-V3.2, section 2.1; both its stages, as nothing is left out below
    top-k keys).
    """
    log_q = torch.log_softmax(scores.masked_fill(~selected, -torch.inf), -1).masked_fill(~selected, 0.0)
    p = attention.detach()
    return (torch.xlogy(p, p) - p * log_q).sum(-1)


def enable_index_loss(policy: nn.Module, on: bool = True) -> None:
    """Compute (or not) the indexers' loss in forwards with gradients: `Hidden.index_loss`, to be added to the loss."""
    for m in policy.modules():
        if isinstance(m, Indexer):
            m.learn = on
