"""Laws of `learner.chunk_tokens`: rows in chunks change neither what is scored nor the step, on any ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import learner_cases as cases
import numpy as np
import pytest
import torch
from learner_processes import launch

from rl.batch import MicroBatch, TrainBatch
from rl.learner import limits, scoring


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("share", [True, False])
def test_chunks_change_neither_log_probs_nor_gradients(
    share: bool, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "LOGIT_CELLS", 512 * 7)  # logits of seven tokens at once, inside of a chunk
    # MXFP8 rounds activations: a last-bit difference may cross a step; the rest of QAT is on.
    policy = cases.policy(cases.config(model__quant__expert_activations="none")).double()
    batch = MicroBatch.of(cases.siblings((3, 2), routes=(3, 8, 2) if recorded else None), share=share)
    results = []
    for chunk in (0, 16):
        policy.zero_grad()
        scored = scoring.score(scoring.Scorer(policy, chunk), batch, True, torch.device("cpu"))
        scored.logprob.square().sum().backward()
        grads = {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}
        results.append((scored, grads))
    (whole, want), (chunked, got) = results
    torch.testing.assert_close(chunked.logprob, whole.logprob, rtol=0, atol=1e-12)
    torch.testing.assert_close(chunked.entropy, whole.entropy, rtol=0, atol=1e-12)
    assert whole.routes is not None and chunked.routes is not None and torch.equal(chunked.routes, whole.routes)
    assert got.keys() == want.keys()
    for name, g in want.items():
        assert float((got[name] - g).norm()) <= 1e-10 * float(g.norm()), name


def test_only_longer_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, batch = cases.policy(cases.config()), MicroBatch.of(cases.rows(2))
    monkeypatch.setattr(scoring, "score_chunked", lambda *_, **__: pytest.fail("cut"))
    scoring.score(scoring.Scorer(policy, int(batch.lengths.sum())), batch, False, torch.device("cpu"))


def steps(rank: int, meeting: Any, folder: Path) -> dict[str, float]:
    """Largest difference of a step's gradient from that of the whole batch at once (SGD with lr 1), by ZeRO stage."""
    import rl.learner.engine as engine
    from rl.learner.rank import LearnerRank

    engine.build_optimizer = lambda groups, c: torch.optim.SGD(groups, lr=c.lr)
    exact = {"model__quant__expert_activations": "none", "learner__expert_parallel": 1}
    batch = TrainBatch(cases.siblings((3, 6, 1)), cases.ENVIRONMENTS)
    want, _ = cases.oracle(cases.config(**exact), batch)
    out = {"scale": max(float(np.abs(g).max()) for g in want.values())}
    for zero in (1, 2):
        learner = LearnerRank(cases.config(**exact, learner__zero_stage=zero, learner__chunk_tokens=24), rank, meeting)
        learner.setup(("", 0))
        before = learner.export_weights()
        learner.train_step(batch.shards(2, 128)[rank], 0)
        after = learner.export_weights()
        out["tensors"] = len(before)
        out[f"zero{zero}"] = float(
            max((np.abs(before[k] - after[k] - want[k]).max() for k in before if k in want), default=0.0)
        )
    return out


def test_a_step_on_two_ranks_is_the_step_of_whole_rows(tmp_path: Path) -> None:
    got = launch(__file__, "steps", 2, tmp_path).results("steps")[0]  # rank 0 exports what all ranks hold
    assert got["tensors"] > 50
    for zero in (1, 2):
        assert got[f"zero{zero}"] < 2e-5 * got["scale"], got


def test_spread_experts_are_refused() -> None:
    config = cases.config(learner__chunk_tokens=64, learner__expert_parallel=2).learner
    assert any("learner.chunk_tokens=64" in text for text in limits.check(config))
    config.expert_parallel = 1
    assert not limits.check(config)
