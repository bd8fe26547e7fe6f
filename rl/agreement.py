"""Before anything is sampled for training: does an engine of foreign code compute the learners' policy?

Checksums show that an engine received the weights. What it made of them (packed, fused, transposed) shows only in what
it computes: here every engine samples a few tokens, and the learners score them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rl.batch import Row, TrainBatch
from rl.config import Config
from rl.errors import UserError
from rollout.engine.base import GenerateRequest, Generation
from rollout.trajectory import Sampling

if TYPE_CHECKING:
    from rl.learner.group import LearnerGroup

_SAMPLES, _TOKENS = 8, 16
"""Continuations of one prompt, and their lengths: an expert that one token in 16 reaches is met some eight times."""
_PROMPT = 70
"""Tokens of the prompt: beyond two KV blocks of vLLM's."""
_GAP = 1e-3
"""Of a log-prob, in nats: float32 gave up to 1e-4 between vLLM and transformers, a weight one step old gives 0.1."""
_TIES = 0.05
"""Share of tokens that may differ by more: where two experts are as good as tied, rounding decides between them."""


def prove(config: Config, learners: LearnerGroup, engines: dict[str, Any], vocab: int) -> dict[str, float]:
    """Compare every engine's log-probs with the learners'; returns `sync/start_gap_max`, in nats.

    vocab: ids below it may be in the prompt. Raises UserError naming the engine, and the first module of the model
    whose output differs.
    """
    import ray

    length = max(1, min(_PROMPT, config.engine.max_context - _TOKENS))
    prompt = np.random.default_rng(config.seed).integers(0, vocab, length).astype(np.int32)
    sampling = tuple(Sampling(config.algorithm.temperature, _TOKENS, seed) for seed in range(_SAMPLES))
    limit, worst = config.engine.request_timeout_s, 0.0
    for name, engine in engines.items():
        outs = ray.get(engine.generate.remote(GenerateRequest("agreement", prompt, sampling)), timeout=limit)
        rows = [_row(f"{name}/{i}", prompt, out, config.algorithm.temperature) for i, out in enumerate(outs)]
        scored = learners.score(TrainBatch(rows, ("agreement",)))
        gaps = np.concatenate([np.abs(scored[r.id] - r.behaviour)[r.mask] for r in rows])
        wrong = int((~(gaps <= _GAP)).sum())
        if wrong > _TIES * len(gaps):
            from model.trace import first_difference

            ours, theirs = learners.trace(prompt), ray.get(engine.trace.remote(prompt), timeout=limit)
            place = first_difference(ours, theirs)
            raise UserError(
                f"{name} does not compute the learners' policy: {wrong} of {len(gaps)} log-probs differ by more than "
                f"{_GAP} nats (largest {gaps.max():.3g}); "
                + (f"the first output that differs is that of {place}" if place else "no output of a module differs")
                + f". {config.engine.kind} does not serve this model as it is trained: use another model, or another "
                "version of it"
            )
        worst = max(worst, float(gaps.max()))
    return {"sync/start_gap_max": worst}


def _row(id: str, prompt: np.ndarray, out: Generation, temperature: float) -> Row:
    ids = np.concatenate([prompt, out.token_ids]).astype(np.int32)
    mask = np.arange(len(ids)) >= len(prompt)
    behaviour = np.concatenate([np.zeros(len(prompt), np.float32), out.logprobs])
    heat = np.where(mask, temperature, 1.0).astype(np.float32)
    routes = None
    if out.routes is not None and out.prompt_routes is not None:
        routes = np.concatenate([out.prompt_routes, out.routes]).astype(np.uint16).view(np.int16)
    return Row(id, ids, mask, behaviour, heat, routes, 0.0, 0)
