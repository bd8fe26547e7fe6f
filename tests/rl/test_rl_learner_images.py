"""Laws of learners that see, on two gloo processes: the gradient is that of one process, whichever rank has the images,
and ranks without one neither hang nor part."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learner_processes import Outcome, launch

SEEING = ("vision_tower.", "mm_projector.")
SPREADS = ((1, 1), (2, 0), (2, 1), (2, 2))
"""Expert parallelism and ZeRO stage."""


def images(rank: int, meeting: Any, folder: Path) -> dict[str, Any]:
    """Plain SGD with lr 1: the change of the weights IS the gradient."""
    import learner_cases as cases
    import torch
    from torch.distributed import all_gather_object

    import rl.learner.engine as engine
    from rl.batch import MicroBatch, Shard, TrainBatch
    from rl.learner.rank import LearnerRank

    engine.build_optimizer = lambda groups, c: torch.optim.SGD(groups, lr=c.lr)
    exact = {"model__vision": "tiny", "model__quant__expert_activations": "none"}

    def everything(learner: LearnerRank) -> dict[str, np.ndarray]:
        parts: list[Any] = [None, None]
        all_gather_object(parts, learner.export_weights())
        return parts[0] | parts[1]

    def start(**changes: Any) -> LearnerRank:
        learner = LearnerRank(cases.config(**exact, **changes), rank, meeting)
        learner.setup(("", 0))
        return learner

    def gradient(learner: LearnerRank, parts: list[list[MicroBatch]], batch: TrainBatch) -> tuple[dict, dict]:
        before = everything(learner)
        metrics = learner.train_step(Shard(parts[rank], batch.tokens, batch.environments), 0)
        after = everything(learner)
        learner.load_weights(before)
        return {k: before[k] - after[k] for k in before}, metrics

    def error(got: dict[str, np.ndarray], want: dict[str, np.ndarray], prefix: Any = "") -> float:
        return max(float(np.abs(got[k] - want[k]).max()) for k in got if k in want and k.startswith(prefix))

    text, pictured = cases.rows(6), cases.pictured(4)
    mixed, plain = TrainBatch([*pictured, *text], cases.ENVIRONMENTS), TrainBatch(text, cases.ENVIRONMENTS)
    want, _ = cases.oracle(cases.config(**exact), mixed)
    want_text, _ = cases.oracle(cases.config(**exact), plain)
    norm = math.sqrt(sum(float(np.square(g.astype(np.float64)).sum()) for g in want.values()))
    out: dict[str, Any] = {"scale": max(float(np.abs(g).max()) for k, g in want.items() if k.startswith(SEEING))}
    all_here = [
        [MicroBatch.of(pictured, share=True), MicroBatch.of(text[:2])],
        [MicroBatch.of(text[2:4]), MicroBatch.of(text[4:])],
    ]
    crossed = [  # images first on one rank and last on the other, once with an idle rank beside them
        [MicroBatch.of(pictured[:2]), MicroBatch.of(text), MicroBatch.of(pictured[3:])],
        [MicroBatch.idle(), MicroBatch.of(pictured[2:3]), MicroBatch.idle()],
    ]
    none = [[MicroBatch.of(text[:3])], [MicroBatch.of(text[3:])]]
    for ep, zero in SPREADS:
        learner = start(learner__expert_parallel=ep, learner__zero_stage=zero, learner__train_vision="all")
        for name, parts in (("all_here", all_here), ("crossed", crossed)):
            got, metrics = gradient(learner, parts, mixed)
            off = abs(metrics["grad_norm"] - norm) / norm
            out[f"{name}/ep{ep}_zero{zero}"] = (error(got, want), error(got, want, SEEING), off)
        got, _ = gradient(learner, none, plain)
        blind = max(float(np.abs(g).max()) for k, g in got.items() if k.startswith(SEEING))
        out[f"none/ep{ep}_zero{zero}"] = (error(got, want_text), blind, 0.0)
    for trained in ("none", "projector"):
        learner = start(learner__expert_parallel=2, learner__train_vision=trained)
        for parts, batch in ((none, plain), (all_here, mixed)):
            got, _ = gradient(learner, parts, batch)
        moved = {k.partition(".")[0] for k, g in got.items() if k.startswith(SEEING) and np.abs(g).max() > 0}
        out[f"moved/{trained}"] = (moved, error(got, want, tuple(moved) or "model."))
    # A checkpoint brings tower and projector back, and the next step is the same.
    learner = start(learner__expert_parallel=2, learner__train_vision="all")
    learner.train_step(Shard(all_here[rank], mixed.tokens, mixed.environments), 0)
    if rank == 0:
        (folder / "saved").mkdir(exist_ok=True)
    torch.distributed.barrier()
    learner.save(folder / "saved")
    kept = everything(learner)
    other = start(learner__expert_parallel=2, learner__train_vision="all")
    fresh = everything(other)
    other.load(folder / "saved")
    back = everything(other)
    out["checkpoint"] = (error(back, kept), error(fresh, kept, SEEING))
    return out


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    outcome: Outcome = launch(__file__, "images", 2, tmp_path_factory.mktemp("images"))
    first, second = outcome.results("images")
    assert first == second, "ranks must end with the same weights"
    return first


SPREAD = [f"ep{e}_zero{z}" for e, z in SPREADS]


@pytest.mark.parametrize("spread", SPREAD)
@pytest.mark.parametrize("where", ["all_here", "crossed"])
def test_the_gradient_is_that_of_one_process(seen: dict[str, Any], where: str, spread: str) -> None:
    every, seeing, norm = seen[f"{where}/{spread}"]
    assert seen["scale"] > 1e-3, "tower and projector have a gradient to be wrong about"
    assert every < 1e-5 and seeing < 1e-5 and norm < 1e-4


@pytest.mark.parametrize("spread", SPREAD)
def test_a_batch_without_images_moves_nothing_that_sees(seen: dict[str, Any], spread: str) -> None:
    every, blind, _ = seen[f"none/{spread}"]
    assert blind == 0.0 and every < 1e-5


def test_the_switch_says_what_moves(seen: dict[str, Any]) -> None:
    assert seen["moved/none"][0] == set()
    assert seen["moved/projector"][0] == {"mm_projector"} and seen["moved/projector"][1] < 1e-5


def test_a_checkpoint_brings_the_tower_back(seen: dict[str, Any]) -> None:
    assert seen["checkpoint"][0] == 0.0 and seen["checkpoint"][1] > 1e-3
