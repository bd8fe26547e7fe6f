"""Laws of `learner.chunk_tokens`: rows in chunks change neither what is scored nor the step, on any ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import learner_cases as cases
import numpy as np
import pytest
import torch
from learner_processes import launch

from rl.batch import MicroBatch, Shard, TrainBatch
from rl.learner import scoring


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


def steps(rank: int, meeting: Any, folder: Path) -> dict[str, Any]:
    """Differences of a step's gradient from that of the whole batch at once (SGD with lr 1), by how it is run."""
    import rl.learner.engine as engine
    from rl.learner.rank import LearnerRank

    engine.build_optimizer = lambda groups, c: torch.optim.SGD(groups, lr=c.lr)
    exact = {"model__quant__expert_activations": "none", "learner__chunk_tokens": 24}
    batch = TrainBatch(cases.siblings((3, 6, 1)), cases.ENVIRONMENTS)
    want, _ = cases.oracle(cases.config(**exact | {"learner__chunk_tokens": 0}), batch)
    balanced = batch.shards(2, 128)
    alone = Shard([MicroBatch.of(batch.rows, share=True)], batch.tokens, batch.environments)
    uneven = [alone, Shard([MicroBatch.idle()], batch.tokens, batch.environments)]
    # The last row of the second rank is short enough to be run whole, were it not for the first one's.
    parts = [MicroBatch.of(batch.rows[:8]), MicroBatch.of(batch.rows[8:])]
    unequal = [Shard([part], batch.tokens, batch.environments) for part in parts]
    out: dict[str, Any] = {"scale": max(float(np.abs(g).max()) for g in want.values())}
    for name, ep, zero, shards in (
        ("zero 1", 1, 1, balanced),
        ("zero 2", 1, 2, balanced),
        ("spread", 2, 1, balanced),
        ("spread, one rank without rows", 2, 0, uneven),
        ("spread, unequal rows", 2, 2, unequal),
    ):
        config = cases.config(**exact, learner__expert_parallel=ep, learner__zero_stage=zero)
        learner = LearnerRank(config, rank, meeting)
        learner.setup(("", 0))
        before = learner.export_weights()
        norm = learner.train_step(shards[rank], 0)["grad_norm"]
        after = learner.export_weights()
        out[name] = {k: float(np.abs(before[k] - after[k] - want[k]).max()) for k in before if k in want}
        out[f"{name}: norm"] = norm
    return out


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch(__file__, "steps", 2, tmp_path_factory.mktemp("steps")).results("steps")


@pytest.mark.parametrize("how", ["zero 1", "zero 2", "spread", "spread, one rank without rows", "spread, unequal rows"])
def test_a_step_on_two_ranks_is_the_step_of_whole_rows(how: str, stepped: list[dict[str, Any]]) -> None:
    gaps = stepped[0][how] | stepped[1][how]  # what is on all ranks is exported by the first
    assert len(gaps) > 50 and any(".experts.7." in name for name in gaps)
    assert max(gaps.values()) < 2e-5 * stepped[0]["scale"], gaps
    assert stepped[0][f"{how}: norm"] == pytest.approx(stepped[0]["zero 1: norm"], rel=1e-5)
