"""Laws of the group of learner actors: one call, one answer; a failure, a death or a missed deadline names the rank."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(scope="module")
def group():
    import learner_cases as cases

    from rl.learner.group import LearnerGroup

    made = LearnerGroup(cases.config(learner__lr=1e-3, learner__timeout_s=60.0))
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def started(group):
    return group.wait()


def test_a_step_changes_the_weights_and_they_are_exported_with_a_manifest(group, started, tmp_path: Path):
    import learner_cases as cases
    import ray

    from rollout.engine.weights import verify

    assert [r["rank"] for r in started] == [0, 1]
    assert all(r["shares_prefixes"] for r in started) and group._share
    assert [r["experts"] for r in started] == [[0, 4], [4, 8]]
    family = dataclasses.replace(cases.batch(), rows=cases.siblings())
    assert {k: len(v) for k, v in group.score(family).items()} == {r.id: len(r) for r in family.rows}
    names = {n: tuple(t.shape) for n, t in cases.policy(cases.config()).named_weights()}

    def pushed(version: int) -> dict[str, np.ndarray]:
        manifest, buckets = group.export(version)
        assert manifest.version == version
        arrays: dict[str, np.ndarray] = {}
        for bucket in buckets:
            arrays |= ray.get(bucket, timeout=30)
        verify(manifest, arrays, names)  # every name once, with its shape and checksum
        return arrays

    before, batch = pushed(0), cases.batch()
    metrics = group.train(batch, 0)
    after = pushed(1)
    assert any(not np.array_equal(before[n], after[n]) for n in names if ".experts.7." in n)
    assert metrics["learner/tokens"] == batch.tokens and metrics["learner/grad_norm"] > 0
    group.save(tmp_path)
    scored = group.score(batch)
    assert scored.keys() == {r.id for r in batch.rows}
    assert all(len(scored[r.id]) == len(r) for r in batch.rows)
    loss = group.train(batch, 1)["learner/loss"]
    group.load(tmp_path)
    assert group.train(batch, 1)["learner/loss"] == pytest.approx(loss, abs=1e-6)
    group.load_weights(before)
    assert all(np.array_equal(a, before[n]) for n, a in pushed(2).items())


def test_learner_and_engine_agree_on_what_was_sampled_after_a_push(group, started):
    import learner_cases as cases
    import ray

    from rl.batch import Row, TrainBatch
    from rollout.engine.actor import start_engines
    from rollout.engine.base import GenerateRequest
    from rollout.trajectory import Sampling

    group.train(cases.batch(), 2)
    engine = start_engines(cases.config(engine__replicas=1))["engine0"]
    try:
        manifest, buckets = group.export(3)
        assert ray.get(engine.update_weights.remote(manifest, buckets), timeout=60) == 3
        prompt = np.arange(20, 29, dtype=np.int32)
        request = GenerateRequest("q", prompt, tuple(Sampling(1.0, 24, seed) for seed in range(4)))
        rows = []
        for i, out in enumerate(ray.get(engine.generate.remote(request), timeout=60)):
            ids = np.concatenate([prompt, out.token_ids]).astype(np.int32)
            mask = np.arange(len(ids)) >= len(prompt)
            behaviour = np.concatenate([np.zeros(len(prompt), np.float32), out.logprobs])
            routes = np.concatenate([out.prompt_routes, out.routes]).astype(np.uint16).view(np.int16)
            rows.append(Row(f"q/{i}", ids, mask, behaviour, np.ones(len(ids), np.float32), routes, 1.0, 0))
    finally:
        ray.kill(engine)
    scored = group.score(TrainBatch(rows, ("a",)))
    gaps = [np.abs(scored[r.id] - r.behaviour)[r.mask].mean() for r in rows]
    assert np.mean(gaps) < 1e-5


def test_a_killed_rank_is_named_and_the_others_do_not_wait_for_it(group, started):
    import learner_cases as cases

    from rl.learner.group import LearnerError

    os.kill(started[1]["pid"], signal.SIGKILL)
    with pytest.raises(LearnerError, match="rank 1 died"):
        group.train(cases.batch(), 2)
    assert not group.actors
    with pytest.raises(LearnerError, match="shut down"):
        group.train(cases.batch(), 3)


def _bare():
    from rl.learner.group import LearnerGroup

    made = LearnerGroup.__new__(LearnerGroup)
    made.actors, made.meanwhile = [], lambda: None
    return made


def test_the_rollout_is_tended_while_learners_work(tmp_path: Path):
    import ray

    mark = tmp_path / "the fourth look"

    @ray.remote(num_cpus=0, max_retries=0)
    def work() -> int:
        while not mark.exists():
            time.sleep(0.05)
        return 1

    group, looks = _bare(), []
    group.meanwhile = lambda: looks.append(mark.touch() if len(looks) == 3 else None)
    assert group._gather([work.remote()], "step", 60) == [1] and len(looks) >= 4


def test_a_rank_that_dies_between_two_calls_is_noticed():
    import ray

    from rl.learner.group import LearnerError

    @ray.remote(num_cpus=0, max_restarts=0)
    class Idle:
        def ping(self) -> int:
            return os.getpid()

    import learner_cases as cases

    group = _bare()
    group.config, group.actors = cases.config(), [Idle.remote() for _ in range(2)]
    pids = ray.get([a.ping.remote() for a in group.actors], timeout=60)
    group.check()
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(LearnerError, match="rank 1 died"):
        group.check()


def test_the_first_cause_is_reported_not_its_echo():
    import ray

    from rl.learner.group import LearnerError

    @ray.remote(num_cpus=0, max_retries=0)
    def work(rank: int) -> int:
        if rank == 2:
            time.sleep(0.5)
            raise ValueError("the cause")
        raise RuntimeError("gloo: Connection closed by peer")

    with pytest.raises(LearnerError, match=r"rank 2 failed in step[\s\S]*the cause"):
        _bare()._gather([work.remote(r) for r in range(3)], "step", 30)


def test_a_missed_deadline_names_who_is_late(tmp_path):
    import ray

    from rl.learner.group import LearnerError

    @ray.remote(num_cpus=0, max_retries=0)
    def work(rank: int) -> int:
        while rank == 1 and not (tmp_path / "over").exists():
            time.sleep(0.1)
        return rank

    refs = [work.remote(r) for r in range(3)]
    ray.get([refs[0], refs[2]])  # a process of Ray may take longer to start than the deadline is away
    with pytest.raises(LearnerError, match=r"\[1\] did not finish step within 2 s"):
        _bare()._gather(refs, "step", 2.0)
    (tmp_path / "over").touch()
    assert _bare()._gather([work.remote(r) for r in (3, 2)], "step", 30) == [3, 2]


def test_a_start_that_does_not_exist_is_refused_before_any_process_starts():
    import learner_cases as cases

    from rl.errors import UserError
    from rl.learner.group import LearnerGroup

    with pytest.raises(UserError, match=r"policy\.init"):
        LearnerGroup(cases.config(policy__init="/nowhere"))
