"""Laws of the engine actor: it answers while it generates, refuses without weights, comes back empty after a death."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from engine_tools import arrays, drain, plain, request, same
from worlds import Echo, order

from model import K3Config, Policy, QuantSpec
from rl.config import Config
from rollout.engine.actor import make_engine, start_engines
from rollout.engine.base import EngineNotReady, FinishReason, Generation
from rollout.engine.native import NativeEngine
from rollout.engine.weights import describe
from rollout.scheduler import Scheduler
from rollout.trajectory import StopReason

WAIT = 120.0


def config() -> Config:
    c = Config()
    c.engine.replicas, c.engine.max_batch, c.engine.max_context = 1, 16, 512
    c.model.quant.expert_weights = c.model.quant.expert_activations = "none"
    c.rollout.workers = 1
    return c


def weights(seed: int) -> tuple[Policy, dict[str, np.ndarray]]:
    policy = Policy(K3Config.preset("tiny"), QuantSpec("none", "none"))
    policy.reset_parameters(seed)
    return policy, arrays(policy)


def push(engine: Any, seed: int, version: int) -> int:
    """One version in two buckets through the object store."""
    _, tensors = weights(seed)
    names = sorted(tensors)
    buckets = [ray.put({n: tensors[n] for n in part}) for part in (names[::2], names[1::2])]
    return ray.get(engine.update_weights.remote(describe(version, tensors), buckets), timeout=WAIT)


@pytest.fixture(scope="module")
def engine(ray_cluster: None) -> Iterator[Any]:
    (handle,) = start_engines(config(), timeout_s=WAIT).values()
    yield handle
    ray.kill(handle)


def test_an_engine_refuses_serves_answers_and_continues(engine: Any) -> None:
    ask = request("a", [5, 6, 7], seeds=(1, 2), max_tokens=400)
    with pytest.raises(EngineNotReady):
        ray.get(engine.generate.remote(ask), timeout=WAIT)
    assert push(engine, 0, 1) == 1
    flying = engine.generate.remote(ask)
    seen: list[dict[str, float]] = []
    while not seen or seen[-1]["running"] < 2 or sum(s["tokens_generated"] for s in seen) < 20:
        seen.append(ray.get(engine.stats.remote(), timeout=WAIT))  # answered between two steps
    assert push(engine, 1, 2) == 2
    got = ray.get(flying, timeout=WAIT)
    old, new = weights(0)[0], weights(1)[0]
    for g in got:
        cut = int((g.versions == 1).sum())
        assert 0 < cut < 400 and g.finish is FinishReason.LENGTH and (np.diff(g.versions) >= 0).all()
        want = np.concatenate([plain(old, [5, 6, 7], g)[:cut], plain(new, [5, 6, 7], g)[cut:]])
        np.testing.assert_allclose(g.logprobs, want, atol=2e-4)
    later = engine.generate.remote(request("b", [5, 6, 7], max_tokens=500))
    while not ray.get(engine.abort.remote("b"), timeout=WAIT):
        pass
    (g,) = ray.get(later, timeout=WAIT)
    assert g.finish is FinishReason.ABORT and len(g.token_ids) < 500


def test_a_wrong_push_fails_what_is_in_flight_and_a_right_one_heals(engine: Any) -> None:
    push(engine, 0, 11)
    flying = engine.generate.remote(request("c", [1, 2], max_tokens=500))
    while ray.get(engine.stats.remote(), timeout=WAIT)["running"] == 0:
        pass
    _, tensors = weights(1)
    manifest = describe(12, tensors)
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    with pytest.raises(ValueError, match=r"lm_head\.weight: checksum"):
        ray.get(engine.update_weights.remote(manifest, [ray.put(tensors)]), timeout=WAIT)
    for call in (flying, engine.generate.remote(request("d", [1, 2]))):
        with pytest.raises(EngineNotReady, match="version 12 was refused"):
            ray.get(call, timeout=WAIT)
    push(engine, 1, 12)
    assert len(ray.get(engine.generate.remote(request("d", [1, 2])), timeout=WAIT)) == 1


def test_groups_of_a_real_environment_on_a_real_engine(engine: Any, tmp_path: Path) -> None:
    # Text, tokens, samples, log-probs and routes from end to end, on a policy that knows nothing.
    policy, _ = weights(3)
    push(engine, 3, 21)
    c = config()
    scheduler = Scheduler(c, {"engine0": engine}, tmp_path)
    try:
        scheduler.submit([order(Echo, id=f"g{i}", n=4, index=i) for i in range(4)])
        groups, end = [], time.monotonic() + WAIT
        while len(groups) < 4 and time.monotonic() < end:
            groups += scheduler.completed(1.0)
        assert not scheduler.lost() and len(groups) == 4
        for t in (t for g in groups for t in g.trajectories):
            assert t.stop in (StopReason.DONE, StopReason.TOKENS) and t.grade is not None and t.grade.valid
            prompt, said = t.nodes
            g = Generation(said.token_ids, said.logprobs, said.versions, FinishReason.STOP)
            np.testing.assert_allclose(said.logprobs, plain(policy, prompt.token_ids.tolist(), g), atol=2e-4)
            assert set(said.versions.tolist()) == {21} and prompt.routes is not None and said.routes is not None
            assert (prompt.routes < 8).all() and (said.routes[:-1] < 8).all() and (said.routes[-1] == 65535).all()
        # A killed engine restarts under its handle, without weights; it is named until they are pushed.
        pid = ray.get(engine.ping.remote(), timeout=WAIT)["pid"]
        os.kill(pid, signal.SIGKILL)
        while True:
            try:
                again = ray.get(engine.ping.remote(), timeout=WAIT)["pid"]
                break
            except ray.exceptions.RayActorError:
                assert time.monotonic() < end + WAIT
        assert again != pid and list(scheduler.stale_engines(21, WAIT)) == ["engine0"]
        push(engine, 3, 21)
        assert not scheduler.stale_engines(21, WAIT)
        scheduler.submit([order(Echo, id="after", n=2)])
        after: list = []
        while not after and time.monotonic() < end + WAIT:
            after += scheduler.completed(1.0)
        assert all(t.grade is not None and t.grade.valid for t in after[0].trajectories)
    finally:
        scheduler.close()


def test_the_configured_engine_is_the_plain_one() -> None:
    import asyncio

    policy, tensors = weights(0)
    server = make_engine(config())
    core = NativeEngine(policy, 4, 64)
    core.load(describe(1, tensors), tensors)

    async def both() -> list[Generation]:
        await server.update_weights(describe(1, tensors), [tensors])
        return await server.generate(request("a", [1, 2, 3], seeds=(4, 5)))

    core.submit(request("a", [1, 2, 3], seeds=(4, 5)))
    for a, b in zip(asyncio.run(both()), drain(core)["a"], strict=True):
        same(a, b, 1e-5)
    bad = config()
    bad.engine.kind = "other"
    with pytest.raises(ValueError, match="unknown engine kind"):
        make_engine(bad)
