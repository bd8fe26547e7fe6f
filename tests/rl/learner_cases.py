"""Rows, configurations and an oracle for learner tests: the same loss by plain autograd in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl.batch import MicroBatch, Row, TrainBatch
from rl.config import Config

ENVIRONMENTS = ("a", "b")


def rows(count: int, seed: int = 0, temperature: float = 1.0, routes: Any = None) -> list[Row]:
    """Random rows of 6 to 40 tokens; behaviour log-probs near those of a random policy, so that no clip binds."""
    rng, out = np.random.default_rng(seed), []
    for i in range(count):
        length = int(rng.integers(6, 40))
        sampled = int(rng.integers(2, length - 2))
        mask = np.arange(length) >= length - sampled
        out.append(
            Row(
                id=f"r{i}",
                token_ids=rng.integers(0, 512, length).astype(np.int32),
                mask=mask,
                behaviour=np.where(mask, -6.2, 0).astype(np.float32),
                temperature=np.full(length, temperature, np.float32),
                routes=None if routes is None else np.broadcast_to(routes, (length, *routes.shape)).astype(np.int16),
                advantage=float(rng.normal()),
                environment=i % 2,
            )
        )
    return out


def batch(count: int = 14, **more: Any) -> TrainBatch:
    return TrainBatch(rows(count, **more), ENVIRONMENTS)


def config(**changes: Any) -> Config:
    """The default configuration from a random start, with `section__field=value` changes; no clipping, lr 1."""
    c = Config()
    c.policy.init = "scratch"
    c.learner.lr, c.learner.warmup_steps, c.learner.clip_grad_norm, c.learner.timeout_s = 1.0, 1, 0.0, 60.0
    c.learner.lr_scale, c.learner.final_lr = {}, 1.0
    for key, value in changes.items():
        *path, field = key.split("__")
        target: Any = c
        for part in path:
            target = getattr(target, part)
        assert hasattr(target, field), key
        setattr(target, field, value)
    return c


def policy(c: Config) -> Any:
    from model.build import build_policy
    from model.quant import QuantSpec

    q = c.model.quant
    return build_policy("k3", c.model.preset, None, QuantSpec(q.expert_weights, q.expert_activations), seed=c.seed)


def oracle(c: Config, b: TrainBatch, weights: dict[str, Any] | None = None) -> tuple[dict[str, np.ndarray], float]:
    """(gradient by public name, loss) of the whole batch as ONE micro-batch; neither DeepSpeed nor parallelism."""
    from rl.algorithms import CORRECTIONS, LOSSES
    from rl.algorithms.correction.ratio import OffPolicy
    from rl.algorithms.loss.streams import Streams
    from rl.learner.scoring import Scorer, score

    p = policy(c)
    if weights is not None:
        p.load_named_weights(weights)
    micro = MicroBatch.of(b.rows)
    scored = score(Scorer(p), micro, c.learner.router_replay, torch.device("cpu"))
    mask, behaviour, advantage = (torch.as_tensor(x) for x in (micro.mask, micro.behaviour, micro.advantage))
    old = scored.logprob.detach()
    weight = CORRECTIONS[c.algorithm.correction](OffPolicy(behaviour, old, advantage, mask), c.algorithm)
    anchor = behaviour if c.algorithm.correction == "none" else old
    streams = Streams(advantage, behaviour, anchor, scored.logprob, mask, weight)
    loss = LOSSES[c.algorithm.loss](streams, c.algorithm).loss / b.tokens
    loss.backward()
    grads = {}
    for name, parameter in p.named_parameters():
        g = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        head, _, last = name.rpartition(".")
        if head.endswith(".experts"):
            grads |= {f"{head}.{e}.{last}.weight": g[e].numpy() for e in range(len(g))}
        else:
            grads[name] = g.numpy()
    return grads, float(loss.detach())
