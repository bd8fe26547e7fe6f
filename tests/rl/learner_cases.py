"""Rows, configurations and an oracle for learner tests: the same loss by plain autograd in one process."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from rl.batch import MicroBatch, Row, TrainBatch
from rl.config import Config
from rl.muon import orthogonalise

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


def siblings(sizes: tuple[int, ...] = (3, 4, 1, 2), seed: int = 0, routes: Any = (3, 8, 2)) -> list[Row]:
    """Groups of rows that share a prompt: the shortest is one token, and so is the shortest reply; some replies go on
    after tokens that were not sampled, some are colder. `routes`: MoE layers, experts and top-k of the recorded routes
    (one token of a prompt is not recorded), or None."""

    def used(n: int) -> np.ndarray:
        layers, experts, k = routes or (1, 1, 1)
        return rng.permuted(np.tile(np.arange(experts), (n, layers, 1)), axis=-1)[..., :k]

    rng, out = np.random.default_rng(seed), []
    for g, size in enumerate(sizes):
        prompt = rng.integers(0, 512, 1 if g == 0 else int(rng.integers(5, 40)))
        prompt_routes = used(len(prompt))
        prompt_routes[-1] = -1
        for i in range(size):
            n = 1 if i == 1 else int(rng.integers(2, 30))
            length = len(prompt) + n
            mask = np.arange(length) >= len(prompt)
            mask[len(prompt) + 3 : len(prompt) + 6] = False
            out.append(
                Row(
                    id=f"g{g}/{i}",
                    token_ids=np.concatenate([prompt, rng.integers(0, 512, n)]).astype(np.int32),
                    mask=mask,
                    behaviour=np.where(mask, -6.2, 0).astype(np.float32),
                    temperature=np.where(mask, 0.7 if i == 2 else 1.0, 1.0).astype(np.float32),
                    routes=np.concatenate([prompt_routes, used(n)]).astype(np.int16) if routes else None,
                    advantage=float(rng.normal()),
                    environment=g % 2,
                )
            )
    return out


def batch(count: int = 14, **more: Any) -> TrainBatch:
    return TrainBatch(rows(count, **more), ENVIRONMENTS)


def config(**changes: Any) -> Config:
    """The default configuration from a random start, with `section__field=value` changes; AdamW, no clipping, lr 1."""
    c = Config()
    c.policy.init = "scratch"
    c.learner.lr, c.learner.warmup_steps, c.learner.clip_grad_norm, c.learner.timeout_s = 1.0, 1, 0.0, 60.0
    c.learner.optimizer, c.learner.lr_scale, c.learner.final_lr = "adamw", {}, 1.0
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
    quant = QuantSpec(q.expert_weights, q.expert_activations)
    return build_policy(c.model.kind, c.model.preset, c.model.path, quant, seed=c.seed, vision=c.model.vision)


def oracle(c: Config, b: TrainBatch, weights: dict[str, Any] | None = None) -> tuple[dict[str, np.ndarray], float]:
    """(gradient by public name, loss) of the whole batch as ONE micro-batch; neither DeepSpeed nor parallelism."""
    from model.hf_layout import layout
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
    if c.model.kind == "hf":
        own = {n: torch.zeros_like(x) if x.grad is None else x.grad for n, x in p.model.named_parameters()}
        parts = {n: part for n, part in layout(p.model).items() if part.parameter in own}
        return {n: part.of(own[part.parameter]).numpy() for n, part in parts.items()}, float(loss.detach())
    for name, parameter in p.named_parameters():
        g = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        head, _, last = name.rpartition(".")
        if head.endswith(".experts"):
            grads |= {f"{head}.{e}.{last}.weight": g[e].numpy() for e in range(len(g))}
        else:
            grads[name] = g.numpy()
    return grads, float(loss.detach())


def tensorwise(gradient: dict[str, np.ndarray], orthogonal: bool) -> dict[str, np.ndarray]:
    """Oracle in float64: tensors (the experts of a layer are one) over their damped mean squares, RMS 1 on average;
    matrices orthogonalised one by one, if asked, to what is the noise of a mean of their tensor."""
    tensor = {k: re.sub(r"experts\.\d+\.(w\d)\.weight", r"\1", k) for k in gradient}
    square: dict[str, list[float]] = {}
    for k, g in gradient.items():
        if ".indexer." in k:  # frozen
            continue
        total = square.setdefault(tensor[k], [0.0, 0.0])
        total[0] += float(np.square(g.astype(np.float64)).sum())
        total[1] += g.size
    weights = sum(n for _, n in square.values())
    fisher = {t: s / n + 1e-5 * sum(x for x, _ in square.values()) / weights for t, (s, n) in square.items()}
    size = sum((s * n) ** 0.5 / fisher[t] for t, (s, n) in square.items()) / weights
    if orthogonal:
        gradient, noise = dict(gradient), (0.1 / 1.9) ** 0.5  # of a mean with beta1 = 0.9
        for k, g in gradient.items():
            if g.ndim == 2 and min(g.shape) > 1 and tensor[k] in square:
                rms = noise * (square[tensor[k]][0] / square[tensor[k]][1]) ** 0.5
                gradient[k] = orthogonalise(torch.tensor(g).double()).numpy() * (rms * max(g.shape) ** 0.5)
    return {k: g / (fisher.get(tensor[k], 1.0) * size) for k, g in gradient.items()}


def relative(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Largest difference, relative to the largest value of its tensor."""
    return max(float(np.abs(a[k] - b[k]).max() / max(1e-12, np.abs(b[k]).max())) for k in b)


PAD = 515
"""The placeholder of images of `tiny` with its tower."""


def pictured(count: int = 4, seed: int = 0) -> list[Row]:
    """Rows that share a prompt with one image; every one but the last shows another image behind its first reply."""
    from environments.images import image_hash, png
    from rl.batch import Image

    rng, out = np.random.default_rng(seed), []

    def image(at: int, tokens: int) -> Image:
        file = png(rng.integers(0, 256, (12, 12 * tokens, 3)).astype(np.uint8))
        return Image(image_hash(file), at, tokens, file)

    prompt = np.concatenate([[1, 2, 3], [PAD] * 4, rng.integers(0, 512, 3)])
    shared = image(3, 4)
    for i in range(count):
        reply = rng.integers(0, 512, 6 + i)
        shows = i < count - 1 or count < 3
        told = [4, PAD, PAD, 5] if shows else []
        ids = np.concatenate([prompt, reply, told, reply[:4]])
        mask = np.ones(len(ids), bool)
        mask[: len(prompt)] = False
        mask[len(prompt) + len(reply) : len(prompt) + len(reply) + len(told)] = False
        images = (shared, image(len(prompt) + len(reply) + 1, 2)) if shows else (shared,)
        out.append(
            Row(
                id=f"p{seed}/{i}",
                token_ids=ids.astype(np.int32),
                mask=mask,
                behaviour=np.where(mask, -6.2, 0).astype(np.float32),
                temperature=np.ones(len(ids), np.float32),
                routes=None,
                advantage=float(rng.normal()),
                environment=0,
                images=images,
            )
        )
    return out
