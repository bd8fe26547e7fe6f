"""Laws of images in a run: what nothing sees is refused before it starts, and a text start takes a new tower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from environments.catalogue import resolve
from environments.images import image_file, image_parts
from model.build import build_policy
from model.checkpoint_config import architecture
from model.config import K3Config
from rewards.efforts import Effort
from rl.checks import sees, selected
from rl.compose import compose
from rl.learner import initial, weights
from rl.learner.sight import freeze_sight
from rl.plan import plan
from rl.policy_size import policy_size
from rl.runlog import RunLog
from rollout.worker import load_chat

GB = 10**9


def refused(*overrides: str) -> list[str]:
    """What the plan says against a run on an ample machine."""
    return plan(compose([*overrides]), 64, 512 * GB, 0).failures


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["envs.names=[sight/squares]"], "sight/squares shows images.*set model.vision=tiny"),
        (["+experiment=hf_tiny", "envs.names=[sight/squares]"], "sight/squares shows images.*take model.kind=k3"),
        (["+experiment=hf_tiny", "model.vision=tiny"], "model.vision=tiny.*set model.vision=none"),
        (["model.vision=large"], "'large' is not one of none, tiny"),
        (["model.vision=tiny", "learner.train_vision=some"], "'some' is not one of none, projector, all"),
        (["model=k3", "model.vision=tiny"], "has a vision tower of its own"),
        (
            ["model=k3", "envs.names=[sight/squares]", "policy.init=scratch"],
            "media_placeholder_token_id is another token",
        ),
        (["model.vision=tiny", "learner.chunk_tokens=64", "learner.expert_parallel=1"], "trained on whole rows only"),
        (["+experiment=sight", "learner.chunk_tokens=64", "learner.train_vision=none"], "chunks are of text"),
    ],
)
def test_what_cannot_be_seen_is_refused_before_anything_starts(overrides: list[str], why: str) -> None:
    import re

    assert any(re.search(why, text) for text in refused(*overrides)), refused(*overrides)


def test_a_policy_that_sees_takes_images_and_the_default_run_none() -> None:
    assert refused("+experiment=sight") == []
    text = ("envs=primer", "learner.chunk_tokens=64", "learner.expert_parallel=1", "learner.train_vision=none")
    assert refused("model.vision=tiny", *text) == [], "a tower is no hindrance to text"
    default, seeing = compose([]), compose(["model.vision=tiny"])
    assert not sees(default.model) and sees(seeing.model)
    assert "sight/squares" in {s.id for s in selected(seeing)[0]} - {s.id for s in selected(default)[0]}
    assert load_chat(default).vocab_size == 512 and load_chat(default).image_id is None
    assert load_chat(seeing).media_ids == architecture("tiny", vision="tiny").media_tokens == (512, 513, 514, 515)
    more = policy_size(seeing.model).parameters - policy_size(default.model).parameters
    assert more == architecture("tiny", vision="tiny").vision_count() + 2 * 4 * 64
    for preset in ("k3", "k31_pro"):
        assert K3Config.preset(preset).media_tokens == (163602, 163603, 163604, 163605)


def test_a_text_start_under_a_new_tower_is_the_start_beside_fresh_eyes() -> None:
    c = compose(["model.vision=tiny"])
    policy = build_policy("k3", "tiny", seed=4, vision="tiny")
    before = {n: w.clone() for n, w in policy.named_weights()}
    initial.load(c, policy)
    start, after = initial.read(initial.start_files(c)), dict(policy.named_weights())
    for name, w in after.items():
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            assert len(start[name]) == 512 and len(w) == 516
            np.testing.assert_array_equal(w[:512], start[name])
            np.testing.assert_array_equal(w[512:], before[name][512:])
        else:
            np.testing.assert_array_equal(w, start.get(name, before[name]))
    whole = {n: w.numpy() + 1 for n, w in after.items()}
    own = dict(weights.owned_weights(policy))
    assert initial.with_fresh_sight(whole, own, (512, 513, 514, 515)) is whole, "a start that sees stays as it is"


@pytest.mark.parametrize(("trained", "want"), [("none", (0, 0)), ("projector", (0, 3)), ("all", (15, 3))])
def test_the_switch_says_what_has_gradients(trained: str, want: tuple[int, int]) -> None:
    policy = build_policy("k3", "tiny", vision="tiny")
    freeze_sight(policy, trained)
    parts = policy.seeing_parts()
    assert tuple(sum(p.requires_grad for p in part.parameters()) for part in parts) == want
    freeze_sight(build_policy("k3", "tiny"), trained)  # nothing to freeze


def test_a_log_names_images_and_keeps_each_file_once(tmp_path: Path) -> None:
    from test_rl_runlog import assessed, config

    group: Any = assessed()
    task = resolve("sight/squares").task("train", 0, 1)
    for t in group.group.trajectories:
        t.conversation[:1] = task.prompt
        assert t.effort is Effort.LOW
    (part,) = image_parts(task.prompt)
    with RunLog(tmp_path / "run", config()) as log:
        log.step(0, {}, [group])
    (file,) = (tmp_path / "run" / "images").iterdir()
    assert file.name == f"{part['image']}.png" and file.read_bytes() == image_file(part)
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts" / "step_0.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    for row in rows:
        shown = row["conversation"][0]["content"][0]
        assert shown == {"type": "image", "image": part["image"], "width": part["width"], "height": part["height"]}


def test_a_foreign_policy_says_that_it_reads_text() -> None:
    from model.hf_chat import HFChatTokenizer

    chat = HFChatTokenizer("assets/hf_tiny")
    task = resolve("sight/squares").task("train", 0, 1)
    assert chat.image_id is None
    for call in (chat.render_prompt, chat.render_tool_results):
        with pytest.raises(ValueError, match=r"reads text: use model.kind=k3.*envs.exclude"):
            call(list(task.prompt))
    with pytest.raises(ValueError, match="reads text"):
        chat.render_prompt([{"role": "system", "content": task.prompt[0]["content"]}], effort="low")
