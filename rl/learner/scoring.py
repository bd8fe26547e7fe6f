"""Log-probs of the trained tokens of a micro-batch, by the same code as the engine's (`model.logprob`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.chunked import count_chunks, score_chunked
from model.logprob import token_logprobs
from model.mtp import mtp_sum
from rl.batch import MicroBatch
from rl.learner.distributed import max_over_ranks
from rl.learner.replay import replayed
from rl.learner.sight import see

LOGIT_CELLS = 2**26
"""Logits held at once, in values: more are computed in slices and again in the backward pass (256 MiB in float32)."""


@dataclass(frozen=True)
class Scored:
    """logprob (with gradient) and entropy float32 [B, T], 0 where not scored; routes Long [B, T, L, K] or None."""

    logprob: Tensor
    entropy: Tensor
    routes: Tensor | None
    index_loss: Tensor | None = None
    """As `Hidden.index_loss`."""
    mtp: tuple[Tensor, int] | None = None
    """The MTP layer's summed cross-entropy of the scored tokens that it predicts, and their number."""
    picks: Tensor | None = None
    """int32 [B, T, L_full, k] if recorded, see `Hidden.picks`."""


class Scorer(nn.Module):
    """The module that DeepSpeed drives: a policy that scores given tokens instead of returning all logits."""

    def __init__(self, policy: Any, chunk_tokens: int = 0, together: bool = False) -> None:
        """chunk_tokens: compute the rows of longer batches in chunks of so many tokens; 0: never.

        together: experts are spread, so that all ranks run equally many chunks, or none.
        """
        super().__init__()
        self.policy, self.chunk_tokens, self.together = policy, chunk_tokens, together

    def forward(
        self,
        input_ids: Tensor,
        lengths: Tensor,
        at: Tensor,
        source: Tensor,
        temperature: Tensor,
        routes: Tensor | None,
        parents: Tensor | None,
        picks: Tensor | None = None,
        record_picks: bool = False,
        batch: MicroBatch | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, tuple[Tensor, int] | None, Tensor | None]:
        """input_ids Long [B, T], lengths Long [B]; at Long [N]: flat positions b T + t of the tokens to score, source
        Long [N]: of those that predict them; temperature float [N]; routes [B, T, L, K] or None; parents Long [B] or
        None, picks and record_picks: see `Policy.forward`; rows that are cut record none; batch: whose images are
        looked at, None for text. Returns (logprob [N], entropy [N], and the rest of `Scored`). Raises ValueError for
        images in a batch that is computed in chunks.
        """
        images = None if batch is None else see(self.policy, batch, input_ids)
        chunked, join = self._plan(lengths)
        if chunked:
            if images is not None:
                raise ValueError("rows with images are computed whole: set learner.chunk_tokens=0")
            places = (input_ids, lengths, at, source, temperature, routes, parents, picks)
            got = score_chunked(self.policy, *places, chunk=self.chunk_tokens, score=self._score, join=join)
            return *got, None, None
        given = {"parents": parents, "picks": picks, "record_picks": record_picks or None, "images": images}
        out = self.policy(input_ids, lengths, routes, **{k: v for k, v in given.items() if v is not None})
        hidden = out.hidden.flatten(0, 1).index_select(0, source)
        logprob, entropy = self._score(hidden, input_ids.flatten()[at], temperature)
        mtp = None
        if out.mtp is not None:
            scored = torch.zeros_like(input_ids, dtype=torch.bool).flatten().index_fill_(0, at, True)
            mtp = mtp_sum(self.policy, out, input_ids, scored.view_as(input_ids))
        return logprob, entropy, out.routes, out.index_loss, mtp, out.picks

    def _plan(self, lengths: Tensor) -> tuple[bool, int | None]:
        """(whether to run in chunks, the number of them that all ranks run); the longest batch of any rank decides."""
        if not self.chunk_tokens:
            return False, None
        chunked = int(lengths.sum()) > self.chunk_tokens
        if not self.together:
            return chunked, None
        both = torch.tensor([int(chunked), count_chunks(lengths, self.chunk_tokens)])
        some, most = max_over_ranks(both).tolist()
        return bool(some), most

    def _score(self, hidden: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        size = max(1, LOGIT_CELLS // self.policy.config.vocab_size)
        if hidden.shape[0] <= size:
            return self._slice(hidden, targets, temperature)
        parts = [
            checkpoint(self._slice, h, t, x, use_reentrant=False)
            for h, t, x in zip(hidden.split(size), targets.split(size), temperature.split(size), strict=True)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def _slice(self, hidden: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        return token_logprobs(self.policy.logits(hidden), targets, temperature)


def score(
    module: nn.Module,
    batch: MicroBatch,
    replay: bool,
    device: torch.device,
    index_replay: bool = False,
    record_picks: bool = False,
) -> Scored:
    """Score the masked-in tokens of a micro-batch; `module` is a Scorer or DeepSpeed's engine around one.

    replay and index_replay: use the recorded routes, and the recorded picks.

    A micro-batch that trains nothing scores one token all the same: every parameter takes part, with gradient 0.
    """
    width = batch.input_ids.shape[1]
    mask = torch.as_tensor(batch.mask)
    at = mask.flatten().nonzero().squeeze(1)
    if not len(at):
        at = torch.ones(1, dtype=torch.int64)
    source = torch.as_tensor(batch.predictors).flatten()[at].to(device)
    parents = None if batch.parents is None else torch.as_tensor(batch.parents)
    routes = None
    if replay and batch.routes is not None:
        routes = torch.as_tensor(batch.routes).to(device)
    temperature = torch.as_tensor(batch.temperature).flatten()[at].to(device)
    at = at.to(device)
    ids = torch.as_tensor(batch.input_ids).to(device)
    lengths = torch.as_tensor(batch.lengths).to(device)
    picks = replayed(batch, device) if index_replay else None
    rest: Any
    places = (ids, lengths, at, source, temperature, routes, parents, picks, record_picks, batch)
    logprob, entropy, used, *rest = module(*places)
    grid = logprob.new_zeros(ids.numel())
    return Scored(
        grid.index_copy(0, at, logprob).view(-1, width),
        grid.index_copy(0, at, entropy.detach()).view(-1, width),
        used,
        *rest,
    )
