"""One learner rank: the policy, DeepSpeed, and the optimizer step. Plain Python; `group.py` makes a Ray actor of it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.balance import balance_update, enable_balancing
from model.build import build_policy
from model.quant import QuantSpec
from model.trace import trace
from rl.algorithms import CORRECTIONS, LOSSES
from rl.algorithms.correction.ratio import OffPolicy
from rl.algorithms.loss.streams import LossResult, Streams
from rl.batch import MicroBatch, Shard
from rl.config import Config
from rl.learner import gradients, initial, state, weights
from rl.learner.auxiliary import Auxiliary
from rl.learner.distributed import Rendezvous, sum_over_ranks
from rl.learner.engine import build_engine, freeze, learning_rate, set_learning_rate
from rl.learner.metrics import StepMetrics
from rl.learner.orthogonal import Orthogonal
from rl.learner.scoring import Scored, Scorer, score
from rl.learner.sight import freeze_sight
from rl.learner.tensorwise import TensorScale
from rl.learner.zero_state import base_optimizer, forget, masters_from_parameters

_STEP_KL_POSITIONS = 1024
"""Token positions that each rank computes again after a step, to see how far it moved the policy: some five hundred
trained tokens, for 2 to 3 % of the CPU time of the default run's step."""


class LearnerRank:
    """Rank `rank` of `config.learner.ranks`. Every method after `setup` is a collective: all ranks call it together."""

    def __init__(self, config: Config, rank: int, meeting: Rendezvous | None = None) -> None:
        self.config, self.rank, self.ranks = config, rank, config.learner.ranks
        self.meeting = meeting or Rendezvous(rank, self.ranks, config.learner.timeout_s)
        self.device = torch.device("cuda", rank) if self.meeting.cuda else torch.device("cpu")
        self.step = 0
        """Steps that were taken; the next one to take."""

    # --- life -------------------------------------------------------------------------------------------------------

    def listen(self, host: str = "127.0.0.1") -> tuple[str, int]:
        """Rank 0: the address at which the others join."""
        return self.meeting.listen(host)

    def setup(self, address: tuple[str, int]) -> dict[str, Any]:
        """Join, build policy and engine, load the start of `policy.init`. Returns what this rank is and can; `experts`
        is the range of experts that it holds of each layer, None where there are none.
        """
        c = self.config
        torch.set_num_threads(c.learner.threads)
        torch.manual_seed(c.seed * 1000 + self.rank)
        if self.meeting.cuda:
            torch.cuda.set_device(self.device)
        self.meeting.join(address)
        quant = QuantSpec(c.model.quant.expert_weights, c.model.quant.expert_activations, c.model.quant.scale_rule)
        self.policy = build_policy(
            c.model.kind, c.model.preset, c.model.path, quant, seed=c.seed, vision=c.model.vision
        )
        self.policy.to(self.device)
        self.frozen = freeze(self.policy, c.learner)
        freeze_sight(self.policy, c.learner.train_vision)
        self.moe_shape: tuple[int, int] | None = self.policy.moe_shape
        if c.learner.expert_parallel > 1:
            from rl.learner.experts import spread_experts

            spread_experts(self.policy, c.learner.expert_parallel, self.rank)
        initial.load(c, self.policy)
        self.auxiliary = Auxiliary(self.policy, c.learner)
        self.policy.eval()  # dropout of a foreign model would part the learner from the engine
        if c.learner.balance and self.moe_shape is not None:
            enable_balancing(self.policy)
        self.engine = build_engine(
            Scorer(self.policy, c.learner.chunk_tokens, c.learner.expert_parallel > 1), self.policy, c.learner
        )
        self.meeting.bound_all_groups()
        self.policy.refresh_quantized()
        self.trained = [p for p in self.policy.parameters() if p.requires_grad]
        self.tensor_scale = None
        if c.learner.optimizer == "tensorwise":
            whole = state.global_names(self.policy)
            names = {p: whole[n].partition("@")[0] for n, p in self.policy.named_parameters() if p.requires_grad}
            self.tensor_scale = TensorScale(names, c.learner.beta2)
            if c.learner.orthogonal:
                base_optimizer(self.engine).along = Orthogonal(self.engine, self.tensor_scale, c.learner.beta1)
        trained = sum(p.numel() for p in self.trained)
        out = {"rank": self.rank, "pid": os.getpid(), "device": str(self.device), "parameters": trained}
        experts = None
        if self.moe_shape is not None:
            own = self.moe_shape[1] // c.learner.expert_parallel
            first = self.rank % c.learner.expert_parallel * own
            experts = [first, first + own]
        # The MTP layer reads the next token, which a shared beginning does not have.
        shares = self.policy.shares_prefixes and not c.learner.mtp_loss
        return out | {"shares_prefixes": shares, "experts": experts}

    def close(self) -> None:
        """Leave the process groups."""
        self.meeting.leave()

    # --- the step ---------------------------------------------------------------------------------------------------

    def train_step(self, shard: Shard, step: int) -> dict[str, float]:
        """One optimizer step on this rank's shard; the same metrics on every rank.

        A batch without a trained token changes nothing and is counted (`empty_batch`); so is a gradient that is not
        finite (`nonfinite_gradient`): all ranks skip together. `step_kl` is the mean KL per token that the step made,
        on some of its own tokens.
        """
        c = self.config.learner
        metrics = StepMetrics(shard.environments, self.moe_shape)
        self.auxiliary.start(step)
        if step and step == c.index_warmup_steps:  # what follows is another training: no momentum of this one
            forget(self.engine)
            if self.tensor_scale is not None:
                self.tensor_scale.forget()
        rate = learning_rate(c, step, self.config.steps)
        out = {"lr": rate, "empty_batch": float(shard.tokens == 0), "nonfinite_gradient": 0.0, "grad_norm": 0.0}
        out["step_kl"] = 0.0
        if shard.tokens == 0:
            self.step = step + 1
            return metrics.reduce() | self.auxiliary.reduce() | out
        set_learning_rate(self.engine, rate, indexers_only=self.auxiliary.warming)
        positions = self.auxiliary.positions(shard)
        # Rows are ordered by length: the middle ones are neither all long nor all short.
        probe = sum(not batch.dummy for batch in shard.micro_batches) // 2
        for i, batch in enumerate(shard.micro_batches):
            last = i == len(shard.micro_batches) - 1
            self.engine.set_gradient_accumulation_boundary(last)
            # DeepSpeed divides by the number of ranks; the denominator here is global already.
            loss, scored = self._loss(batch, metrics)
            if i == probe:
                before = scored.logprob.detach()
            loss = loss * (self.ranks / shard.tokens)
            extra = self.auxiliary.loss(scored, batch, shard.tokens, positions)
            if extra is not None:
                loss = loss + extra * self.ranks
            if last:
                gradients.fill_missing(self.trained)
            self.engine.backward(loss, scale_wrt_gas=False)
        if self.auxiliary.replays:
            self._compare(shard.micro_batches[probe].head(_STEP_KL_POSITIONS), before)
        pieces = gradients.reduced_gradients(self.engine)
        norm = gradients.global_norm(pieces)
        if math.isfinite(norm):
            gradients.clip(pieces, norm, c.clip_grad_norm)
            if self.tensor_scale is not None:
                self.tensor_scale.apply(self.auxiliary.moves(pieces))
            self.engine.step()
            self.policy.refresh_quantized()
        else:
            gradients.discard(self.engine)
            out["nonfinite_gradient"] = 1.0
        out["grad_norm"] = norm
        if self._balances:
            balance_update(self.policy, sum_over_ranks)
        # While the indexers warm up, training attends to all keys and generation does not.
        if not out["nonfinite_gradient"] and not self.auxiliary.warming:
            out["step_kl"] = self._step_kl(shard.micro_batches[probe].head(_STEP_KL_POSITIONS), before)
        self.step = step + 1
        return metrics.reduce() | self.auxiliary.reduce() | out

    @property
    def _balances(self) -> bool:
        """Whether this step moves the routers' selection bias."""
        return self.config.learner.balance and self.moe_shape is not None and not self.auxiliary.warming

    def _score(self, module: Any, batch: MicroBatch) -> Scored:
        """Score with the recorded routes and picks that this run replays."""
        return score(module, batch, self.config.learner.router_replay, self.device, self.auxiliary.replays)

    def _loss(self, batch: MicroBatch, metrics: StepMetrics) -> tuple[torch.Tensor, Scored]:
        """Summed loss of a micro-batch, and its scores; what the metrics say of it comes from the same tensors."""
        # Only balancing looks at the mode: it counts the tokens that train, not those of dummies.
        self.policy.train(self._balances and not batch.dummy)
        scored = self._score(self.engine, batch)
        metrics.add_micro_batch(batch)
        if batch.dummy:
            return scored.logprob.sum() * 0.0, scored
        result, correction = self._algorithm(batch, scored)
        mask, behaviour = self._tensor(batch.mask), self._tensor(batch.behaviour)
        values = metrics.add_tokens(result, scored.logprob, behaviour, scored.entropy, correction, mask)
        metrics.add_environments(values, torch.as_tensor(batch.environment))
        metrics.add_routes(scored.routes, batch)
        return scored.logprob.sum() * 0.0 if self.auxiliary.warming else result.loss, scored

    @torch.no_grad()
    def _compare(self, batch: MicroBatch, before: torch.Tensor) -> None:
        """Score some of the step's rows again with the learner's own picks; `before` is what replay gave, as below."""
        self.policy.eval()
        live = score(self.engine.module, batch, self.config.learner.router_replay, self.device, record_picks=True)
        self.auxiliary.compare(live, before[: len(batch.ids)], batch)

    @torch.no_grad()
    def _step_kl(self, batch: MicroBatch, before: torch.Tensor) -> float:
        """Mean KL(policy before the step || policy after it) over the trained tokens of these rows of all ranks.

        before: log-probs of the same rows (or more) at the weights that the step started from. Against those of the
        behaviour policy it would also show what earlier steps moved. k3 of Schulman 2020, as `learner/kl`.
        """
        self.policy.eval()
        after = self._score(self.engine.module, batch).logprob
        ratio = (after - before[: len(after)])[self._tensor(batch.mask)].double().clamp(-20, 20)
        moved = (ratio.exp() - 1 - ratio).sum().item()
        moved, tokens = sum_over_ranks(torch.tensor([moved, ratio.numel()], dtype=torch.float64)).tolist()
        return moved / tokens

    def _algorithm(self, batch: MicroBatch, scored: Scored) -> tuple[LossResult, torch.Tensor]:
        """The configured correction and loss on this micro-batch's streams."""
        a = self.config.algorithm
        mask, behaviour, advantage = (self._tensor(x) for x in (batch.mask, batch.behaviour, batch.advantage))
        # One optimizer step per batch: the proximal policy is the current one, without its gradient.
        proximal = scored.logprob.detach()
        weight = CORRECTIONS[a.correction](OffPolicy(behaviour, proximal, advantage, mask), a)
        anchor = behaviour if a.correction == "none" else proximal
        streams = Streams(advantage, behaviour, anchor, scored.logprob, mask, weight)
        return LOSSES[a.loss](streams, a), weight

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array).to(self.device)

    @torch.no_grad()
    def score(self, shard: Shard) -> dict[str, np.ndarray]:
        """Log-probs of every row of the shard by its id, float32 [T] (0 where not sampled), at the present weights."""
        out = {}
        for batch in shard.micro_batches:
            scored = self._score(self.engine.module, batch)
            logprob = scored.logprob.float().cpu().numpy()
            for i, (name, past, length) in enumerate(zip(batch.ids, batch.past, batch.lengths, strict=True)):
                if name and not batch.dummy:
                    out[name] = np.concatenate([np.zeros(past, np.float32), logprob[i, :length]])
        return out

    @torch.no_grad()
    def trace(self, prompt: np.ndarray) -> dict[str, np.ndarray]:
        """Outputs of a Hugging Face policy's modules on a prompt int32 [T], see `model.trace`."""
        ids = self._tensor(prompt.astype(np.int64))[None]
        lengths = torch.tensor([len(prompt)], device=self.device)
        return trace(self.policy.model, lambda: self.policy.logits(self.policy(ids, lengths).hidden), len(prompt))

    # --- weights and checkpoints --------------------------------------------------------------------------------------

    def export_weights(self) -> dict[str, np.ndarray]:
        """Full-precision copies of what this rank sends to the engines, by public name; see `weights.export`."""
        return weights.export(self.policy, self.rank, self.config.learner.expert_parallel)

    def load_weights(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take a whole set of weights by public names; the optimizer's state stays. Raises ValueError if it misfits."""
        weights.load(self.policy, arrays)
        masters_from_parameters(self.engine)
        self.policy.refresh_quantized()

    def save(self, folder: str | Path) -> None:
        """Write this rank's files: weights, optimizer state, step and random state; see `state`."""
        state.save(Path(folder), self)

    def load(self, folder: str | Path) -> None:
        """Continue exactly where `save` was called; another number of ranks may have written it."""
        state.load(Path(folder), self)
