"""Multi-token prediction: one layer that predicts the token after the next (K3 trained with it; DeepSeek-V3's form).

At position t it reads the trunk's hidden before the final norm and the embedding of token t + 1, and predicts token
t + 2:  x = eh_proj [enorm(embed) | hnorm(hidden)];  x += MLA(norm x);  x += MoE(norm x);  shared_head(x). Residuals are
plain. The embedding is zeroed at position 0, as serving engines do. Public names: layers.{num_hidden_layers}.*
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from model.config import K3Config
from model.mla import MLA
from model.moe import LatentMoE
from model.norms import RMSNorm
from model.packing import Packing
from model.quant import QuantSpec

if TYPE_CHECKING:
    from model.decoder import Hidden, Policy


class SharedHead(nn.Module):
    """The layer's own norm and output matrix."""

    def __init__(self, config: K3Config) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)


class MTPLayer(nn.Module):
    """The layer; its mixer is dense gated MLA, whatever the trunk's."""

    def __init__(self, config: K3Config, quant: QuantSpec) -> None:
        super().__init__()
        h, eps = config.hidden_size, config.rms_norm_eps
        self.learn = False
        self.detached = False
        """Read the trunk's hidden states and embeddings without a gradient to them: the layer learns, nothing else."""
        self.enorm, self.hnorm = RMSNorm(h, eps), RMSNorm(h, eps)
        self.eh_proj = nn.Linear(2 * h, h, bias=False)
        self.self_attn = MLA(replace(config, index_topk=None))
        self.block_sparse_moe = LatentMoE(config, quant)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(h, eps), RMSNorm(h, eps)
        self.shared_head = SharedHead(config)

    def forward(self, hidden: Tensor, embedded: Tensor, packing: Packing) -> Tensor:
        """hidden [N, H] before the final norm and the embedding [N, H] of each token itself -> [N, H] after
        shared_head.norm. A row's last token has no next one: what it gives is not to be read.
        """
        if self.detached:
            hidden, embedded = hidden.detach(), embedded.detach()
        following = torch.cat((embedded[1:], torch.zeros_like(embedded[:1])))
        following = following.masked_fill((packing.pos == 0).unsqueeze(1), 0.0)
        following = following.index_fill(0, packing.last, 0.0)
        x = self.eh_proj(torch.cat((self.enorm(following), self.hnorm(hidden)), -1))
        x = x + self.self_attn(self.input_layernorm(x), packing)[0]
        x = x + self.block_sparse_moe(self.post_attention_layernorm(x))[0]
        return self.shared_head.norm(x)


def enable_mtp(policy: Policy, on: bool = True, detached: bool = False) -> None:
    """Compute (or not) `Hidden.mtp` in forwards; `detached`: its loss moves the MTP layer alone, not the trunk.

    Raises ValueError if the model has no MTP layer.
    """
    if policy.model.mtp is None:
        raise ValueError("the model has no MTP layer: set num_nextn_predict_layers to 1")
    policy.model.mtp.learn, policy.model.mtp.detached = on, on and detached


def mtp_loss(policy: Policy, out: Hidden, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Mean cross-entropy in nats of token t + 2 at position t, over all t + 2 < length; 0 if no row has three tokens.

    input_ids Long [B, T], lengths Long [B] of the forward that gave `out`; gradients reach the trunk too.
    Raises ValueError if the forward did not compute it.
    """
    real = torch.arange(input_ids.shape[1], device=input_ids.device) < lengths.to(input_ids.device).unsqueeze(1)
    total, count = mtp_sum(policy, out, input_ids, real)
    return total / max(1, count)


def mtp_sum(policy: Policy, out: Hidden, input_ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    """(summed cross-entropy in nats of the tokens in mask Bool [B, T], their number): each is predicted two before it.

    The first two tokens of a row are predicted by nothing and not counted. Raises ValueError as `mtp_loss`.
    """
    if out.mtp is None or policy.model.mtp is None:
        raise ValueError("no MTP output in this forward: call enable_mtp(policy) before it")
    counted = mask[:, 2:]
    logits = policy.model.mtp.shared_head.head(out.mtp[:, :-2][counted])
    total = nn.functional.cross_entropy(logits, input_ids[:, 2:][counted], reduction="sum")
    return total, int(counted.sum())
