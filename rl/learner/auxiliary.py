"""What a step trains besides the policy's own loss: indexers by theirs, and the MTP layer; and the replay of picks.

Three stages of the indexers, as DeepSeek-V3.2 has them: for `index_warmup_steps` they learn alone, by the dense loss;
then, if `index_loss` is not 0, by the sparse one beside everything else; else they are frozen. Denominators are global:
of the index loss all token positions of the batch (a shared prompt counts for each row), of the MTP loss the trained
tokens, as of the policy's own. So neither depends on how rows are cut, spread or shared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from model.dsa import Indexer, enable_index_loss
from model.mtp import enable_mtp
from rl.batch import MicroBatch, Shard
from rl.config import LearnerConfig
from rl.learner import replay
from rl.learner.distributed import sum_over_ranks
from rl.learner.gradients import Piece
from rl.learner.scoring import Scored

_COUNTS = ("index", "positions", "mtp", "predicted", "choosing", "all_keys", "live", "differ", "compared")
_GAPS = ("replayed", "own", "tokens")


class Auxiliary:
    """Decides what a step trains, and keeps the sums of its metrics. A policy without such parts has none of it."""

    def __init__(self, policy: Any, config: LearnerConfig) -> None:
        """Raises ValueError where a part is asked for that the policy does not have."""
        self.policy, self.config = policy, config
        self.indexers = {p for m in policy.modules() if isinstance(m, Indexer) for p in m.parameters()}
        self.topk: int | None = getattr(policy.config, "index_topk", None)
        asked = config.index_loss or config.index_warmup_steps or config.index_replay
        if asked and not self.indexers:
            raise ValueError(
                "the policy has no indexer (index_topk is null): set learner.index_loss and "
                "learner.index_warmup_steps to 0, learner.index_replay to false"
            )
        if config.mtp_loss:
            enable_mtp(policy, detached=True)
        self.warming = False
        self.start(0)

    def start(self, step: int) -> None:
        """Set up what step `step` computes and trains, and forget the sums."""
        self.warming = step < self.config.index_warmup_steps
        if self.indexers:
            enable_index_loss(self.policy, self.warming or self.config.index_loss > 0, dense=self.warming)
        if self.config.mtp_loss:
            enable_mtp(self.policy, not self.warming, detached=True)
        self.sums = dict.fromkeys((*_COUNTS, *_GAPS), 0.0)

    @property
    def replays(self) -> bool:
        """Whether recorded picks are replayed in this step."""
        return self.config.index_replay and not self.warming

    def moves(self, pieces: list[Piece]) -> list[Piece]:
        """The pieces of the gradient that belong to what this step trains."""
        return [p for p in pieces if p.parameter in self.indexers] if self.warming else pieces

    def positions(self, shard: Shard) -> float:
        """Token positions of the whole batch (a collective, where there is an index loss to divide)."""
        if not self.warming and not self.config.index_loss:
            return 0.0
        own = sum(_positions(b) for b in shard.micro_batches)
        return float(sum_over_ranks(torch.tensor([own], dtype=torch.float64)))

    def loss(self, scored: Scored, batch: MicroBatch, tokens: int, positions: float) -> Tensor | None:
        """This micro-batch's part of the auxiliary losses, normalised; None if there is none.

        tokens, positions: of the whole batch.
        """
        parts = []
        if scored.index_loss is not None:
            total = scored.index_loss * _positions(batch)
            self.sums["index"] += float(total.detach())
            self.sums["positions"] += _positions(batch)
            # Alone there is nothing to weigh it against.
            parts.append(total * ((1.0 if self.warming else self.config.index_loss) / positions))
        if scored.mtp is not None:
            total, predicted = scored.mtp
            self.sums["mtp"] += float(total.detach())
            self.sums["predicted"] += predicted
            parts.append(total * (self.config.mtp_loss / tokens))
        if self.replays and self.topk is not None and not batch.dummy:
            for name, n in zip(("choosing", "all_keys", "live"), replay.coverage(batch, self.topk), strict=True):
                self.sums[name] += n
        return sum(parts[1:], parts[0]) if parts else None

    def compare(self, live: Scored, replayed: Tensor, batch: MicroBatch) -> None:
        """Take in some rows that were scored both ways at the same weights: log-probs [B, T], behaviour's own kept.

        live: with the learner's own selection, and its picks where they are known.
        """
        if batch.picks is not None and live.picks is not None:
            differ, compared = replay.differing(live.picks.cpu(), replay.chosen(batch))
            self.sums["differ"] += differ
            self.sums["compared"] += compared
        mask, behaviour = torch.as_tensor(batch.mask), torch.as_tensor(batch.behaviour)
        for name, logprob in (("replayed", replayed), ("own", live.logprob)):
            self.sums[name] += float((logprob.detach().cpu() - behaviour)[mask].double().abs().sum())
        self.sums["tokens"] += float(mask.sum())

    def reduce(self) -> dict[str, float]:
        """Over all ranks (a collective if there is anything to tell); `learner/` is not part of the names."""
        c = self.config
        if not (self.warming or c.index_loss or c.mtp_loss or c.index_replay):
            return {}
        total = sum_over_ranks(torch.tensor(list(self.sums.values()), dtype=torch.float64)).tolist()
        s = dict(zip(self.sums, total, strict=True))
        out = {}
        if c.index_warmup_steps:
            out["index_warmup"] = float(self.warming)
        if self.warming or c.index_loss:
            out["index_loss"] = s["index"] / max(1.0, s["positions"])
        if c.mtp_loss and not self.warming:
            out["mtp_loss"] = s["mtp"] / max(1.0, s["predicted"])
        if self.replays:
            out["picks_all_keys"] = s["all_keys"] / max(1.0, s["choosing"])
            out["picks_live"] = s["live"] / max(1.0, s["choosing"])
            if s["compared"]:
                out["picks_differ"] = s["differ"] / s["compared"]
            if s["tokens"]:
                out["logp_diff_replayed"] = s["replayed"] / s["tokens"]
                out["logp_diff_own_picks"] = s["own"] / s["tokens"]
        return out


def _positions(batch: MicroBatch) -> float:
    """Token positions that a micro-batch stands for."""
    return 0.0 if batch.dummy else float((batch.lengths * batch.copies).sum())
