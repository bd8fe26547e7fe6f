"""The law that the gateway exists for: what a foreign harness did through the API is trained as it was sampled."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from gateway_tools import native, running, tiny

from environments.catalogue import resolve
from rl.algorithms.loss import LOSSES
from rl.algorithms.loss.streams import Streams
from rl.batch import build_batch
from rl.config import AlgorithmConfig
from rl.learner.scoring import Scorer, score
from rollout.gateway.errors import ApiError
from rollout.gateway.groups import Shelf, groups_of
from rollout.gateway.verdict import rewarded
from rollout.trajectory import StopReason


def play(client: openai.OpenAI, url: str, name: str, seed: int, reward: float | None) -> Any:
    """A harness: two turns, the first tried twice, in a session of its own; then the verdict."""
    more: Any = {"model": "policy", "reasoning_effort": "high", "max_tokens": 40, "temperature": 1.3}
    more["extra_headers"] = {"x-jointrl-session": name, "x-jointrl-task": "letters"}
    said: list[Any] = [{"role": "user", "content": "copy: a b c"}]
    for turn in range(2):
        tries = 2 if turn == 0 else 1
        for at in range(tries):
            reply = client.chat.completions.create(messages=said, seed=10 * seed + 3 * turn + at, **more)
        said += [reply.choices[0].message, {"role": "user", "content": "copy: d e"}]
    body = {"reward": reward} if reward is not None else {"reward": None, "error": "the harness fell over"}
    return httpx.post(f"{url}/v1/sessions/{name}/reward", json=body, timeout=20)


def test_sessions_with_rewards_are_a_group_whose_first_ratio_is_one(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "kept")
    with running(native, shelf=shelf) as server:
        client = server.client()
        answers = [play(client, server.url, f"s{i}", i, r) for i, r in enumerate((1.0, 0.0, None))]
        assert [a.status_code for a in answers] == [200] * 3
        summary = answers[0].json()
        assert summary["grade"]["reward"] == 1.0 and summary["replies"] == 3
        assert summary["counts"]["branched"] >= 1, "the second try is a branch, and said to be one"
        again = httpx.post(f"{server.url}/v1/sessions/s0/reward", json={"reward": 0})
        assert again.status_code == 409, "a reward is given once"
        with pytest.raises(openai.ConflictError):
            client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": "x"}],
                extra_headers={"x-jointrl-session": "s0"},
                reasoning_effort="high",
            )
        live = [server.gateway.book.get("", f"s{i}").trajectory() for i in range(3)]
    kept = shelf.read()
    assert [t.id for t in kept] == ["s0", "s1", "s2"]
    for a, b in zip(live, kept, strict=True):
        assert a.to_json() == b.to_json()
    (group,) = groups_of(kept)
    assert group.order.task.id == "gateway/letters" and len(group.trajectories) == 3
    assert group.trajectories[2].stop is StopReason.ERROR

    batch = build_batch([group], [np.array([1.0, -1.0, 0.0])])
    assert batch.counts["samples_invalid"] == 1
    sampled = sum(t.output_tokens for t in kept[:2])
    assert batch.tokens == sampled, "every sampled token is trained once, whatever branches share it"
    (shard,) = batch.shards(1, 2048)
    policy = copy.deepcopy(tiny())
    config, total = AlgorithmConfig(), torch.zeros(())
    for micro in shard.micro_batches:
        scored = score(Scorer(policy), micro, True, torch.device("cpu"))
        mask = torch.as_tensor(micro.mask)
        behaviour = torch.as_tensor(micro.behaviour).double()
        ones = torch.ones_like(behaviour)
        streams = Streams(torch.as_tensor(micro.advantage).double(), behaviour, behaviour, scored.logprob, mask, ones)
        result = LOSSES[config.loss](streams, config)
        assert (result.ratio[mask] - 1).abs().max() < 1e-5
        total = total + result.loss / shard.tokens
    total.backward()
    gradients = [p.grad for p in policy.parameters() if p.grad is not None]
    assert torch.isfinite(total) and sum(float(g.abs().sum()) for g in gradients) > 0


def test_an_environment_of_ours_grades_what_a_harness_did() -> None:
    with running(native) as server:
        url = f"{server.url}/v1/sessions"
        opened = httpx.post(url, json={"environment": "primer/copy", "index": 3, "reasoning_effort": "low"}).json()
        reply = server.client().chat.completions.create(
            model="policy",
            messages=opened["messages"],
            reasoning_effort="low",
            extra_headers={"x-jointrl-session": opened["id"]},
            seed=1,
            temperature=0.2,
        )
        found = httpx.post(f"{url}/{opened['id']}/grade", json={}).json()
        session = server.gateway.book.get("", opened["id"])
        want = asyncio.run(resolve("primer/copy").grade(session.given, session.conversation(), None))
        assert found["grade"]["reward"] == want.reward and found["task"] == session.given.id == opened["task"]
        assert session.trajectory().grade == want and reply.choices[0].message.content is not None
        for bad, word in (
            ({"environment": "os:system", "index": 0}, "catalogue"),
            ({"environment": "primer/copi", "index": 0}, "primer/copy"),
            ({"environment": "primer/copy", "index": -1}, "index"),
        ):
            refused = httpx.post(url, json=bad)
            assert refused.status_code == 400 and word in refused.json()["error"]["message"]
        other = server.client().chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "x"}], max_tokens=2
        )
        name = other.model_extra["jointrl"]["session"]
        assert httpx.post(f"{url}/{name}/grade", json={}).status_code == 409, "it has no environment"


@pytest.mark.parametrize(
    "body",
    [{}, {"reward": 1.5}, {"reward": True}, {"reward": "1"}, {"reward": None}, {"reward": 1, "error": "x"}, {"r": 1}],
)
def test_a_reward_is_a_number_in_range_or_says_what_failed(body: Any) -> None:
    with pytest.raises(ApiError):
        rewarded(body)
    assert rewarded({"reward": 0.25, "parts": {"a": 1}}).reward == 0.25
    assert not rewarded({"reward": None, "error": "disk full"}).valid
