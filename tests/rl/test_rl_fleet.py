"""Laws of engines that come and go in a run: no group is lost or doubled, no engine asked before it has the weights."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "rollout"))
from engine_tools import arrays, drain, engine_of, policy_of, prompts, request
from worlds import Echo, order

from environments.task import Limits
from rl.config import Config
from rl.errors import UserError
from rl.fleet import Fleet
from rl.sync import push
from rollout.engine.base import GenerateRequest
from rollout.engine.router import EngineRouter
from rollout.engine.weights import describe
from rollout.scheduler import Scheduler
from rollout.trajectory import Group, StopReason

WAIT = 120.0
LONG = Limits(turns=1, tokens=300, seconds=30.0)


def config() -> Config:
    c = Config()
    c.engine.replicas, c.engine.max_batch, c.engine.max_context = 2, 16, 512
    c.model.quant.expert_weights = c.model.quant.expert_activations = "none"
    c.rollout.workers = 1
    return c


def weights(version: int) -> tuple[Any, list[Any]]:
    tensors = arrays(policy_of("tiny", torch.float32, seed=version))
    return describe(version, tensors), [ray.put(tensors)]


class House:
    """A fleet, the scheduler of its worker, and what came back."""

    def __init__(self, store: Path) -> None:
        self.told: list[dict[str, Any]] = []
        self.fleet = Fleet(config(), self.told.append)
        self.scheduler = Scheduler(config(), self.fleet.start(), store)
        self.fleet.announce = self.scheduler.set_engines
        self.fleet.push(weights(1))
        self.groups: list[Group] = []
        self._n = 0

    def submit(self, groups: int, **more: Any) -> None:
        orders = [order(Echo, id=f"g{self._n + i}", n=4, index=self._n + i, **more) for i in range(groups)]
        self._n += groups
        self.scheduler.submit(orders)

    def until(self, done: Any) -> None:
        end = time.monotonic() + WAIT
        while not done():
            self.groups += self.scheduler.completed(0.2)
            self.fleet.tend()
            assert time.monotonic() < end, (self.scheduler.who_holds_what(), self.told)

    def settle(self) -> None:
        """Everything came back, once, sampled and judged."""
        self.until(lambda: not self.scheduler.outstanding)
        assert not self.scheduler.lost()
        assert Counter(g.order.id for g in self.groups) == {f"g{i}": 1 for i in range(self._n)}
        for t in (t for g in self.groups for t in g.trajectories):
            assert t.stop in (StopReason.DONE, StopReason.TOKENS), (t.id, t.stop, t.error)
            assert t.grade is not None and t.grade.valid and t.output_tokens > 0

    def events(self) -> list[str]:
        return [e["event"] for e in self.told]


@pytest.fixture
def house(ray_cluster: None, tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.scheduler.close()
    made.fleet.close()


def running(engine: Any) -> float:
    return ray.get(engine.stats.remote(), timeout=WAIT)["running"]


def test_a_killed_engine_costs_no_group_and_a_push_waits_for_its_return(house: House) -> None:
    engines = dict(house.fleet.serving)
    house.submit(12, limits=LONG)
    for engine in engines.values():
        house.until(lambda engine=engine: running(engine) > 0)
    os.kill(ray.get(engines["engine0"].ping.remote(), timeout=WAIT)["pid"], signal.SIGKILL)
    # The weights of the next step come while it is dead or just restarted: no error, and both serve them.
    house.fleet.push(weights(2))
    assert not house.scheduler.stale_engines(2, WAIT)
    house.settle()
    assert house.scheduler.worker_counts(WAIT)["engine_lost"] > 0
    sampled = {int(v) for g in house.groups for t in g.trajectories for v in t.nodes[-1].versions}
    assert sampled <= {1, 2}
    house.groups.clear()
    house._n = 0
    house.submit(4)
    house.settle()
    assert {int(v) for g in house.groups for t in g.trajectories for v in t.nodes[-1].versions} == {2}


def test_engines_are_added_and_drained_while_groups_are_generated(house: House) -> None:
    house.submit(8, limits=LONG)
    house.fleet.resize(3)
    assert list(house.fleet.coming) == ["engine2"] and list(house.scheduler.engines) == ["engine0", "engine1"]
    house.fleet.push(weights(2))  # a step ends while it starts
    house.until(lambda: "engine2" in house.fleet.serving)
    assert not house.scheduler.stale_engines(2, WAIT)
    new = house.fleet.serving["engine2"]
    house.submit(8, limits=LONG)
    house.until(lambda: running(new) > 0)
    house.fleet.drain("engine0")
    old = house.fleet.leaving["engine0"].handle
    house.submit(4, limits=LONG)
    house.until(lambda: not house.fleet.leaving)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(old.ping.remote(), timeout=WAIT)
    house.settle()
    left = [e for e in house.told if e["event"] == "engine_left"]
    assert [(e["engine"], e["finished"]) for e in left] == [("engine0", True)]
    assert "engine_lost" not in house.scheduler.worker_counts(WAIT), "what it had was not waited for"
    assert house.events()[:2] == ["engine_coming", "engine_added"] and house.told[1]["version"] == 2
    house.fleet.resize(1)
    assert sorted(house.fleet.serving) == ["engine1"] and sorted(house.fleet.leaving) == ["engine2"]
    for bad in ("engine1", "engine0"):
        with pytest.raises(UserError, match="does not serve, or no other"):
            house.fleet.drain(bad)
    house.until(lambda: not house.fleet.leaving)


def test_a_state_outlives_its_engine_in_the_object_store_and_a_prompt_is_read_apart(house: House) -> None:
    """A turn on one engine, which is killed; the next one on another, to the bit what one engine says to both."""
    any_token = tuple(range(0, 512, 3))
    (prompt,) = prompts(1, longest=60, seed=2)

    def turn(id: str, ids: list[int], seed: int) -> GenerateRequest:
        return request(id, ids, seeds=(seed,), max_tokens=200, stop_ids=any_token, keep=True)

    async def go() -> None:
        alone = engine_of(policy_of("tiny", torch.float32, seed=1), max_context=512, max_batch=16)
        engines = house.fleet.serving
        router = EngineRouter(engines, WAIT, carry_tokens=1)
        alone.submit(turn("a", prompt, 1))
        (want,) = drain(alone)["a"]
        _, (got,) = await router.generate(turn("a", prompt, 1), "engine0")
        np.testing.assert_allclose(got.logprobs, want.logprobs, atol=1e-5)
        longer = [*prompt, *got.token_ids.tolist(), 7, 8, 9]
        carried = await router.carry("engine0", got, len(longer) - 4, None)
        assert carried is not None and carried.length == len(longer) - 4
        _, (stayed,) = await router.generate(turn("b", longer, 2), "engine0", carried)
        assert not router.counts["carried"] and stayed.cached_tokens == carried.length
        await engines["engine1"].stats.remote()
        os.kill((await engines["engine0"].ping.remote())["pid"], signal.SIGKILL)
        name, (moved,) = await router.generate(turn("b", longer, 2), "engine0", carried)
        assert name == "engine1" and router.counts["carried"] == 1
        assert router.counts["engine_lost"] + router.counts["engine_not_ready"] == 1
        assert moved.token_ids.tolist() == stayed.token_ids.tolist()
        assert moved.logprobs.tobytes() == stayed.logprobs.tobytes()
        stats = await engines["engine1"].stats.remote()
        assert (stats["tokens_carried"], stats["tokens_prefilled"]) == (carried.length, 4)
        # engine0 comes back, and reads a prompt that engine1 decodes.
        house.fleet.heal(house.scheduler.stale_engines(1, WAIT))
        apart = EngineRouter(engines, WAIT, carry_tokens=20, readers=frozenset({"engine0"}))
        (new,) = prompts(1, longest=60, seed=5)
        assert len(new) >= 20
        name, (far,) = await apart.generate(turn("c", new, 3))
        stats = [await engines[f"engine{i}"].stats.remote() for i in range(2)]
        assert name == "engine1" and apart.counts["read_apart"] == 1 and far.cached_tokens == len(new)
        assert [s["tokens_prefilled"] for s in stats] == [len(new), 0]
        alone.submit(turn("c", new, 3))
        want = drain(alone)["c"][0]
        assert far.token_ids.tolist() == want.token_ids.tolist()
        np.testing.assert_allclose(far.logprobs, want.logprobs, atol=1e-5)

    asyncio.run(go())


def test_an_engine_that_stays_lost_is_given_up_while_another_one_serves(house: House, monkeypatch: Any) -> None:
    lost = house.fleet.serving["engine1"]
    ray.kill(lost)  # for good
    manifest, buckets = weights(3)
    assert push((manifest, buckets), {"engine1": lost}, 2.0) == ["engine1"]
    monkeypatch.setattr(house.fleet.config.engine, "request_timeout_s", 5.0)
    house.fleet.push((manifest, buckets))
    assert list(house.fleet.serving) == ["engine0"] == list(house.scheduler.engines)
    assert house.events() == ["engine_lost"]
    house.submit(3)
    house.settle()
    assert np.unique([v for g in house.groups for t in g.trajectories for v in t.nodes[-1].versions]).tolist() == [3]
